"""The kernels for CUDA, in Triton: fused and dense, tile by tile, float32, without a host sync.

Without a GPU they run in Triton's interpreter (TRITON_INTERPRET=1), which is how the tests run them.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from .eager import top as top  # in plain PyTorch: the quantile kernel keeps no list

if importlib.util.find_spec("triton") is None:  # Triton has no build for some platforms
    triton: Any = None
else:
    import triton
    import triton.language as tl

TILE = 16  # samples, classes and features of a tile: TILE**3 contributions live in registers at a time
ROW = 1024  # contributions of one class that the quantile kernel reads at a time


def available() -> bool:
    """Return whether Triton is installed."""
    return triton is not None


def clip(h: Tensor, W: Tensor, b: Tensor | None, threshold: Tensor) -> Tensor:
    """Return `z[b,k] = sum_d min(W[k,d] * h[b,d], threshold) + b[k]`."""
    h, W = h.contiguous(), W.contiguous()
    (B, D), K = h.shape, W.shape[0]
    z = h.new_empty(B, K)
    with torch.cuda.device_of(h):
        _clip[(triton.cdiv(B, TILE), triton.cdiv(K, TILE))](h, W, threshold, z, B, D, K, TILE=TILE)
    return z if b is None else z.add_(b)


def clip_grad(g: Tensor, h: Tensor, W: Tensor, threshold: Tensor, need_h: bool, need_W: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients by `h` and `W` for the gradient `g` by the logits; empty where not needed."""
    g, h, W = g.contiguous(), h.contiguous(), W.contiguous()
    (B, D), K = h.shape, W.shape[0]
    grad_h = h.new_empty(h.shape if need_h else 0)
    grad_W = W.new_empty(W.shape if need_W else 0)
    # Samples and classes change places between the two: sum_k g[b,k] W[k,d] and sum_b g[b,k] h[b,d].
    with torch.cuda.device_of(h):
        if need_h:
            _grad[(triton.cdiv(B, TILE), triton.cdiv(D, TILE))](h, W, g, threshold, grad_h, B, D, K, K, 1, TILE=TILE)
        if need_W:
            _grad[(triton.cdiv(K, TILE), triton.cdiv(D, TILE))](W, h, g, threshold, grad_W, K, D, B, 1, K, TILE=TILE)
    return grad_h, grad_W


def quantile(h: Tensor, W: Tensor, level: float) -> Tensor:
    """Return for each sample the quantile `level` of its K*D contributions, linearly interpolated."""
    h, W = h.contiguous(), W.contiguous()
    (B, D), K = h.shape, W.shape[0]
    n = D * K
    position = level * (n - 1)
    lower = min(int(position), max(n - 2, 0))
    out = h.new_empty(2, B)
    with torch.cuda.device_of(h):
        _two_largest_from[(B,)](h, W, out, n - 1 - lower, B, D, K, ROW=ROW)
    finite = h.isfinite().all(1) & W.isfinite().all()
    return torch.lerp(out[0], out[1], position - lower).masked_fill_(~finite, torch.nan)


if triton is not None:

    @triton.jit
    def _clip(h, W, threshold, z, B, D, K, TILE: tl.constexpr):
        """Compute a (TILE samples, TILE classes) tile of z, summed over tiles of features."""
        rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
        classes = tl.program_id(1) * TILE + tl.arange(0, TILE)
        lam = tl.load(threshold)
        total = tl.zeros((TILE, TILE), tl.float32)
        for first in range(0, D, TILE):
            d = first + tl.arange(0, TILE)
            h_tile = tl.load(h + rows.to(tl.int64)[:, None] * D + d, (rows < B)[:, None] & (d < D), 0.0)
            W_tile = tl.load(W + classes.to(tl.int64)[:, None] * D + d, (classes < K)[:, None] & (d < D), 0.0)
            c = h_tile[:, None, :] * W_tile[None, :, :]
            clipped = tl.where(c > lam, lam, c)
            total += tl.sum(tl.where((d < D)[None, None, :], clipped, 0.0), 2)  # a negative lam would clip the padding
        tl.store(z + rows.to(tl.int64)[:, None] * K + classes, total, (rows < B)[:, None] & (classes < K))

    @triton.jit
    def _grad(x, y, g, threshold, grad, X, D, Y, g_x, g_y, TILE: tl.constexpr):
        """Compute a tile of grad[x,d] = sum_y g[x,y] y[y,d] [x[x,d] * y[y,d] <= threshold]; g has strides g_x, g_y."""
        rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
        d = tl.program_id(1) * TILE + tl.arange(0, TILE)
        lam = tl.load(threshold)
        inside = (rows < X)[:, None] & (d < D)
        x_tile = tl.load(x + rows.to(tl.int64)[:, None] * D + d, inside, 0.0)
        total = tl.zeros((TILE, TILE), tl.float32)
        for first in range(0, Y, TILE):
            others = first + tl.arange(0, TILE)
            y_tile = tl.load(y + others.to(tl.int64)[:, None] * D + d, (others < Y)[:, None] & (d < D), 0.0)
            g_tile = tl.load(
                g + rows.to(tl.int64)[:, None] * g_x + others.to(tl.int64) * g_y,
                (rows < X)[:, None] & (others < Y),
                0.0,
            )
            truncated = x_tile[:, None, :] * y_tile[None, :, :] > lam
            total += tl.sum(tl.where(truncated, 0.0, g_tile[:, :, None] * y_tile[None, :, :]), 1)
        tl.store(grad + rows.to(tl.int64)[:, None] * D + d, total, inside)

    @triton.jit
    def _of_key(key):
        """Return the float at a place in the order of all floats."""
        key = key.to(tl.int32)
        return tl.where(key < 0, (-2147483648 - key), key).to(tl.float32, bitcast=True)

    @triton.jit
    def _two_largest_from(h, W, out, rank, B, D, K, ROW: tl.constexpr):
        """Find out[0,b], the contribution that `rank` others precede from the top, and out[1,b], the next larger one.

        It bisects the order of all floats, counting: 32 passes, exact, no memory.
        """
        b = tl.program_id(0)
        row = h + b.to(tl.int64) * D
        low = tl.full((), -2139095041, tl.int64)  # just below minus infinity: all contributions lie above
        high = tl.full((), 2139095040, tl.int64)  # infinity: none does
        for _ in range(33):  # smallest key that at most `rank` contributions exceed
            middle = (low + high) >> 1
            t = _of_key(middle)
            above = tl.zeros((), tl.int64)
            w = W
            for _ in range(K):
                for first in range(0, D, ROW):
                    d = first + tl.arange(0, ROW)
                    c = tl.load(row + d, d < D, 0.0) * tl.load(w + d, d < D, 0.0)
                    above += tl.sum(((c > t) & (d < D)).to(tl.int32), 0)
                w += D
            few = above <= rank
            high = tl.where(few & (middle > low), middle, high)
            low = tl.where(few, low, middle)
        value = _of_key(high)
        above = tl.zeros((), tl.int64)
        next_larger = tl.full((), float("inf"), tl.float32)
        w = W
        for _ in range(K):
            for first in range(0, D, ROW):
                d = first + tl.arange(0, ROW)
                c = tl.load(row + d, d < D, 0.0) * tl.load(w + d, d < D, 0.0)
                larger = (c > value) & (d < D)
                above += tl.sum(larger.to(tl.int32), 0)
                next_larger = tl.minimum(next_larger, tl.min(tl.where(larger, c, float("inf")), 0))
            w += D
        tl.store(out + b, value)
        tl.store(out + B + b, tl.where((above < rank) | (rank == 0), value, next_larger))
