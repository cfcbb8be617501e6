"""The compiled kernel (`pixels.c`) that crops, mirrors and normalises images on the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from ..compiled import load_library

_library = load_library(
    Path(__file__).with_name("_pixels"), {"spcp_cut_2": [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 6 + [ctypes.c_int]}
)


def available() -> bool:
    """Return whether the kernel was compiled when the package was installed (it takes a C compiler)."""
    return _library is not None


def crop(
    images: Tensor,
    index: Tensor | None,
    windows: Tensor | None,
    padding: int,
    scale: Tensor,
    shift: Tensor,
    *,
    reflects: bool = False,
) -> Tensor:
    """Return `images[index]` (B, C, H, H), each cropped at its window of the padded image, as `x * scale - shift`.

    All are contiguous and on the CPU; images are bytes. A window is `2 * place + mirrored`. Images are padded with
    zeros, or with their reflections.
    """
    assert _library is not None
    count = len(images) if index is None else len(index)
    out = torch.empty((count, *images.shape[1:]), dtype=torch.float32, device="cpu")  # whatever torch's defaults are
    pointers = (None if x is None else x.data_ptr() for x in (images, index, windows, scale, shift, out))
    channels, height, width = images.shape[1:]
    if _library.spcp_cut_2(*pointers, count, channels, height, width, width, padding, reflects):
        raise MemoryError(f"no memory left for an image of {width} pixels; use a smaller one.")
    return out
