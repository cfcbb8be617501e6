"""A data set as one tensor on the device, and the last step to a network: normalisation, or the spectrogram."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from . import native
from .audio import AudioTransform, log_mel
from .images import ImageTransform, normalisation
from .inputs import Transform
from .sets import DataSet, TensorSet


class Memory:
    """A data set as one tensor on the device.

    A window of a padded image has the number `2 * place + mirrored`. On the CPU a compiled kernel crops every image of
    a batch at its window and normalises it, in one pass. Without it, and on other devices, that is one gather: row w
    of `table` lists the pixels of the padded image that window w is made of.
    """

    def __init__(self, data: DataSet, transform: Transform, train: bool, device: torch.device) -> None:
        assert isinstance(data, TensorSet)
        self.transform = transform if data.x.dtype == torch.uint8 else None  # floats are as they should be
        self.shape = tuple(data.x.shape[1:])
        self.x, self.y = data.x.contiguous().to(device), data.y.to(device)
        self.augmented = train and isinstance(self.transform, ImageTransform) and self.transform.augment == "crop"
        self.compiled = native.available() and device.type == "cpu" and self.transform is not None
        if self.augmented and not self.compiled:
            assert isinstance(transform, ImageTransform)
            self.x, self.table = self._padded(transform.padding, transform.reflects, device)
        self.rows = self.x.flatten(1)  # (N, C * H * W); whole rows are what index_select copies fastest

    def _padded(self, padding: int, reflects: bool, device: torch.device) -> tuple[Tensor, Tensor]:
        side = self.shape[1]
        if reflects:
            near = torch.arange(-padding, side + padding, device=device).abs()  # 2 1 0 1 2 ...
            near = torch.minimum(near, 2 * (side - 1) - near)
            x = self.x.index_select(2, near).index_select(3, near)
        else:
            x = F.pad(self.x, (padding,) * 4)
        pixel = torch.arange(x.shape[2] * x.shape[3], device="cpu").view(x.shape[2:])
        places = pixel.unfold(0, side, 1).unfold(1, side, 1).reshape(-1, side, side)
        return x, torch.stack([places, places.flip(2)], 1).flatten(0, 1).flatten(1).to(device)  # (windows, side * side)

    def batch(self, index: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples at `index` as the network gets them, each cropped at its window, and their labels."""
        y = self.y.index_select(0, index)
        if self.compiled:
            assert isinstance(self.transform, ImageTransform)
            scale, shift = scale_and_shift(self.transform.mean, self.transform.std, index.device)
            windows = window if self.augmented else None
            padding, reflects = self.transform.padding, self.transform.reflects
            return native.crop(self.x, index, windows, padding, scale, shift, reflects=reflects), y
        x = self.rows.index_select(0, index)
        if self.augmented:
            pixels = self.table.index_select(0, window)[:, None]  # (B, 1, side * side)
            x = x.view(len(x), self.shape[0], -1).gather(2, pixels.expand(-1, self.shape[0], -1))
        return finish(x.view(-1, *self.shape), self.transform), y


def finish(x: Tensor, transform: Transform) -> Tensor:
    """Make what the network gets: bytes as `(x / 255 - mean) / std`, waveforms as spectrograms, floats as they are."""
    if isinstance(transform, AudioTransform) and x.ndim == 2:
        return log_mel(x, transform)
    if x.dtype != torch.uint8:
        return x
    assert isinstance(transform, ImageTransform)
    scale, shift = scale_and_shift(transform.mean, transform.std, x.device)
    if native.available() and x.device.type == "cpu":
        return native.crop(x.contiguous(), None, None, 0, scale, shift)
    return x.to(torch.float32).mul_(scale).sub_(shift)


@functools.lru_cache
def scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return `normalisation` as tensors, made once."""
    scale, shift = (torch.from_numpy(array).to(device) for array in normalisation(mean, std))
    return scale, shift
