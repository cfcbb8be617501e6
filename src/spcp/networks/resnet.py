"""ResNet-18 (He et al., 2016), for 32 x 32 and for 224 x 224 pixels; and a small one for a CPU."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from .base import Network, initialise


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet18(Network):
    """A ResNet-18 of `width` channels at first and 8 * width features; `large`: the stem for 224 x 224 pixels."""

    def __init__(self, num_classes: int, width: int = 64, channels: int = 3, large: bool = False) -> None:
        super().__init__()
        if large:
            stem: list[nn.Module] = [nn.Conv2d(channels, width, 7, 2, 3, bias=False)]
        else:
            stem = [nn.Conv2d(channels, width, 3, 1, 1, bias=False)]
        stem += [nn.BatchNorm2d(width), nn.ReLU()]
        if large:
            stem.append(nn.MaxPool2d(3, 2, 1))
        self.stem = nn.Sequential(*stem)
        blocks, inputs = [], width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, num_classes)
        initialise(self)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the penultimate features (batch, 8 * width)."""
        return self.blocks(self.stem(x)).mean((2, 3))


class ResNet10(Network):
    """One block a stage, from half the resolution on, and a 1 x 1 convolution to as many features as ResNet-18 has."""

    def __init__(self, num_classes: int, width: int, channels: int, num_features: int) -> None:
        super().__init__()
        self.stem = _convolution(channels, width, 3, 2)
        widths = (width, width, 2 * width, 4 * width, 8 * width)
        self.blocks = nn.Sequential(
            *(Block(inputs, outputs, 2 if i else 1) for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)))
        )
        self.last = _convolution(8 * width, num_features, 1, 1)
        self.classifier = nn.Linear(num_features, num_classes)
        initialise(self)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the penultimate features (batch, num_features)."""
        return self.last(self.blocks(self.stem(x))).mean((2, 3))


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def resnet10(num_classes: int, *, width: int = 24, channels: int = 3) -> ResNet10:
    """Build a network for 32 x 32 pixels on a CPU: 512 features, as ResNet-18, at a small part of its cost.

    >>> sum(p.numel() for p in resnet10(10).parameters())
    795010
    """
    return ResNet10(num_classes, width, channels, 512)


def resnet18(num_classes: int, *, width: int = 64, channels: int = 3) -> ResNet18:
    """Build ResNet-18 for 32 x 32 pixels: 11 173 962 parameters with 10 classes.

    >>> sum(p.numel() for p in resnet18(10).parameters())
    11173962
    """
    return ResNet18(num_classes, width, channels)


def resnet18_224(num_classes: int, *, width: int = 64, channels: int = 3) -> ResNet18:
    """Build ResNet-18 for 224 x 224 pixels: 11 689 512 parameters with 1 000 classes.

    >>> sum(p.numel() for p in resnet18_224(1000).parameters())
    11689512
    """
    return ResNet18(num_classes, width, channels, large=True)
