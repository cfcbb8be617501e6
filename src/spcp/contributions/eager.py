"""The kernels in plain PyTorch: correct on every device and dtype, and slow.

They serve where no faster ones do (float64, a CPU without the compiled kernels, devices without Triton). They work in
chunks, so that no more than `CHUNK` contributions (or those of a single sample) exist at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 1 << 22  # contributions held at a time: 16 MB in float32


def clip(h: Tensor, W: Tensor, b: Tensor | None, threshold: Tensor) -> Tensor:
    """Return `z[b,k] = sum_d min(W[k,d] * h[b,d], threshold) + b[k]`."""
    z = h.new_empty(h.shape[0], W.shape[0])  # (B, K)
    for rows, columns in _chunks(h, W):
        c = h[rows, None, :] * W[columns]  # (rows, columns, D)
        z[rows, columns] = torch.where(c > threshold, threshold, c).sum(-1)
    return z if b is None else z.add_(b)


def clip_grad(g: Tensor, h: Tensor, W: Tensor, threshold: Tensor, need_h: bool, need_W: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients by `h` and `W` for the gradient `g` by the logits; empty where not needed."""
    grad_h = h.new_zeros(h.shape if need_h else 0)  # contiguous, whatever h is
    grad_W = W.new_zeros(W.shape if need_W else 0)
    for rows, columns in _chunks(h, W):
        truncated = h[rows, None, :] * W[columns] > threshold  # (rows, columns, D)
        passed = g[rows, columns, None].masked_fill(truncated, 0)  # (rows, columns, D)
        if need_h:
            grad_h[rows] += (passed * W[columns]).sum(1)
        if need_W:
            grad_W[columns] += (passed * h[rows, None, :]).sum(0)
    return grad_h, grad_W


def quantile(h: Tensor, W: Tensor, level: float) -> Tensor:
    """Return for each sample the quantile `level` of its K*D contributions, linearly interpolated."""
    n = W.numel()
    position = level * (n - 1)
    lower = min(int(position), max(n - 2, 0))
    fraction, rank = position - lower, n - 1 - lower  # rank: places from the largest, which is 0
    out = h.new_empty(h.shape[0])
    for rows, largest in _largest(h, W, rank + 1):
        out[rows] = torch.lerp(largest[:, rank], largest[:, max(rank - 1, 0)], fraction)
    return out.masked_fill_(~_finite(h, W), torch.nan)


def top(h: Tensor, W: Tensor, count: int) -> Tensor:
    """Return for each sample its `count` largest contributions, (B, count), in any order."""
    out = torch.cat([largest for _, largest in _largest(h, W, count)])
    return out.masked_fill_(~_finite(h, W)[:, None], torch.nan)


def _largest(h: Tensor, W: Tensor, count: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of h and their `count` largest contributions, the largest first, some rows at a time."""
    step = max(1, CHUNK // W.numel())
    for start in range(0, h.shape[0], step):
        rows = slice(start, start + step)
        yield rows, (h[rows, None, :] * W).flatten(1).topk(count).values


def _finite(h: Tensor, W: Tensor) -> Tensor:
    return h.isfinite().all(1) & W.isfinite().all()


def _chunks(h: Tensor, W: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield slices of the rows and columns of the logits whose contributions number at most `CHUNK`."""
    (B, D), K = h.shape, W.shape[0]
    columns = min(K, max(1, CHUNK // D))
    rows = max(1, CHUNK // (columns * D))
    for b in range(0, B, rows):
        for k in range(0, K, columns):
            yield slice(b, b + rows), slice(k, k + columns)
