"""VRA (Xu et al., 2023): features are limited from both sides. "vra" is OpenOOD's, "vra-p" the authors'."""

from __future__ import annotations

from typing import Self

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
        limits = data.percentiles((self.low, self.high), by_feature=False)
        self.limits = limits.float().to(head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the energy of the logits of features limited from both sides, (B,)."""
        return energy(head_logits(head, h.clamp(self.limits[0], self.limits[1])))


class VRAP(Score):
    """Energy of the logits of `0 where h < a, else min(h, c)`; percentiles of each feature over the training set.

    So the authors' code has it. OpenOOD, whose benchmark the other scores follow, clips at `a` instead, and takes both
    percentiles over all features of the validation set: "vra" does that.
    """

    paper = VRA.paper
    formula = "logsumexp(W ([h >= a] min(h, c)) + b)"
    cost = "one pass; the head once more; keeps 2 x D numbers"
    reads = "head"
    ranges = VRA.ranges
    sweep = {"high": (80.0, 85.0, 90.0, 95.0, 99.0), "low": (50.0, 60.0, 65.0, 70.0)}  # the authors'
    fitted_on = ("train",)
    state = ("limits",)
    limits: Tensor  # (2, D) a and c

    def __init__(self, *, high: float = 90.0, low: float = 60.0) -> None:
        super().__init__()
        self.high, self.low = high, low

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Set the limits of each feature to percentiles over the training set."""
        limits = data.percentiles((self.low, self.high), by_feature=True)  # (2, D)
        self.limits = limits.float().to(head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the energy of the logits of features limited from above and dropped below, (B,)."""
        return energy(head_logits(head, h.minimum(self.limits[1]).masked_fill(h < self.limits[0], 0)))
