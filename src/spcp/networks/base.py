"""What all networks share: features (batch, D), and a linear classifier on top of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
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


class PreactivationNetwork(Network):
    """A stem, blocks of layers that each begin with their normalisation, and one last normalisation.

    The features are `h = mean over all places of relu(bn(blocks(stem(x))))`.
    """

    def __init__(self, stem: nn.Module, blocks: Iterable[nn.Module], num_features: int, num_classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(num_features)
        self.classifier = nn.Linear(num_features, num_classes)
        initialise(self)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the penultimate features (batch, num_features)."""
        return torch.relu(self.bn(self.blocks(self.stem(x)))).mean((2, 3))


def initialise(network: nn.Module) -> None:
    """Draw the weights of convolutions as He et al. (2015) do, by their fan-out."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
