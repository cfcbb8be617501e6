"""Noise as OOD data, for choosing hyperparameters where no other is at hand."""

from __future__ import annotations

from typing import Literal

import torch

from .errors import DataError
from .images import ImageTransform
from .sets import OOD, TensorSet, on_cpu


@on_cpu
def noise(
    kind: Literal["gaussian", "uniform"], like: TensorSet | ImageTransform, count: int = 1000, seed: int = 0
) -> TensorSet:
    """Make noise at the resolution and with the statistics of the ID data, every sample labelled OOD.

    Gaussian: every pixel `N(mean, std)` of its channel, as bytes. Uniform: every byte equally likely. For floats
    (embeddings, spectrograms): `N(mean, std)` of each feature, or uniform between its extremes.
    """
    if kind not in ("gaussian", "uniform"):
        raise DataError(f'noise is "gaussian" or "uniform", not {kind!r}')
    if isinstance(like, TensorSet) and not len(like):
        raise DataError(f"{like.name}: is empty, so noise cannot be made like it")
    rng = torch.Generator().manual_seed(seed)
    y = torch.full((count,), OOD)
    name = f"{kind} noise"
    if isinstance(like, TensorSet) and like.x.dtype != torch.uint8:
        shape = (count, *like.x.shape[1:])
        if kind == "gaussian":
            x = like.x.mean(0) + like.x.std(0, correction=0) * torch.randn(shape, generator=rng)
        else:
            low, high = like.x.amin(0), like.x.amax(0)
            x = low + (high - low) * torch.rand(shape, generator=rng)
        return TensorSet(name, x, y, split="made")
    if isinstance(like, TensorSet):
        shape = (count, *like.x.shape[1:])
        mean, std = channel_statistics(like)
    else:
        shape = (count, like.channels, like.crop, like.crop)
        mean, std = like.mean, like.std
    if kind == "uniform":
        return TensorSet(name, torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8), y, split="made")
    x = torch.randn(shape, generator=rng)
    for channel in range(shape[1]):  # in place: at 224 pixels a copy counts
        x[:, channel].mul_(255 * std[channel]).add_(255 * mean[channel])
    return TensorSet(name, x.round_().clamp_(0, 255).to(torch.uint8), y, split="made")


def channel_statistics(data: TensorSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of images in bytes, as fractions of 255.

    >>> black_and_white = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    >>> channel_statistics(TensorSet("two", black_and_white, torch.zeros(2).long()))
    ((0.5,), (0.5,))
    """
    means, deviations = [], []
    for channel in range(data.x.shape[1]):
        counts = torch.bincount(data.x[:, channel].flatten().int(), minlength=256).double()
        values = torch.arange(256, dtype=torch.float64) / 255
        mean = (counts @ values) / counts.sum()
        means.append(float(mean))
        deviations.append(float((counts @ (values - mean).square() / counts.sum()).sqrt()))
    return tuple(means), tuple(deviations)
