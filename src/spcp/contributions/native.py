"""The compiled CPU kernels (`kernels.c`): float32, on as many threads as torch uses."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import torch
from torch import Tensor

from ..compiled import instruction_set_of, load_library
from . import eager

# From so many samples and classes on, a GEMM and its sparse correction beat one fused dense pass: with fewer samples
# most lanes would be empty, with fewer classes too large a share of the weights would have to be read.
MANY_SAMPLES, MANY_CLASSES = 128, 512

_pointer, _real = ctypes.c_void_p, ctypes.c_float
_sizes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int]  # B, D, K, threads
_library = load_library(
    Path(__file__).with_name("_kernels"),
    {
        "spcp_clip": [_pointer, _pointer, _pointer, _real, _pointer, *_sizes],
        "spcp_excess": [_pointer, _pointer, _pointer, _real, _pointer, *_sizes],
        "spcp_excess_grad": [_pointer, _pointer, _pointer, _real, _pointer, _pointer, *_sizes],
        "spcp_quantile": [_pointer, _pointer, ctypes.c_double, _pointer, *_sizes],
        "spcp_top": [_pointer, _pointer, ctypes.c_int64, _pointer, *_sizes],
    },
)


def available() -> bool:
    """Return whether the kernels were compiled when the package was installed (it takes a C compiler)."""
    return _library is not None


def built_for() -> str:
    """Return the instruction set that the loaded kernels were built for, or "not compiled"."""
    return "not compiled" if _library is None else instruction_set_of(_library)


def clip(h: Tensor, W: Tensor, b: Tensor | None, threshold: Tensor) -> Tensor:
    """Return `z[b,k] = sum_d min(W[k,d] * h[b,d], threshold) + b[k]`."""
    h, W, bias, lam = h.contiguous(), W.contiguous(), None if b is None else b.contiguous(), threshold.item()
    if lam == torch.inf or (h.shape[0] >= MANY_SAMPLES and W.shape[0] >= MANY_CLASSES):
        z = torch.nn.functional.linear(h, W, b)  # (B, K)
        if lam < torch.inf:
            _run("spcp_excess", h, W, bias, lam, z)
    else:
        z = h.new_empty(h.shape[0], W.shape[0])  # (B, K)
        _run("spcp_clip", h, W, bias, lam, z)
    return z


def clip_grad(g: Tensor, h: Tensor, W: Tensor, threshold: Tensor, need_h: bool, need_W: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients: those of a linear layer, less what would flow through truncated contributions."""
    g, h, W, lam = g.contiguous(), h.contiguous(), W.contiguous(), threshold.item()
    grad_h = g @ W if need_h else h.new_empty(0)
    grad_W = g.t() @ h if need_W else W.new_empty(0)
    if lam < torch.inf:
        _run("spcp_excess_grad", h, W, g, lam, grad_h, grad_W)
        if not _finite(grad_h, grad_W) and _finite(g, h, W):  # a sum overflowed that truncation may leave finite
            return eager.clip_grad(g, h, W, threshold, need_h, need_W)
    return grad_h, grad_W


def _finite(*tensors: Tensor) -> bool:
    return all(math.isfinite(tensor.sum().item()) for tensor in tensors)


def quantile(h: Tensor, W: Tensor, level: float) -> Tensor:
    """Return for each sample the quantile `level` of its K*D contributions, linearly interpolated."""
    out = h.new_empty(h.shape[0])
    _run("spcp_quantile", h.contiguous(), W.contiguous(), level, out)
    return out


def top(h: Tensor, W: Tensor, count: int) -> Tensor:
    """Return for each sample its `count` largest contributions, (B, count), in any order."""
    out = h.new_empty(h.shape[0], count)
    _run("spcp_top", h.contiguous(), W.contiguous(), count, out)
    return out


def _run(kernel: str, h: Tensor, W: Tensor, *rest: Tensor | float | None) -> None:
    """Call a kernel with the addresses of its tensors (NULL for None and for empty ones)."""
    arguments = (x.data_ptr() if isinstance(x, Tensor) else x for x in (h, W, *rest))
    if getattr(_library, kernel)(*arguments, *h.shape, W.shape[0], torch.get_num_threads()):
        raise MemoryError(f"{kernel}: no memory left for a batch of shape {tuple(h.shape)}; use a smaller batch.")
