"""Relation graph (Kim et al., 2023): how strongly a sample is tied to training samples that are predicted alike."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from .base import Score, chunks, unit


class Relation(Score):
    """`sum_i r_i^power, r_i = relu(f . f_i) (p . p_i)`; ties of up to `least` are left out."""

    paper = "Neural Relation Graph: A Unified Framework for Identifying Label Noise and Outlier Data, NeurIPS 2023"
    formula = "sum_i [r_i > 0.03] r_i^power, r_i = relu(f . f_i) (p . p_i)"
    cost = "one pass; matrix products of B x N x D and B x N x K, in chunks; keeps N features and predictions"
    ranges = {"power": (1e-6, math.inf)}
    sweep = {"power": (1, 2, 4, 6, 8)}
    fitted_on = ("train",)
    state = ("bank", "predictions")
    bank: Tensor
    predictions: Tensor

    def __init__(self, *, power: float = 1, least: float = 0.03) -> None:
        super().__init__()
        self.power, self.least = power, least

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Keep the features and predicted probabilities of the training samples."""
        self.bank = torch.cat([unit(h) for h, *_ in data.parts()])
        self.predictions = torch.cat([z.softmax(1) for _, z, *_ in data.parts()])
        return self.to(head.weight.device)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the sum of the ties to all training samples, (B,)."""
        sums = []
        width = len(self.bank)
        for f, p in zip(chunks(unit(h), width), chunks(z.softmax(1), width), strict=True):
            ties = (f @ self.bank.t()).relu_().mul_(p @ self.predictions.t())
            ties = torch.where(ties > self.least, ties, 0)
            sums.append((ties if self.power == 1 else ties**self.power).sum(1))
        return torch.cat(sums)
