"""NCI (Liu and Qin, 2025): how close a feature is to the weight of its class, seen from the mean."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from .base import Score


class NCI(Score):
    """`w_c . (h - mu) / ||h - mu|| + alpha ||h||_1`; c is the predicted class."""

    paper = "Detecting Out-of-Distribution through the Lens of Neural Collapse (NCI), CVPR 2025"
    formula = "w_c . (h - mu) / ||h - mu|| + alpha ||h||_1"
    cost = "one pass; sums over B x D features; keeps D numbers"
    reads = "weights"
    sweep = {"alpha": (0.0001, 0.001, 0.01, 0.1)}
    fitted_on = ("train",)
    state = ("mean",)
    mean: Tensor

    def __init__(self, *, alpha: float = 0.0001) -> None:
        super().__init__()
        self.alpha = alpha

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Compute the mean feature."""
        self.mean = data.moments().whole_mean.float().to(head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return `w_c . (h - mu) / ||h - mu|| + alpha ||h||_1`, (B,)."""
        away = h - self.mean
        w = head.weight.detach()[z.argmax(1)]
        return (w * away).sum(1) / away.norm(dim=1).clamp(min=torch.finfo(h.dtype).tiny) + self.alpha * h.abs().sum(1)
