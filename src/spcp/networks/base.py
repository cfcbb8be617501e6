"""What all networks share: features (batch, D), and a linear classifier on top of them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn


class Network(nn.Module):
    """`z = classifier(forward_features(x))`; a subclass defines `forward_features`, as in timm."""

    classifier: nn.Linear

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the penultimate features (batch, D)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (batch, K)."""
        logits: Tensor = self.classifier(self.forward_features(x))
        return logits

    def begin(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Initialise from the training data, before a new run; `batches` of (x, y), prepared as for tests."""

    def get_classifier(self) -> nn.Linear:
        """Return the classifier, as timm's models do."""
        return self.classifier

    @property
    def num_features(self) -> int:
        """D, the number of features."""
        return self.classifier.in_features

    @property
    def num_classes(self) -> int:
        """K, the number of the classifier's outputs."""
        return self.classifier.out_features


def initialise(network: nn.Module) -> None:
    """Draw the weights of convolutions as He et al. (2015) do, by their fan-out."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
