"""Cross-entropy: plain training, SPCP, SPCP with a fixed threshold, and a penalty on the classifier's weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ..networks import Network
from .base import Method


class CrossEntropy(Method):
    """`CE(z, y) + penalty * ||W||^2`; with truncation, z are the truncated logits of SPCP.

    Args:
        penalty: on the classifier's weights alone; the paper tries .1 .01 .001 .0001 .00001.
        options: `truncation`, see `Method`.
    """

    paper = "Shaping Parameter Contribution Patterns for Out-of-Distribution Detection (SPCP), AAAI 2026"
    cost = "one pass forwards and backwards"

    def __init__(self, *, penalty: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        if not penalty >= 0:
            raise ValueError(f"penalty must be at least 0, not {penalty}.")
        self.penalty = penalty

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits."""
        z = network(x)
        loss = F.cross_entropy(z, y)
        if self.penalty:
            loss = loss + self.penalty * network.classifier.weight.square().sum()
        return loss, z
