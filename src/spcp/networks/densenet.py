"""DenseNet-BC-100-12 (Huang et al., 2017), for 32 x 32 pixels; the paper calls it DenseNet-101."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import PreactivationNetwork


class Layer(nn.Module):
    """A 1 x 1 and a 3 x 3 convolution, whose `growth` channels are added to what came in."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, inputs + growth, H, W)."""
        out = self.conv1(torch.relu(self.bn1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.bn2(out)))], 1)


class Transition(nn.Module):
    """A 1 x 1 convolution to fewer channels, and pooling to half the resolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / 2, W / 2)."""
        return nn.functional.avg_pool2d(self.conv(torch.relu(self.bn(x))), 2)


class DenseNet(PreactivationNetwork):
    """Three dense blocks of `layers` layers each."""

    def __init__(self, num_classes: int, layers: int, growth: int, channels: int) -> None:
        stem = nn.Conv2d(channels, 2 * growth, 3, 1, 1, bias=False)
        blocks: list[nn.Module] = []
        inputs = 2 * growth
        for block in range(3):
            for _ in range(layers):
                blocks.append(Layer(inputs, growth))
                inputs += growth
            if block < 2:
                blocks.append(Transition(inputs, inputs // 2))
                inputs //= 2
        super().__init__(stem, blocks, inputs, num_classes)


def densenet100(num_classes: int, *, width: int = 12, channels: int = 3) -> DenseNet:
    """Build DenseNet-BC-100 that grows by `width`: 769 162 parameters at 12 with 10 classes.

    >>> sum(p.numel() for p in densenet100(10).parameters())
    769162
    """
    return DenseNet(num_classes, 16, width, channels)
