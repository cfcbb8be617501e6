"""Relation graph (Kim et al., 2023): how strongly a sample is tied to training samples that are predicted alike."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from .. import processes
from ..bank import SHARD, FeatureBank
from ..files import let_go
from .base import Score, unit


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
        self.bank = data.rows(lambda part: unit(part.features))
        self.predictions = data.rows(lambda part: part.logits.softmax(1))
        self.spread = data.is_spread
        return self.to(head.weight.device)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the sum of the ties to all training samples, (B,)."""
        f, p, size = unit(h), z.softmax(1), len(self.bank) if torch.compiler.is_compiling() else SHARD
        tiles = zip(self.bank.split(size), self.predictions.split(size), strict=True)
        sums = torch.stack([self._ties(f, p, *tile) for tile in tiles])  # (tiles, B)
        if self.spread:  # those of all processes, in the order of the training samples
            sums = torch.cat(processes.gathered(sums[: len(self.bank)].cpu())).to(h.device)  # none of an empty share
        return sums.sum(0)

    def _ties(self, f: Tensor, p: Tensor, bank: Tensor, predictions: Tensor) -> Tensor:
        """Return the sum of the ties to some training samples, (B,)."""
        ties = (f @ bank.t()).relu_().mul_(p @ predictions.t())
        ties = torch.where(ties > self.least, ties, 0)
        let_go(bank)
        let_go(predictions)
        return (ties if self.power == 1 else ties**self.power).sum(1)
