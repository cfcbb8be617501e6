"""The linear classifier with truncated contributions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import ops  # noqa: F401  (registers torch.ops.spcp)

# torch.export has a flag since 2.7; before, it counts as compiling.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
_stays_operator: ContextVar[bool] = ContextVar("stays_operator", default=False)

_EXPORT_PARTS = 32


def clip_contributions(h: Tensor, W: Tensor, b: Tensor | None, threshold: Tensor | float) -> Tensor:
    """Return the logits of a linear classifier whose contributions are truncated.

        z[..., k] = sum_d min(W[k,d] * h[..., d], threshold) + b[k]

    The gradient passes where `W[k,d] * h[d] <= threshold` (at a tie too), is 0 elsewhere, and does not reach
    `threshold`; its sums are as accurate as those of the linear layer. The (batch, K, D) contributions are never held
    in memory. Half-precision inputs are computed in float32; under autocast so is everything, and the logits are
    float32: scores need the resolution.

    Args:
        h: features, (..., D), of any sign.
        W: classifier weights, (K, D).
        b: classifier bias, (K,), or None. It is never truncated.
        threshold: the truncation threshold, a number or a tensor of one element.

    Returns:
        Logits, (..., K).

    Example:
        >>> h, W = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0], [-5.0, 1.0]])
        >>> clip_contributions(h, W, None, threshold=1.5)  # contributions [1, 6] and [-5, 2]
        tensor([[ 2.5000, -3.5000]])
    """
    dtype = check_classifier(h, W, b)
    if isinstance(threshold, float) and math.isnan(threshold):
        raise ValueError("threshold is NaN; it must be a number.")
    lam = torch.as_tensor(threshold, dtype=dtype, device=h.device).detach()
    if lam.dim():
        if lam.numel() != 1:
            raise ValueError(f"threshold has shape {tuple(lam.shape)}; it must be a single number.")
        lam = lam.reshape(())
    z = _clip(_cast(h, dtype), _cast(W, dtype), None if b is None else _cast(b, dtype), lam)
    return z if torch.is_autocast_enabled(h.device.type) else _cast(z, h.dtype)  # no kernel uses what autocast casts


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)  # a call of `to` that does nothing still takes its time


def check_classifier(h: Tensor, W: Tensor, b: Tensor | None = None) -> torch.dtype:
    """Check that the three make a linear layer; return the dtype to compute in (float32 or float64)."""
    dtypes = {x.dtype for x in (h, W, b) if x is not None}
    for name, x in (("h", h), ("W", W), ("b", b)):
        if x is not None and not x.is_floating_point():
            raise TypeError(f"{name} is of dtype {x.dtype}; convert it to a floating point dtype.")
    if len(dtypes) > 1 and not torch.is_autocast_enabled(h.device.type):
        raise TypeError(f"The features are of dtype {h.dtype}, the weights of {W.dtype}; convert them to one dtype.")
    for name, x in (("weights", W), ("bias", b)):
        if x is not None and x.device != h.device:
            raise ValueError(f"The features are on {h.device}, the {name} on {x.device}; move them to one device.")
    if W.dim() != 2 or 0 in W.shape:
        raise ValueError(f"W has shape {tuple(W.shape)}; it must be (K, D), one row of weights for each class.")
    if h.dim() == 0 or h.shape[-1] != W.shape[1]:
        raise ValueError(f"h has shape {tuple(h.shape)}; its last dimension must be D = {W.shape[1]}, as W's is.")
    if b is not None and b.shape != W.shape[:1]:
        raise ValueError(
            f"b has shape {tuple(b.shape)}; it must be (K,), one number for each of W's {W.shape[0]} rows."
        )
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _clip(h: Tensor, W: Tensor, b: Tensor | None, threshold: Tensor) -> Tensor:
    if _is_exporting() and not _stays_operator.get():
        return _clip_in_aten(h, W, b, threshold)
    rows = h if h.dim() == 2 else h.reshape(-1, h.shape[-1])  # (B, D)
    if torch.is_grad_enabled() and (h.requires_grad or W.requires_grad or (b is not None and b.requires_grad)):
        z = _Clip.apply(rows, W, b, threshold)
    else:
        z = torch.ops.spcp.clip(rows, W, b, threshold)  # (B, K)
    return z if h.dim() == 2 else z.reshape(*h.shape[:-1], W.shape[0])


def class_parts(W: Tensor) -> list[slice]:
    """Return slices of the classes whose contributions are looked at together: all, or a few where a graph is exported.

    A graph takes the whole batch, whose size may be a symbol; so it goes through the classes in parts.
    """
    whole = not (_is_exporting() or torch.compiler.is_compiling())
    step = W.shape[0] if whole else -(-W.shape[0] // _EXPORT_PARTS)
    return [slice(k, k + step) for k in range(0, W.shape[0], step)]


@contextlib.contextmanager
def as_operator() -> Iterator[None]:
    """Let what is exported meanwhile keep `torch.ops.spcp.clip`, for who translates the operator himself."""
    token = _stays_operator.set(True)
    try:
        yield
    finally:
        _stays_operator.reset(token)


def _clip_in_aten(h: Tensor, W: Tensor, b: Tensor | None, threshold: Tensor) -> Tensor:
    """Compute the formula in standard operators, so that an exported program runs without this library.

    It takes a few classes at a time and the whole batch, whose size may be a symbol.
    """
    sums = []
    for classes in class_parts(W):
        c = h.unsqueeze(-2) * W[classes]  # (..., classes, D)
        sums.append(torch.where(c > threshold, threshold, c).sum(-1))
    z = torch.cat(sums, -1)  # (..., K)
    return z if b is None else z + b


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, W: Tensor, b: Tensor | None, threshold: Tensor) -> Tensor:
        ctx.save_for_backward(h, W, threshold)
        return torch.ops.spcp.clip(h, W, b, threshold)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        h, W, threshold = ctx.saved_tensors
        need_h, need_W, need_b, _ = ctx.needs_input_grad
        grad_h = grad_W = None
        if need_h or need_W:
            grad_h, grad_W = torch.ops.spcp.clip_grad(g, h, W, threshold, need_h, need_W)
        return grad_h if need_h else None, grad_W if need_W else None, g.sum(0) if need_b else None, None
