"""MaxLogit: the largest logit."""

from __future__ import annotations

from torch import Tensor, nn

from .base import Score


def maxlogit(z: Tensor) -> Tensor:
    """Return `max_k z_k`, (B,)."""
    return z.amax(1)


class MaxLogit(Score):
    """The largest logit."""

    paper = "Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022"
    formula = "max_k z_k"
    cost = "one pass; the largest of B x K logits; keeps nothing"

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return `max_k z_k`, (B,)."""
        return maxlogit(z)
