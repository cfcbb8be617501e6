"""SCALE (Xu et al., 2024): a sample is scaled by how much of it lies in its largest features."""

from __future__ import annotations

from torch import Tensor, nn

from .ash import survivors
from .base import Score, energy, exp_ratio, head_logits


def scale(h: Tensor, percentile: float) -> Tensor:
    """Return `h exp(sum(h) / sum(its k largest))`; assumes h >= 0."""
    top = h.topk(survivors(h.shape[1], percentile), 1, sorted=False).values
    return h * exp_ratio(h.sum(1, keepdim=True), top.sum(1, keepdim=True))


class SCALE(Score):
    """The energy of the logits of scaled features."""

    paper = "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement (SCALE), ICLR 2024"
    formula = "logsumexp(W h exp(sum h / sum top-k h) + b)"
    cost = "one pass; the largest of B x D features, and the head once more; keeps nothing"
    reads = "head"
    ranges = {"percentile": (1, 100)}
    sweep = {"percentile": (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    def __init__(self, *, percentile: float = 85.0) -> None:
        super().__init__()
        self.percentile = percentile

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the energy of the logits of scaled features, (B,)."""
        return energy(head_logits(head, scale(h, self.percentile)))
