"""KNN (Sun et al., 2022): the distance to the k-th nearest training sample, on the sphere."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..features import Features
from .base import Score, chunks, unit


def kth_similarity(f: Tensor, bank: Tensor, k: int) -> Tensor:
    """The k-th largest of `f . bank_i`, (B,)."""
    parts = [(own @ bank.t()).topk(k, 1, sorted=False).values.amin(1) for own in chunks(f, len(bank))]
    return torch.cat(parts)


class KNN(Score):
    """Minus the squared distance; on the sphere that is `2 f . f_(k) - 2`."""

    paper = "Out-of-Distribution Detection with Deep Nearest Neighbors (KNN), ICML 2022"
    formula = "-||f - f_(k)||^2, f = h / ||h||"
    sweep = {"k": (50, 100, 200, 500, 1000)}  # noqa: RUF012
    fitted_on = "train"
    state = ("bank",)
    bank: Tensor

    def __init__(self, *, k: int = 50) -> None:
        super().__init__()
        self.k = k

    def fit(self, data: Features, head: nn.Linear) -> Self:
        """Keep the training samples."""
        self.bank = torch.cat([unit(h) for h, *_ in data.parts()]).to(head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Scores (B,)."""
        return 2 * kth_similarity(unit(h), self.bank, min(self.k, len(self.bank))) - 2
