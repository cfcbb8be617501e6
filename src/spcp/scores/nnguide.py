"""NNGuide (Park et al., 2023): energy, guided by how close confident training samples are."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank, Part
from ..moments import Rows
from .base import Score, energy, unit
from .knn import top_similarities

LEAST = 200  # guides: a share of a small training set would leave fewer than k to choose from


def _guides(part: Part) -> Rows:
    return Rows.of(energy(part.logits)[:, None] * unit(part.features))


class NNGuide(Score):
    """`energy(z) * mean of the k largest f . (energy_i f_i)`; i runs over a `share` of the training samples.

    There are at least 200 of them, or all. The product orders samples only while energies are positive; those of a head
    that truncates much (SPCP with a large `rho_norm`) can be negative.
    """

    paper = "Nearest Neighbor Guidance for Out-of-Distribution Detection (NNGuide), ICCV 2023"
    formula = "energy(z) mean_top-k f . (energy_i f_i)"
    cost = "one pass; a matrix product of B x (share N) x D, in tiles; keeps a share of the N training features"
    ranges = {"k": (1, math.inf), "share": (1e-9, 1)}
    fitted_on = ("train",)
    state = ("bank",)
    bank: Tensor

    def __init__(self, *, k: int = 100, share: float = 0.01) -> None:
        super().__init__()
        self.k, self.share = k, share

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Keep some of the training features, scaled by their energy."""
        rows = len(data)
        rng = torch.Generator().manual_seed(0)  # data may be in an order, such as class after class
        chosen = torch.randperm(rows, generator=rng)[: max(min(LEAST, rows), round(self.share * rows))]
        self.bank = data.merged(_guides, chosen.sort().values).tensor.to(head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the energy times the mean of the k largest guided similarities, (B,)."""
        return energy(z) * top_similarities(unit(h), self.bank, min(self.k, len(self.bank))).mean(1)
