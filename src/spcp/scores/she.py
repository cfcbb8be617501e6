"""SHE (Zhang et al., 2023): does a sample look like what its class stores?"""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from ..bank import FeatureBank, Part, class_of
from ..moments import ClassSums
from .base import Score


def _correct(part: Part) -> ClassSums:
    predictions = part.logits.argmax(1)
    right = predictions == class_of(part)
    return ClassSums.of(part.features[right], predictions[right])


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
        correct = data.merged(_correct)
        means = data.moments().mean.index_copy(0, correct.classes, correct.sums / correct.count[:, None])
        self.means = means.float().to(head.weight.device)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return `h . m_c` with the predicted class c, (B,)."""
        return (h * self.means[z.argmax(1)]).sum(1)
