"""ITP: contributions that are small or unusual on training data are pruned."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from ..contributions import class_parts, effective_threshold
from .base import Score, chunks, energy, entering

_CHUNK = 1 << 19  # contributions at a time, which stay in the cache


class ITP(Score):
    """Energy of logits without those contributions `c[k,d] = W[k,d] h[d]`.

    `mu` and `sigma` of a class's contributions over its training samples are `W mean` and `|W| std` of their features.
    A contribution is kept if `mu` is above the p-th percentile of all K x D, as in the authors' code, and
    `c < mu + l sigma`; the rest is 0.
    With a truncating head, what is kept is truncated too.
    """

    paper = "ITP: Instance-Aware Test Pruning for Out-of-Distribution Detection, 2024"
    formula = "logsumexp_k(sum_d c [mu > pct(mu, p)] [c < mu + l sigma] + b)"
    cost = "one pass; all B x K x D contributions, in chunks; keeps K x D numbers"
    reads = "weights"
    ranges = {"p": (1, 99)}
    fitted_on = ("train",)
    state = ("limit",)
    limit: Tensor  # (K, D), below all numbers where a contribution is always pruned

    def __init__(self, *, p: float = 10.0, l: float = 2.2) -> None:  # noqa: E741
        super().__init__()
        self.p, self.l = p, l

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Choose the contributions to keep, and the limits of the rest, from the moments of training features."""
        moments, W = data.moments(), head.weight.detach().cpu().double()
        mean = entering(moments.mean[: len(W)], head)
        scale = entering(torch.ones_like(mean), head)
        mu = W * mean
        variance = moments.squares[: len(W)] / (moments.count[: len(W), None] - 1).clamp(min=1)
        sigma = W.abs() * scale * variance.sqrt()
        keep = mu > float(np.percentile(mu.numpy(), self.p))
        self.limit = (mu + self.l * sigma).float().masked_fill(~keep, torch.finfo(torch.float32).min)
        return self.to(head.weight.device)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the energy of the logits of the contributions kept, (B,)."""
        W, threshold, parts = head.weight.detach(), effective_threshold(head), []
        for rows in chunks(entering(h, head), W.numel(), _CHUNK):
            sums = []
            for k in class_parts(W):
                c = rows[:, None] * W[k]  # (rows, classes, D)
                truncated = c if threshold is None else c.minimum(threshold)
                sums.append(torch.where(c >= self.limit[k], 0.0, truncated).sum(2))  # NaN stays NaN
            parts.append(torch.cat(sums, 1))
        logits = torch.cat(parts)
        return energy(logits if head.bias is None else logits + head.bias.detach())
