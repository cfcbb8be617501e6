"""What all networks here share: features (batch, D), and a linear classifier on top of them."""

from __future__ import annotations

from torch import Tensor, nn


class Network(nn.Module):
    """`classifier(features(x))`; a subclass defines `features`."""

    classifier: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """Penultimate features (batch, D)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, K)."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


def initialise(network: nn.Module) -> None:
    """Weights of convolutions as He et al. (2015) draw them, by what goes out."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
