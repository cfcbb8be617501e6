"""The quantile of a sample's contributions."""

from __future__ import annotations

import torch
from torch import Tensor

from .clip import check_classifier


def contribution_quantile(h: Tensor, W: Tensor, level: float) -> Tensor:
    """Per sample, a quantile of its K*D contributions `W[k,d] * h[d]`.

    Exact, with linear interpolation: what `torch.quantile` gives on the dense matrix, without building it and
    without its limit on the number of elements. Not differentiable. NaN where a feature or weight is not finite.

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
