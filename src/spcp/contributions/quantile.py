"""Estimates of the truncation threshold from one sample: a quantile of its contributions, or a mean."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .clip import check_classifier

RhoNorm = float | Literal["auto"]


def threshold_estimate(h: Tensor, W: Tensor, b: Tensor | None, rho_norm: RhoNorm) -> Tensor:
    """Estimate the threshold from each sample, (B,): the quantile at `1 - rho_norm / K`; for "auto", mean support."""
    if rho_norm == "auto":
        return mean_support(h, W, b)
    return contribution_quantile(h, W, 1 - rho_norm / len(W))


def contribution_quantile(h: Tensor, W: Tensor, level: float) -> Tensor:
    """Return for each sample a quantile of its K*D contributions `W[k,d] * h[d]`.

    It is exact, with linear interpolation: what `torch.quantile` gives on the dense matrix, without building it and
    without its limit on the number of elements. It is not differentiable, and NaN where a feature or weight is not
    finite.

    Args:
        h: features, (..., D).
        W: classifier weights, (K, D).
        level: in [0, 1]; the top `rho` percent start at `1 - rho / 100`.

    Returns:
        One value for each sample, (...), float32 or (for float64 inputs) float64.

    Example:
        >>> h, W = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0], [-5.0, 1.0]])
        >>> contribution_quantile(h, W, level=0.5)  # of -5, 1, 2, 6
        tensor([1.5000])
    """
    if not 0 <= level <= 1:
        raise ValueError(f"level is {level}; it must lie between 0 and 1.")
    dtype = check_classifier(h, W)
    h, W = h.detach().to(dtype), W.detach().to(dtype)
    rows = h if h.dim() == 2 else h.reshape(-1, h.shape[-1])  # (B, D)
    q: Tensor = torch.ops.spcp.contribution_quantile(rows, W, level)  # (B,)
    return q if h.dim() == 2 else q.reshape(h.shape[:-1])


@torch.no_grad()
def mean_support(h: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    """Return for each sample the mean of the positive contributions to its largest logit; 0 where none is positive.

        k = argmax_k (sum_d W[k,d] h[d] + b[k]);  mean of W[k,d] h[d] over {d: W[k,d] h[d] > 0}

    It is NaN where a feature or weight is not finite.

    Args:
        h: features, (B, D).
        W: classifier weights, (K, D).
        b: the classifier's bias, (K,).

    Example:
        >>> mean_support(torch.tensor([[1.0, 2.0, 1.0]]), torch.tensor([[1.0, 3.0, -1.0], [0.0, 1.0, 0.0]]))
        tensor([3.5000])
    """
    dtype = check_classifier(h, W)
    h, W = h.to(dtype), W.to(dtype)
    k = torch.nn.functional.linear(h, W, None if b is None else b.to(dtype)).argmax(1)
    c = h * W[k]  # (B, D)
    support = c.clamp(min=0)
    mean = support.sum(1) / (c > 0).sum(1).clamp(min=1)
    return mean + 0 * (h.sum(1) + W.sum())
