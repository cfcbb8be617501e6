"""LogitNorm (Wei et al., 2022): cross-entropy of logits whose length is taken away."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ..networks import Network
from .base import Method, full_precision


def logitnorm_loss(z: Tensor, y: Tensor, tau: float = 0.04) -> Tensor:
    """Return `CE(z / ((||z|| + 1e-7) tau), y)`."""
    norm = z.norm(dim=1, keepdim=True) + 1e-7
    return F.cross_entropy(z / (norm * tau), y)


class LogitNorm(Method):
    """`CE(z / ((||z|| + 1e-7) tau), y)`; with truncation the norm is that of the truncated logits."""

    paper = "Mitigating Neural Network Overconfidence with Logit Normalization, ICML 2022"
    cost = "one pass forwards and backwards"
    score = "msp"

    def __init__(self, *, tau: float = 0.04, **options: Any) -> None:
        super().__init__(**options)
        self.tau = tau

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits, not normalised."""
        z = network(x)
        with full_precision(z):
            return logitnorm_loss(z.float(), y, self.tau), z
