"""T2FNorm (Regmi et al., 2024): features of unit length while training, of any length at inference."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..networks import Network
from .base import Method, Outputs, normalised


def t2fnorm_features(h: Tensor, tau: float, normalise: bool) -> Tensor:
    """Return `h / ||h|| / tau` for training, `h / tau` for scores."""
    return (normalised(h) if normalise else h) / tau


class T2FNorm(Method):
    """`CE(W (h / ||h|| / tau) + b, y)`.

    What goes into the classifier is scaled on its way, so everything that uses the classifier agrees.
    In training mode the features are normalised, in evaluation mode only scaled: the score is the MSP of
    `W (h / tau) + b`. The class is that of the normalised forward pass: `network.classifier(normalised(h))`.
    """

    paper = "T2FNorm: Train-time Feature Normalization for OOD Detection in Image Classification, CVPR workshops 2024"
    cost = "one pass forwards and backwards; when it scores, the head runs twice"
    score = "msp"

    def __init__(self, *, tau: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.tau = tau

    def prepare(self, network: Network, total_steps: int) -> None:
        """Scale what goes into the classifier."""
        super().prepare(network, total_steps)

        def scale(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (t2fnorm_features(inputs[0], self.tau, module.training),)

        network.classifier.register_forward_pre_hook(scale)

    def outputs(self, network: Network, x: Tensor) -> Outputs:
        """Return features and logits, not normalised, and the class that normalised features give."""
        h = network.forward_features(x)
        return Outputs(h, network.classifier(h), network.classifier(normalised(h)).argmax(1))

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits."""
        z = network(x)
        return F.cross_entropy(z, y), z
