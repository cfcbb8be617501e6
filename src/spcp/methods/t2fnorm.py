"""T2FNorm (Regmi et al., 2024): features of unit length while training, of their own length at inference."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..networks import Network
from .base import Method, normalised


def t2fnorm_features(h: Tensor, tau: float, normalise: bool) -> Tensor:
    """`h / ||h|| / tau` in training, `h / tau` for scores."""
    return (normalised(h) if normalise else h) / tau


class T2FNorm(Method):
    """`CE(W (h / ||h|| / tau) + b, y)`.

    What goes into the classifier is scaled on its way, so everything that uses the classifier agrees.
    In training mode the features are normalised, in evaluation mode only scaled: the score is the MSP of
    `W (h / tau) + b`. The class is that of the normalised forward pass: `network.classifier(normalised(h))`.
    """

    paper = "T2FNorm: Train-time Feature Normalization for OOD Detection in Image Classification, CVPR workshops 2024"
    cost = "one pass forwards and backwards; when it scores, the head runs twice"
    detector = "msp"

    def __init__(self, *, tau: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.tau = tau

    def prepare(self, network: Network, total_steps: int) -> None:
        """Scale what goes into the classifier."""
        super().prepare(network, total_steps)

        def scale(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (t2fnorm_features(inputs[0], self.tau, module.training),)

        network.classifier.register_forward_pre_hook(scale)

    def outputs(self, network: Network, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features and logits of their own length, and the class of the normalised ones."""
        h = network.forward_features(x)
        return h, network.classifier(h), network.classifier(normalised(h)).argmax(1)

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Loss and logits."""
        z = network(x)
        return F.cross_entropy(z, y), z
