"""Decode samples, a batch at a time, in this process or in worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from .audio import AudioTransform, fixed_length
from .errors import DataError, need
from .images import ImageTransform, as_image, eval_pixels, train_pixels, with_channels
from .inputs import Transform
from .listing import Sample, Samples
from .sets import DataSet, FileSet

Key = tuple[Any, ...]  # index, epoch, position, and from the second view on its number; or a `Sample` alone
Batch = tuple[Any, Tensor, list[tuple[str, str]]]  # samples, labels, (what, why) of those that cannot be read


def default_workers() -> int:
    """Return one worker for each core that this process may use, at most 8; those of torchrun share the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


@dataclass(frozen=True)
class Keys:
    """The keys of every batch, made when they are needed: an epoch of ImageNet has more than a million."""

    order: Tensor
    epoch: int
    shares: list[slice]
    views: int = 1

    def __len__(self) -> int:
        return len(self.shares)

    def __iter__(self) -> Iterator[list[Key]]:
        for share in self.shares:
            pairs = list(zip(self.order[share].tolist(), range(share.start, share.stop), strict=True))
            yield [(i, self.epoch, p, *([v] * (v > 0))) for v in range(self.views) for i, p in pairs]


class Decoder(Dataset[Batch]):
    """Decode a batch, in whichever process this is called; return messages, not exceptions, for unreadable files.

    `whole` images are not prepared: a batch of them is a list of bytes (H, W, C), each of its own size.
    """

    def __init__(
        self, data: DataSet | Samples, transform: Transform, train: bool = False, seed: int = 0, *, whole: bool = False
    ) -> None:
        self.data, self.transform, self.train, self.seed, self.whole = data, transform, train, seed, whole
        if isinstance(transform, ImageTransform):
            need("PIL.Image", "pillow").preinit()  # here, so that not every worker has to

    def __getitems__(self, keys: list[Key]) -> Batch:
        samples: list[Tensor] = []
        labels, problems = [], []
        for index, *moment in keys:
            where = where_is(self.data, index)
            try:
                sample, label = self.data[index]
                rng = np.random.default_rng((self.seed, *moment)) if self.train else None
                x = (
                    _pixels(sample, self.transform, where)
                    if self.whole
                    else _decoded(sample, self.transform, rng, where)
                )
                if not self.whole and samples and (x.shape, x.dtype) != (samples[0].shape, samples[0].dtype):
                    raise DataError(f"{tuple(x.shape)} is not the shape {tuple(samples[0].shape)} of others; resize it")
                samples.append(x)
                labels.append(label)
            except DataError as error:
                text = str(error)
                problems.append((where, text if where in text else f"{where}: {text}"))
        with torch.device("cpu"):
            batch: Any = samples
            if not self.whole:
                batch = default_collate(samples) if samples else torch.empty(0)  # in a worker, right into shared memory
            return batch, torch.tensor(labels, dtype=torch.int64), problems


def where_is(data: DataSet | Samples, index: Any) -> str:
    """Return what to call a sample in a message."""
    if isinstance(index, Sample):
        return index.name
    return str(data.root / data.paths[index]) if isinstance(data, FileSet) else f"{data.name}, item {index}"


def _decoded(sample: Any, transform: Transform, rng: np.random.Generator | None, where: str) -> Tensor:
    """Return one sample in a fixed shape: bytes (C, H, W), a waveform (samples,), or floats as they came."""
    if isinstance(sample, Tensor) and sample.is_floating_point():
        return sample.to(torch.float32)
    if isinstance(sample, np.ndarray) and sample.dtype.kind == "f":
        return torch.from_numpy(sample.astype(np.float32))
    if isinstance(transform, AudioTransform):
        if isinstance(sample, dict) and {"array", "sampling_rate"} <= set(sample):  # Hugging Face
            sample = torch.as_tensor(sample["array"], dtype=torch.float32), int(sample["sampling_rate"])
        if not isinstance(sample, tuple) or len(sample) != 2:
            raise DataError(f"{where}: a sound must be a waveform and its sample rate, (tensor, int)")
        return fixed_length(torch.as_tensor(sample[0]), sample[1], transform)
    if transform is None:
        raise DataError(f"{where}: an image or bytes, which need a transform; pass one to the loader")
    image = as_image(sample, where)
    pixels = eval_pixels(image, transform) if rng is None else train_pixels(image, transform, rng)
    return torch.from_numpy(np.array(pixels.transpose(2, 0, 1), order="C"))  # a copy: Pillow's bytes are read-only


def _pixels(sample: Any, transform: Transform, where: str) -> Tensor:
    """Return an image as it is, as bytes (H, W, C)."""
    if not isinstance(transform, ImageTransform):
        raise DataError(f"{where}: the detector takes images; give some")
    pixels = np.array(with_channels(as_image(sample, where), transform.channels))
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[:, :, None])


def stream(decoder: Decoder, batches: Iterable[list[Key]], workers: int, device: torch.device) -> Iterator[Batch]:
    """Yield decoded batches in order, up to two for each worker ahead.

    The generator keeps the loader from drawing on the global one.
    """
    loader: DataLoader[Batch] = DataLoader(
        decoder,
        batch_sampler=batches,
        num_workers=min(workers, len(batches)) if isinstance(batches, Keys) else workers,
        collate_fn=_unchanged,
        pin_memory=device.type == "cuda",
        generator=torch.Generator().manual_seed(0),
    )
    with torch.device("cpu"):  # torch draws a seed here, on its default device
        batches_in_order = iter(loader)
    yield from batches_in_order


def _unchanged(batch: Any) -> Any:
    return batch
