"""SHE (Zhang et al., 2023): does a sample look like what its class stores?"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank, Part, class_of
from ..moments import Sum
from .base import Score, sums_by_class


def _correct(part: Part) -> Sum:
    right = part.logits.argmax(1) == class_of(part)
    return sums_by_class(part.features[right], part.logits[right])


class SHE(Score):
    """`h . m_c`; m_c is the mean feature of the predicted class's correctly classified training samples."""

    paper = "Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization (SHE), ICLR 2023"
    formula = "h . m_c, c = argmax z"
    cost = "one pass; a sum over B x D features; keeps K x D means"
    fitted_on = ("train",)
    state = ("means",)
    means: Tensor  # (K, D)

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Compute the means; a class that is never predicted correctly stores the mean of all its samples."""
        sums, count = data.merged(_correct).values
        means = torch.where(count[:, None] > 0, sums / count.clamp(min=1)[:, None], data.moments().mean)
        self.means = means.float().to(head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return `h . m_c` with the predicted class c, (B,)."""
        return (h * self.means[z.argmax(1)]).sum(1)
