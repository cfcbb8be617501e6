"""MSP: the largest probability."""

from __future__ import annotations

from torch import Tensor, nn

from .base import Score


def msp(z: Tensor) -> Tensor:
    """Return `max_k p_k`, (B,)."""
    return z.softmax(1).amax(1)


class MSP(Score):
    """The maximum softmax probability."""

    paper = "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks, ICLR 2017"
    formula = "max_k p_k"
    cost = "one pass; a softmax of B x K logits; keeps nothing"

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return `max_k p_k`, (B,)."""
        return msp(z)
