"""Batches: from a tensor on the device for small samples, from worker processes for large images.

Everything random follows from (seed, epoch, position): a run resumes in the middle of an epoch exactly where it
stopped, and what is trained on does not depend on the number of processes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, default_collate

from ..progress import track
from . import native
from .audio import AudioTransform, fixed_length, log_mel
from .cache import cached, key_of, raw
from .errors import DataError, need
from .folders import Bad
from .images import ImageTransform, as_image, eval_pixels, train_pixels
from .sets import DataSet, FileSet, ItemSet, TensorSet, as_set, on_cpu, take

Transform = ImageTransform | AudioTransform | None

IN_MEMORY_SIDE = 64  # images up to this size are prepared once and kept as bytes,
IN_MEMORY_BYTES = 4 << 30  # if they are not too many


class Loader:
    """Batches (x, y) of a data set, prepared by the benchmark's transform.

    `Loader(data, transform)` goes through the data in order, by the test transform: for evaluation, and for what
    detectors fit. With `train=True` it is shuffled and augmented, anew in every epoch.

    Args:
        data: a set, or anything `as_set` takes.
        transform: the benchmark's. Bytes and files need one; floats are passed on as they are.
        batch_size: of all processes together; with `world_size` processes each gets its share of every batch.
        train: shuffle and augment. Across processes the last batch is cut to equal shares.
        seed: of order and augmentation.
        device: where batches, and data that fits in memory, live.
        rank: the number of this process.
        world_size: how many there are.
        workers: processes that decode (default: one for each core, at most 8); 0 decodes in this one.
        bad: "raise" stops at a file that cannot be read; "skip" leaves out all of those and puts them into `skipped`,
            for which every file is decoded once, in advance.
        cache: keep files that were prepared once, as bytes, in the user's cache folder.
        views: in training, how often each sample of a batch comes, augmented differently: x is (views * B, ...), first
            all samples once, then all again; y is (B,).
    """

    def __init__(
        self,
        data: Any,
        transform: Transform = None,
        *,
        batch_size: int = 128,
        train: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
        rank: int = 0,
        world_size: int = 1,
        workers: int | None = None,
        bad: Bad = "raise",
        cache: bool = True,
        views: int = 1,
    ) -> None:
        if world_size < 1 or seed < 0:
            raise DataError(f"world_size must be 1 or more and seed 0 or more, not {world_size} and {seed}")
        if batch_size < 1 or batch_size % world_size:
            raise DataError(f"batch_size {batch_size} must be a positive multiple of world_size {world_size}")
        if not 0 <= rank < world_size:
            raise DataError(f"rank {rank} must be from 0 to {world_size - 1}, one less than world_size")
        if workers is not None and workers < 0:
            raise DataError(f"workers must be 0 or more, not {workers}")
        data = as_set(data)
        check_fit(data, transform, bad)
        if not len(data):
            raise DataError(f"{data.name}: is empty; nothing can be loaded from it")
        self.skipped: dict[str, str] = {}  # what could not be read, and why
        self.workers = default_workers() if workers is None else workers
        self.transform, self.batch_size, self.train, self.seed = transform, batch_size, train, seed
        self.device, self.rank, self.world_size, self.bad = torch.device(device), rank, world_size, bad
        self.views = views if train else 1
        self.next_epoch = 0  # which epoch `for x, y in loader` goes through next; may be set
        if isinstance(data, FileSet) and bad == "skip":
            data, self.skipped = _sorted_out(data, self.workers, cache)
        in_memory = fits_in_memory(data, transform, train)
        if in_memory:
            data = prepare(data, transform, workers=self.workers, cache=cache)
        self.data: DataSet = data
        self._memory = _Memory(data, transform, train, self.device) if in_memory else None

    def __len__(self) -> int:
        """Batches in an epoch (in evaluation, of all processes together)."""
        full, rest = divmod(len(self.data), self.batch_size)
        return full + (rest >= (self.world_size if self.train else 1))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch; in training the next one each time."""
        epoch, self.next_epoch = self.next_epoch, self.next_epoch + self.train
        return self.epoch(epoch)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from the `start`-th on."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise DataError(f"epoch {epoch} from batch {start}: epochs count from 0, and have batches 0 to {len(self)}")
        order, windows = self._plan(epoch)
        shares = [self._share(batch) for batch in range(start, len(self))]
        shares = [share for share in shares if share.start < share.stop]  # evaluation: the rest may not go round
        if self._memory is not None:
            order, windows = order.to(self.device), windows.to(self.device)
            for share in shares:
                views = [self._memory.batch(order[share], own[share]) for own in windows]
                yield (torch.cat([x for x, _ in views]) if len(views) > 1 else views[0][0]), views[0][1]
            return
        if not shares:
            return
        decoder = _Decoder(self.data, self.transform, self.train, self.seed)
        for x, y, problems in _stream(decoder, _Keys(order, epoch, shares, self.views), self.workers, self.device):
            if problems:
                raise DataError(problems[0][1])
            y = y[: len(y) // self.views]
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            yield finish(x, self.transform), y

    @on_cpu
    def order(self, epoch: int = 0) -> Tensor:
        """Which samples this process sees in an epoch, in order (by index in `data`)."""
        order, _ = self._plan(epoch)
        return torch.cat([order[:0], *(order[self._share(batch)] for batch in range(len(self)))])

    @on_cpu
    def _plan(self, epoch: int) -> tuple[Tensor, Tensor]:
        """For every position of an epoch: which sample (N,), and which window of it for each view (views, N)."""
        n = len(self.data)
        if not self.train:
            return torch.arange(n), torch.zeros(1, n, dtype=torch.int64)
        (state,) = np.random.SeedSequence((self.seed, epoch)).generate_state(1, np.uint64)
        rng = torch.Generator().manual_seed(int(state >> np.uint64(1)))
        order, windows = torch.randperm(n, generator=rng), torch.zeros(self.views, n, dtype=torch.int64)
        if isinstance(self.transform, ImageTransform):
            windows = 2 * torch.randint((2 * self.transform.padding + 1) ** 2, (self.views, n), generator=rng)
            if self.transform.flip:
                windows += torch.randint(2, (self.views, n), generator=rng)
        return order, windows

    def _share(self, batch: int) -> slice:
        """Positions of this process in a batch."""
        start = batch * self.batch_size
        size = min(self.batch_size, len(self.data) - start)
        if self.train:
            size -= size % self.world_size
        first, last = (start + size * r // self.world_size for r in (self.rank, self.rank + 1))
        return slice(first, last)


def default_workers() -> int:
    """One for each core that this process may use, at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores)


def check_fit(data: DataSet, transform: Transform, bad: Bad) -> None:
    """Say early what would fail late: a transform for other data, or none for data that needs one."""
    if bad not in ("raise", "skip"):
        raise DataError(f'bad must be "raise" or "skip", not {bad!r}')
    if not isinstance(transform, ImageTransform | AudioTransform | None):
        raise DataError(f"transform must be an ImageTransform or an AudioTransform, not a {type(transform).__name__}")
    kind = data.kind if isinstance(data, FileSet) else "image" if isinstance(data, TensorSet) else None
    if isinstance(data, TensorSet) and data.x.dtype != torch.uint8:
        return
    if kind and transform is None:
        raise DataError(
            f"{data.name}: {kind}s need a transform, such as the benchmark's: Loader(data, benchmark.transform)"
        )
    if kind and isinstance(transform, ImageTransform) != (kind == "image"):
        raise DataError(f"{data.name}: {kind}s do not go with an {type(transform).__name__}")


def fits_in_memory(data: DataSet, transform: Transform, train: bool = False) -> bool:
    """Whether a set lives as one tensor: small images and sounds, once decoded. Somebody else's items may augment."""
    if isinstance(data, TensorSet) and data.x.dtype != torch.uint8:
        return True
    if isinstance(data, ItemSet) or (
        train and isinstance(transform, ImageTransform) and transform.augment == "resized_crop"
    ):
        return False
    if isinstance(data, TensorSet) or isinstance(transform, AudioTransform):
        return True
    assert isinstance(transform, ImageTransform)
    size = len(data) * transform.channels * transform.crop**2
    return transform.crop <= IN_MEMORY_SIDE and size <= IN_MEMORY_BYTES


# --- in memory --------------------------------------------------------------------------------------------------------


def _augmented(transform: Transform, train: bool) -> bool:
    """Whether kept images are cut at random places."""
    return train and isinstance(transform, ImageTransform) and transform.augment == "crop"


class _Memory:
    """A data set as one tensor on the device.

    A window of a padded image is numbered `2 * place + mirrored`. On the CPU a compiled kernel cuts every image of a
    batch at its own and normalises it, in one pass. Without it, and on other devices, that is one gather: row w of
    `table` lists the pixels of the padded image that window w is made of.
    """

    def __init__(self, data: DataSet, transform: Transform, train: bool, device: torch.device) -> None:
        assert isinstance(data, TensorSet)
        self.transform = transform if data.x.dtype == torch.uint8 else None  # floats are as they should be
        self.shape = tuple(data.x.shape[1:])
        self.x, self.y = data.x.contiguous().to(device), data.y.to(device)
        self.augmented = _augmented(self.transform, train)
        self.compiled = native.available() and device.type == "cpu" and self.transform is not None
        if self.augmented and not self.compiled:
            assert isinstance(transform, ImageTransform)
            self.x, self.table = self._padded(transform.padding, device)
        self.rows = self.x.flatten(1)  # (N, C * H * W); whole rows are what index_select copies fastest

    def _padded(self, padding: int, device: torch.device) -> tuple[Tensor, Tensor]:
        side = self.shape[1]
        x = F.pad(self.x, (padding,) * 4)
        pixel = torch.arange(x.shape[2] * x.shape[3], device="cpu").view(x.shape[2:])
        places = pixel.unfold(0, side, 1).unfold(1, side, 1).reshape(-1, side, side)
        return x, torch.stack([places, places.flip(2)], 1).flatten(0, 1).flatten(1).to(device)  # (windows, side * side)

    def batch(self, index: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        y = self.y.index_select(0, index)
        if self.compiled:
            assert isinstance(self.transform, ImageTransform)
            scale, shift = scale_and_shift(self.transform.mean, self.transform.std, index.device)
            windows = window if self.augmented else None
            return native.cut(self.x, index, windows, self.transform.padding, scale, shift), y
        x = self.rows.index_select(0, index)
        if self.augmented:
            pixels = self.table.index_select(0, window)[:, None]  # (B, 1, side * side)
            x = x.view(len(x), self.shape[0], -1).gather(2, pixels.expand(-1, self.shape[0], -1))
        return finish(x.view(-1, *self.shape), self.transform), y


def finish(x: Tensor, transform: Transform) -> Tensor:
    """What the network gets: bytes as `(x / 255 - mean) / std`, waveforms as spectrograms, floats as they are."""
    if isinstance(transform, AudioTransform) and x.ndim == 2:
        return log_mel(x, transform)
    if x.dtype != torch.uint8:
        return x
    assert isinstance(transform, ImageTransform)
    scale, shift = scale_and_shift(transform.mean, transform.std, x.device)
    if native.available() and x.device.type == "cpu":
        return native.cut(x.contiguous(), None, None, 0, scale, shift)
    return x.to(torch.float32).mul_(scale).sub_(shift)


@functools.lru_cache
def scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """`x * scale - shift = (x / 255 - mean) / std`, each (C, 1, 1)."""
    means, deviations = (torch.tensor(v, dtype=torch.float32, device=device).view(-1, 1, 1) for v in (mean, std))
    return 1 / (255 * deviations), means / deviations


# --- from worker processes --------------------------------------------------------------------------------------------

_Key = tuple[int, ...]  # index, epoch, position, and from the second view on its number
_Batch = tuple[Tensor, Tensor, list[tuple[str, str]]]  # samples, labels, (what, why) of those that cannot be read


@dataclass(frozen=True)
class _Keys:
    """The keys of every batch, made as they are asked for: an epoch of ImageNet has more than a million."""

    order: Tensor
    epoch: int
    shares: list[slice]
    views: int = 1

    def __len__(self) -> int:
        return len(self.shares)

    def __iter__(self) -> Iterator[list[_Key]]:
        for share in self.shares:
            own = list(zip(self.order[share].tolist(), range(share.start, share.stop), strict=True))
            yield [(i, self.epoch, p, *([v] * (v > 0))) for v in range(self.views) for i, p in own]


class _Decoder(Dataset[_Batch]):
    """Decodes a batch at a time, in whichever process it is called. Bad files come back as words, not as exceptions."""

    def __init__(self, data: DataSet, transform: Transform, train: bool, seed: int) -> None:
        self.data, self.transform, self.train, self.seed = data, transform, train, seed
        if isinstance(transform, ImageTransform):
            need("PIL.Image", "pillow").preinit()  # here, so that not every worker has to

    def __getitems__(self, keys: list[_Key]) -> _Batch:
        samples: list[Tensor] = []
        labels, problems = [], []
        for index, *moment in keys:
            where = _where(self.data, index)
            try:
                sample, label = self.data[index]
                rng = np.random.default_rng((self.seed, *moment)) if self.train else None
                x = _decoded(sample, self.transform, rng, where)
                if samples and (x.shape, x.dtype) != (samples[0].shape, samples[0].dtype):
                    raise DataError(f"{tuple(x.shape)} is not the shape {tuple(samples[0].shape)} of others; resize it")
                samples.append(x)
                labels.append(label)
            except DataError as error:
                text = str(error)
                problems.append((where, text if where in text else f"{where}: {text}"))
        with torch.device("cpu"):
            x = default_collate(samples) if samples else torch.empty(0)  # in a worker, right into shared memory
            return x, torch.tensor(labels, dtype=torch.int64), problems


def _where(data: DataSet, index: int) -> str:
    """What to call a sample in a message."""
    return str(data.root / data.paths[index]) if isinstance(data, FileSet) else f"{data.name}, item {index}"


def _decoded(sample: Any, transform: Transform, rng: np.random.Generator | None, where: str) -> Tensor:
    """One sample of fixed shape: bytes (C, H, W), a waveform (samples,), or floats as they came."""
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


def _stream(decoder: _Decoder, batches: _Keys, workers: int, device: torch.device) -> Iterator[_Batch]:
    """Decoded batches in order. The generator keeps the loader from drawing on the global one."""
    loader: DataLoader[_Batch] = DataLoader(
        decoder,
        batch_sampler=batches,
        num_workers=min(workers, len(batches)),
        collate_fn=_unchanged,
        pin_memory=device.type == "cuda",
        generator=torch.Generator().manual_seed(0),
    )
    with torch.device("cpu"):  # torch draws a seed here, on its default device
        batches_in_order = iter(loader)
    yield from batches_in_order


def _unchanged(batch: Any) -> Any:
    return batch


@on_cpu
def prepare(
    data: Any, transform: Transform, *, workers: int | None = None, bad: Bad = "raise", cache: bool = True
) -> TensorSet:
    """The whole set in memory, by the test transform: images as bytes (N, C, crop, crop), sounds as spectrograms.

    What comes of files is kept in the cache folder, under a key of their names, sizes and times and of the transform.
    With `bad="skip"`, files that cannot be read are left out, and a warning says how many.
    """
    data = as_set(data)
    check_fit(data, transform, bad)
    if isinstance(data, TensorSet):
        if data.x.dtype != torch.uint8 or not isinstance(transform, ImageTransform):
            return data
        if data.x.shape[2:] == (transform.crop,) * 2 and transform.resize == transform.crop:
            if data.x.shape[1] == transform.channels:
                return data
            if data.x.shape[1] == 1:
                return dataclasses.replace(data, x=data.x.expand(-1, 3, -1, -1).contiguous())
    if isinstance(data, FileSet) and bad == "skip":
        data = readable(data, workers)
    how = dataclasses.replace(transform, mean=0.0, std=1.0) if isinstance(transform, AudioTransform) else transform
    if isinstance(data, FileSet) and cache:
        shape = _shape_of(data, how)
        x = cached(_key(data, how), lambda: _decode_all(data, how, workers)[0], lambda own: own.shape == shape)
        y = data.y
    else:
        x, y = _decode_all(data, how, workers)
    if isinstance(transform, AudioTransform):
        x = (x - np.float32(transform.mean)) / np.float32(transform.std)
    return TensorSet(data.name, torch.from_numpy(x), y, data.class_names, data.split)


def _shape_of(data: FileSet, transform: Transform) -> tuple[int, ...]:
    if isinstance(transform, ImageTransform):
        return (len(data), transform.channels, transform.crop, transform.crop)
    assert isinstance(transform, AudioTransform)
    return (len(data), 1, transform.mels, transform.samples // transform.hop_samples + 1)


def _decode_all(data: DataSet, transform: Transform, workers: int | None) -> tuple[np.ndarray, Tensor]:
    """Every sample by the test transform, and its label."""
    decoder, out, labels, done = _Decoder(data, transform, train=False, seed=0), np.empty(0), [], 0
    for x, y, problems in _in_order(decoder, f"preparing {data.name}", workers):
        if problems:
            raise DataError(problems[0][1])
        own = (finish(x, transform) if isinstance(transform, AudioTransform) else x).numpy()
        if not done:
            out = np.empty((len(data), *own.shape[1:]), own.dtype)  # once: a list of parts would take twice the memory
        if own.shape[1:] != out.shape[1:] or own.dtype != out.dtype:
            raise DataError(f"{data.name}: samples of shape {own.shape[1:]} and {out.shape[1:]}; make them alike")
        out[done : done + len(own)] = own
        labels.append(y)
        done += len(own)
    return out, torch.cat(labels)


def _in_order(decoder: _Decoder, what: str, workers: int | None) -> Iterator[_Batch]:
    """All samples of a set, 256 at a time; workers are worth their start for many only."""
    count = len(decoder.data)
    shares = [slice(start, min(start + 256, count)) for start in range(0, count, 256)]
    used = 0 if count <= 1024 else default_workers() if workers is None else workers
    keys = _Keys(torch.arange(count), 0, shares)
    return track(_stream(decoder, keys, used, torch.device("cpu")), what, len(shares))


@on_cpu
def readable(data: FileSet, workers: int | None = None, *, cache: bool = True) -> FileSet:
    """The set without the files that cannot be read; a warning says how many they are, and why.

    Every file is decoded once; the result is kept in the cache folder.
    """
    left, bad = _sorted_out(data, workers, cache)
    if bad:
        shown = "; ".join(list(bad.values())[:5]) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else "")
        warnings.warn(
            f"{data.name}: {len(bad)} of {len(data)} files cannot be read and are left out: {shown}", stacklevel=3
        )
    return left


def _sorted_out(data: FileSet, workers: int | None, cache: bool) -> tuple[FileSet, dict[str, str]]:
    """The files that can be read, and of the others why not."""
    transform = ImageTransform(1, 1, (0.5,), (0.5,)) if data.kind == "image" else _SHORT  # as little work as possible
    decoder = _Decoder(data, transform, train=False, seed=0)

    def build() -> np.ndarray:
        stream = _in_order(decoder, f"reading {data.name}", workers)
        wrong = {where for _, _, problems in stream for where, _ in problems}
        return np.array([_where(data, i) not in wrong for i in range(len(data))])

    fits = lambda own: own.shape == (len(data),) and own.dtype == bool  # noqa: E731
    good = cached(_key(data, None), build, fits) if cache else build()
    bad: dict[str, str] = {}
    for i in np.flatnonzero(~good).tolist():  # again, for the reasons
        bad.update(decoder.__getitems__([(i, 0, i)])[2])
    if len(bad) == len(data):
        raise DataError(
            f"{data.name}: none of its {len(data)} files can be read; the first: {next(iter(bad.values()))}"
        )
    left = [i for i in range(len(data)) if _where(data, i) not in bad]
    return cast("FileSet", take(data, left)) if bad else data, bad


_SHORT = AudioTransform(sample_rate=1000, seconds=0.1, mels=5, window=0.05)


def _key(data: FileSet, transform: Transform) -> str:
    """Of everything that the prepared bytes depend on; the last part changes when the way of preparing does."""
    files = []
    for path in data.paths:
        try:
            info = os.stat(data.root / path)
        except OSError as error:
            raise DataError(f"{data.root / path}: {error.strerror}; check the list or the folder") from error
        files.append((path, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    how: tuple[object, ...] = (transform,)
    if isinstance(transform, ImageTransform):
        how = (transform.resize, transform.crop, transform.channels, need("PIL", "pillow").__version__)
    return key_of("prepared", str(data.root.resolve()), files, how, "2")


def content_key(data: DataSet, transform: Transform, rows: range) -> str | None:
    """A short name for the contents of some rows, labels included; None for items of others, which may change."""
    if isinstance(data, TensorSet):
        part = slice(rows.start, rows.stop)
        digest = hashlib.sha256(f"{tuple(data.x.shape[1:])} {data.x.dtype}".encode())
        for tensor in (data.x[part], data.y[part]):
            digest.update(raw(tensor))
        return digest.hexdigest()[:32]
    if isinstance(data, FileSet):
        own = cast("FileSet", take(data, rows))
        return key_of(_key(own, transform), own.y.tolist())
    return None
