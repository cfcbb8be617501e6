"""Energy: the log of the summed exponentials of the logits. The score of the paper."""

from __future__ import annotations

import math

from torch import Tensor, nn

from .base import Score, energy


class Energy(Score):
    """The (negative) energy of Liu et al. (2020)."""

    paper = "Energy-based Out-of-distribution Detection, NeurIPS 2020"
    formula = "T logsumexp(z / T)"
    cost = "one pass; a sum over B x K logits; keeps nothing"
    ranges = {"T": (1e-6, math.inf)}

    def __init__(self, *, T: float = 1.0) -> None:
        super().__init__()
        self.T = T

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return `T logsumexp(z / T)`, (B,)."""
        return energy(z, self.T)
