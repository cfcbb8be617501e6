"""ReAct (Sun et al., 2021): features are bounded from above."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..features import Features
from .base import Score, energy, head_logits


class ReAct(Score):
    """Energy of the logits of `min(h, c)`; c is a percentile of all features of the validation set."""

    paper = "ReAct: Out-of-distribution Detection With Rectified Activations, NeurIPS 2021"
    formula = "logsumexp(W min(h, c) + b)"
    cost = "one pass; the head once more; keeps one number"
    reads = "head"
    sweep = {"percentile": (85.0, 90.0, 95.0, 99.0)}  # noqa: RUF012
    fitted_on = "val"
    state = ("c",)
    rows = 4096
    c: Tensor

    def __init__(self, *, percentile: float = 90.0) -> None:
        super().__init__()
        self.percentile = percentile

    def fit(self, data: Features, head: nn.Linear) -> Self:
        """Learn the bound."""
        self.c = torch.tensor(data.percentile(self.percentile), device=head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Scores (B,)."""
        return energy(head_logits(head, h.minimum(self.c)))
