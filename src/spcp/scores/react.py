"""ReAct (Sun et al., 2021): features are limited from above."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from .base import Score, energy, head_logits


class ReAct(Score):
    """Energy of the logits of `min(h, c)`; c is a percentile of all features of the validation set."""

    paper = "ReAct: Out-of-distribution Detection With Rectified Activations, NeurIPS 2021"
    formula = "logsumexp(W min(h, c) + b)"
    cost = "one pass; the head once more; keeps one number"
    reads = "head"
    ranges = {"percentile": (1, 100)}
    sweep = {"percentile": (85.0, 90.0, 95.0, 99.0)}
    fitted_on = ("val",)
    state = ("c",)
    rows = 4096
    c: Tensor

    def __init__(self, *, percentile: float = 90.0) -> None:
        super().__init__()
        self.percentile = percentile

    def fit_held_out(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Set c to the percentile of all features of the validation set."""
        self.c = torch.tensor(data.percentile(self.percentile), device=head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the energy of the logits of `min(h, c)`, (B,)."""
        return energy(head_logits(head, h.minimum(self.c)))
