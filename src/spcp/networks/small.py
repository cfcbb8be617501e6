"""Small networks: for digits, for sounds as log-mel spectrograms, and for embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from .base import Network


class Convolutions(Network):
    """3 x 3 convolutions that double their channels while they halve the picture, averaged at the end."""

    def __init__(self, num_classes: int, widths: tuple[int, ...], channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(zip((channels, *widths), widths, strict=False)):
            stride = 1 if i == 0 else 2
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.classifier = nn.Linear(widths[-1], num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the penultimate features (batch, widths[-1])."""
        return self.layers(x).mean((2, 3))


class MLP(Network):
    """A perceptron with two hidden layers."""

    def __init__(self, num_classes: int, inputs: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.classifier = nn.Linear(width, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the penultimate features (batch, width)."""
        return self.layers(x)


def cnn(num_classes: int, *, width: int = 16, channels: int = 1) -> Convolutions:
    """Build four convolutions with 8 * width features, for digits of 28 x 28 pixels."""
    return Convolutions(num_classes, (width, 2 * width, 4 * width, 8 * width), channels)


def audio_cnn(num_classes: int, *, width: int = 16, channels: int = 1) -> Convolutions:
    """Build five convolutions with 16 * width features, for log-mel spectrograms of any length."""
    return Convolutions(num_classes, tuple(width * 2**i for i in range(5)), channels)


def mlp(num_classes: int, *, inputs: int, width: int = 256) -> MLP:
    """Build a perceptron with two hidden layers, for embeddings (batch, inputs)."""
    return MLP(num_classes, inputs, width)
