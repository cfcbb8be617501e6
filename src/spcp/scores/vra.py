"""VRA (Xu et al., 2023): features are limited from both sides."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from .base import Score, energy, head_logits


class VRA(Score):
    """Energy of the logits of `clip(h, a, c)`; both are percentiles of all features of the validation set."""

    paper = "VRA: Variational Rectified Activation for Out-of-distribution Detection, NeurIPS 2023"
    formula = "logsumexp(W clip(h, a, c) + b)"
    cost = "one pass; the head once more; keeps two numbers"
    reads = "head"
    ranges = {"high": (1, 100), "low": (0, 100)}
    sweep = {"high": (85.0, 90.0, 95.0, 99.0), "low": (1.0, 5.0, 10.0, 15.0)}
    fitted_on = ("val",)
    state = ("limits",)
    limits: Tensor  # (2,) a and c

    def __init__(self, *, high: float = 90.0, low: float = 10.0) -> None:
        super().__init__()
        self.high, self.low = high, low

    def fit_held_out(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Set both limits to percentiles of all features of the validation set."""
        self.limits = torch.tensor([data.percentile(p) for p in (self.low, self.high)], device=head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the energy of the logits of features limited from both sides, (B,)."""
        return energy(head_logits(head, h.clamp(self.limits[0], self.limits[1])))
