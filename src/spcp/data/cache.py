"""A cache on disk for arrays that take long to compute, under a key of everything they depend on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

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


def cached(key: str, build: Callable[[], np.ndarray], fits: Callable[[np.ndarray], bool]) -> np.ndarray:
    """Return the array that `build()` makes, from disk if it is there and fits; else build and store it."""
    folder = cache_folder()
    if folder is None:
        return build()
    path = folder / f"{key}.npy"
    with contextlib.suppress(Exception), open(path, "rb") as stored:  # a damaged file can raise anything
        array: np.ndarray = np.load(stored, allow_pickle=False)
        if stored.read() == _checksum(array) and fits(array):
            return array
    array = build()
    with contextlib.suppress(OSError), written(path) as file:  # no room, no permission: the cache is a convenience
        np.save(file, array, allow_pickle=False)
        file.write(_checksum(array))
    return array


def _checksum(array: np.ndarray) -> bytes:
    """Return a checksum of an array, its type and its shape; it follows the array in its file."""
    described = f"{array.dtype.str} {array.shape}".encode()
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return zlib.crc32(content, zlib.crc32(described)).to_bytes(4, "big")
