"""A cache on disk for arrays that take long to compute, under a key of everything they depend on."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import written


def cache_folder() -> Path | None:
    """Return `$SPCP_CACHE`, else `spcp` in the user's cache folder; None for a user without a home."""
    folder, base = os.environ.get("SPCP_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if folder or base:
        return Path(folder or f"{base}/spcp").expanduser()
    try:
        return Path.home() / ".cache" / "spcp"
    except RuntimeError:
        return None


def key_of(*parts: object) -> str:
    """Return a short name for the contents of `parts`.

    >>> key_of("a", 1) == key_of("a", 1) != key_of("a1")
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        text = repr(part).encode()
        digest.update(f"{len(text)}:".encode() + text)
    return digest.hexdigest()[:32]


def raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor."""
    array: Any = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return memoryview(array)


def cached(key: str, build: Callable[[], np.ndarray], fits: Callable[[np.ndarray], bool]) -> np.ndarray:
    """Return the array that `build()` makes, from disk if it is there and fits; else build and store it."""
    folder = cache_folder()
    if folder is None:
        return build()
    path = folder / f"{key}.npy"
    with contextlib.suppress(Exception), open(path, "rb") as stored:  # a damaged file can raise anything
        array: np.ndarray = np.load(stored, allow_pickle=False)
        if fits(array):
            return array
    array = build()
    with contextlib.suppress(OSError), written(path) as file:  # no room, no permission: the cache is a convenience
        np.save(file, array, allow_pickle=False)
    return array
