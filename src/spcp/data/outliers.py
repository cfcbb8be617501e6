"""Outliers made from in-distribution samples, to try a detector on where no OOD data is at hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .noises import noise
from .sets import OOD, TensorSet, on_cpu

GRID = 4  # cells of a shuffled image, each way
TOGETHER = 64  # images, so that those of 224 pixels fit into memory as floats


@on_cpu
def proxies(like: TensorSet, count: int = 200, seed: int = 0) -> dict[str, TensorSet]:
    """Make several kinds of outliers from up to `count` ID samples, every one labelled OOD.

    - "noise": Gaussian noise with the statistics of the ID data, the paper's.
    - "blended": the mean of two samples of different classes; only where there are labels.
    - Images and spectrograms (N, C, H, W): "shuffled", a grid of 4 x 4 cells in another order; "inverted", mirrored at
      the mean, or 255 less every byte; "scrambled", the amplitudes of the Fourier transform with the phases of noise.
    - Vectors (N, D): "permuted", every feature of another sample; "extrapolated", away from a sample of another class
      by as much as there is between them.
    """
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(like), generator=rng)[:count]
    x, y = like.x[rows], like.y[rows]
    partner = _of_another_class(y)
    mixed = partner >= 0
    made: dict[str, Callable[[], Tensor]] = {}
    if mixed.any():
        made["blended"] = lambda: _in_parts(lambda a, b: (a + b) / 2, x[mixed], x[partner[mixed]])
    if x.ndim == 4:
        made["shuffled"] = lambda: _in_parts(lambda part: _shuffled(part, rng), x)
        made["inverted"] = lambda: 255 - x if x.dtype == torch.uint8 else 2 * x.mean(0) - x
        made["scrambled"] = lambda: _in_parts(lambda part: _scrambled(part, rng), x)
    else:
        made["permuted"] = lambda: _permuted(x, rng)
        if mixed.any():
            made["extrapolated"] = lambda: 2 * x[mixed] - x[partner[mixed]]
    sets = {"noise": noise("gaussian", like, count=len(rows), seed=seed)}
    for name, make in made.items():
        samples = make()
        sets[name] = TensorSet(name, samples, torch.full((len(samples),), OOD), split="made")
    return sets


def _in_parts(change: Callable[..., Tensor], *x: Tensor) -> Tensor:
    """Change samples as floats, some at a time, and return what they were: bytes or floats."""
    parts = [change(*(tensor.float() for tensor in part)) for part in zip(*(t.split(TOGETHER) for t in x), strict=True)]
    if x[0].dtype != torch.uint8:
        return torch.cat(parts)
    return torch.cat([part.round().clamp(0, 255).to(torch.uint8) for part in parts])


def _of_another_class(y: Tensor) -> Tensor:
    """Return the index of a sample of another class for each sample; -1 where none is found, or without labels.

    >>> _of_another_class(torch.tensor([0, 1, 0, 1, -1]))
    tensor([ 1,  0,  3,  2, -1])
    """
    labelled = (y >= 0).nonzero()[:, 0]
    order = labelled[y[labelled].argsort(stable=True)]
    partner = torch.full_like(y, -1)
    other = order.roll(-(len(order) // 2))  # half of the way round, class after class
    differs = y[order] != y[other]
    partner[order[differs]] = other[differs]
    return partner


def _shuffled(x: Tensor, rng: torch.Generator) -> Tensor:
    """Put the cells of a grid in another order, for each image another; a remainder at the edge stays."""
    n, channels = x.shape[:2]
    high, wide = (max(1, side // GRID) for side in x.shape[2:])
    down, across = min(GRID, x.shape[2]), min(GRID, x.shape[3])
    inner = x[:, :, : down * high, : across * wide].reshape(n, channels, down, high, across, wide)
    cells = inner.permute(0, 2, 4, 1, 3, 5).reshape(n, down * across, channels, high, wide)
    order = torch.rand(n, down * across, generator=rng).argsort(1)
    cells = cells[torch.arange(n)[:, None], order].view(n, down, across, channels, high, wide)
    out = x.clone()
    out[:, :, : down * high, : across * wide] = cells.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    return out


def _scrambled(x: Tensor, rng: torch.Generator) -> Tensor:
    """Keep the amplitudes of the Fourier transform, and take the phases of noise, alike in all channels."""
    spectrum = torch.fft.rfft2(x)
    phases = torch.fft.rfft2(torch.randn(len(x), 1, *x.shape[2:], generator=rng)).angle()
    phases[:, :, 0, 0] = 0  # the mean stays
    scrambled: Tensor = torch.fft.irfft2(torch.polar(spectrum.abs(), phases.expand_as(spectrum)), s=x.shape[2:])
    return scrambled


def _permuted(x: Tensor, rng: torch.Generator) -> Tensor:
    """Take every feature from another sample, so that each is distributed as before and they are independent."""
    flat = x.flatten(1)
    order = torch.rand(flat.shape, generator=rng).argsort(0)
    return flat.gather(0, order).view_as(x)
