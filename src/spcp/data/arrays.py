"""Read a user's images or embeddings from npz, npy and safetensors files."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import DataError, need, read_bytes
from .sets import LABEL_NAMES, SAMPLE_NAMES, TensorSet, on_cpu, tensor_set


@on_cpu
def read_arrays(path: str | Path, split: str = "") -> TensorSet:
    """Read images or embeddings from a npz, npy or safetensors file.

    The samples have a name such as images, embeddings, features, x, data or arr_0; their labels, which may be missing,
    labels, y, targets or arr_1. With a split, names such as `test_images` or `x_test` come first. Images are (N, H, W),
    (N, H, W, C) or (N, C, H, W) bytes; everything else is taken as floats.
    """
    path = Path(path).expanduser()
    arrays = _load_arrays(path)
    x = _named(path, arrays, (*SAMPLE_NAMES, "arr_0"), split)
    if x is None:
        names = ", ".join((*SAMPLE_NAMES, "arr_0"))
        raise DataError(f"{path}: holds {sorted(arrays) or 'nothing'}; call the samples one of {names}")
    if x.ndim < 2 or not x.numel():
        raise DataError(f"{path}: samples of shape {tuple(x.shape)} are neither images (N, H, W) nor embeddings (N, D)")
    if not (x.dtype == torch.uint8 or x.is_floating_point()):
        if x.is_complex() or (x.ndim > 2 and (x.min() < 0 or x.max() > 255)):
            raise DataError(f"{path}: {x.dtype} samples are neither images of 0 to 255 nor floats; convert them")
        x = x.to(torch.uint8) if x.ndim > 2 else x.float()
    y = _named(path, arrays, (*LABEL_NAMES, "arr_1"), split)
    data = tensor_set(str(path), x, y, f"{split} arrays" if split else "all")
    return dataclasses.replace(data, name=path.stem)


def array_parts(path: Path) -> set[str]:
    """Return which of train, val and test a npz or safetensors file has arrays for."""
    names = set(_load_arrays(path))
    return {part for part in ("train", "val", "test") for n in SAMPLE_NAMES if {f"{part}_{n}", f"{n}_{part}"} & names}


def _load_arrays(path: Path) -> Mapping[str, Any]:
    """Return arrays by name, read when they are needed (npz)."""
    raw = read_bytes(path)
    try:
        if path.suffix.lower() == ".safetensors":
            return dict(need("safetensors.torch", "safetensors").load(raw))
        loaded = np.load(io.BytesIO(raw), allow_pickle=False)
        return {"arr_0": loaded} if isinstance(loaded, np.ndarray) else loaded
    except ImportError:
        raise
    except Exception as error:  # a damaged file can raise anything, also about memory for rows that it only claims
        raise DataError(
            f"{path}: cannot be read ({error}); save plain arrays with numpy.savez or safetensors"
        ) from error


def _named(path: Path, arrays: Mapping[str, Any], names: Sequence[str], split: str) -> Tensor | None:
    for name in names:
        for key in (f"{split}_{name}", f"{name}_{split}", name):
            if key in arrays:
                try:
                    array = arrays[key]
                    return array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
                except Exception as error:  # of an archive, read only here
                    raise DataError(f"{path}: {key} cannot be read ({error}); save plain arrays of numbers") from error
    return None
