"""WideResNet-28-10 (Zagoruyko and Komodakis, 2016), for 32 x 32 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import PreactivationNetwork


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, each after a normalisation and a ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        out = torch.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(self.dropout(torch.relu(self.bn2(out))))
        return out + shortcut


class WideResNet(PreactivationNetwork):
    """A WideResNet of `depth` layers, `16 * width` channels at first and `64 * width` features."""

    def __init__(self, num_classes: int, depth: int, width: int, channels: int, dropout: float) -> None:
        stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        blocks, inputs = [], 16
        for outputs, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for i in range((depth - 4) // 6):
                blocks.append(Block(inputs, outputs, stride if i == 0 else 1, dropout))
                inputs = outputs
        super().__init__(stem, blocks, inputs, num_classes)


def wideresnet28(num_classes: int, *, width: int = 10, channels: int = 3, dropout: float = 0.0) -> WideResNet:
    """Build WideResNet-28-`width`: 36 479 194 parameters at width 10 with 10 classes.

    >>> sum(p.numel() for p in wideresnet28(10).parameters())
    36479194
    """
    return WideResNet(num_classes, 28, width, channels, dropout)
