"""fDBD (Liu and Qin, 2024): how far the decision boundaries are, for a sample this far from the mean."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from .base import Score


class FDBD(Score):
    """`sum_c |z_c - z_max| / ||w_c - w_max|| / ||h - mu||`"""

    paper = "Fast Decision Boundary based Out-of-Distribution Detector (fDBD), ICML 2024"
    formula = "sum_c |z_c - z_max| / ||w_c - w_max|| / ||h - mu||"
    cost = "one pass; sums over B x K logits and B x D features; keeps K x K distances"
    reads = "weights"
    fitted_on = ("train",)
    state = ("mean", "gaps")
    mean: Tensor
    gaps: Tensor  # (K, K)

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Compute the mean feature, and the distances between the weights of classes."""
        W = head.weight.detach().double()
        gaps = torch.cdist(W, W, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(1)  # 0 / 1 there
        self.gaps = gaps.clamp(min=torch.finfo(torch.float32).tiny).float()
        self.mean = data.moments().whole_mean.float()
        return self.to(head.weight.device)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the mean-scaled sum of distances to the decision boundaries, (B,)."""
        top, predicted = z.max(1)
        away = (h - self.mean).norm(dim=1).clamp(min=torch.finfo(h.dtype).tiny)
        distances = ((top[:, None] - z) / self.gaps[predicted]).sum(1)
        return (distances / away).clamp(max=torch.finfo(h.dtype).max)  # at the mean itself
