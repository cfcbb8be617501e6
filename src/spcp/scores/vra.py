"""VRA (Xu et al., 2023): features are bounded from both sides."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..features import Features
from .base import Score, energy, head_logits


class VRA(Score):
    """Energy of the logits of `clip(h, a, c)`; both are percentiles of all features of the validation set."""

    paper = "VRA: Variational Rectified Activation for Out-of-distribution Detection, NeurIPS 2023"
    formula = "logsumexp(W clip(h, a, c) + b)"
    cost = "one pass; the head once more; keeps two numbers"
    reads = "head"
    sweep = {"high": (85.0, 90.0, 95.0, 99.0), "low": (1.0, 5.0, 10.0, 15.0)}  # noqa: RUF012
    fitted_on = "val"
    state = ("bounds",)
    bounds: Tensor

    def __init__(self, *, high: float = 90.0, low: float = 10.0) -> None:
        super().__init__()
        self.high, self.low = high, low

    def fit(self, data: Features, head: nn.Linear) -> Self:
        """Learn the bounds."""
        self.bounds = torch.tensor([data.percentile(p) for p in (self.low, self.high)], device=head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Scores (B,)."""
        return energy(head_logits(head, h.clamp(self.bounds[0], self.bounds[1])))
