"""Prepare a whole data set once, for memory and for the cache folder, and leave out files that cannot be read."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..files import raw
from ..progress import track
from .audio import AudioTransform
from .cache import cached, key_of
from .decoding import Batch, Decoder, Keys, default_workers, stream, where_is
from .errors import DataError, need
from .folders import Bad
from .images import ImageTransform
from .inputs import Transform
from .memory import finish
from .reading import as_set
from .sets import DataSet, FileSet, ItemSet, TensorSet, on_cpu, take

OR_SKIP = ", or skip such files (bad='skip', --bad skip)"
IN_MEMORY_SIDE = 64  # images up to this size are prepared once and kept as bytes,
IN_MEMORY_BYTES = 4 << 30  # if they are not too many


@on_cpu
def prepare(
    data: Any, transform: Transform, *, workers: int | None = None, bad: Bad = "raise", cache: bool = True
) -> TensorSet:
    """Load a whole set by the test transform: images as bytes (N, C, crop, crop), sounds as spectrograms.

    Prepared files are kept in the cache folder, under a key of their names, sizes and times and of the transform.
    With `bad="skip"`, files that cannot be read are left out, with a warning.
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
        x = cached(_key(data, how), lambda: _decode_all(data, how, workers)[0], lambda x: x.shape == shape)
        y = data.y
    else:
        x, y = _decode_all(data, how, workers)
    if isinstance(transform, AudioTransform):
        x = (x - np.float32(transform.mean)) / np.float32(transform.std)
    return TensorSet(data.name, torch.from_numpy(x), y, data.class_names, data.split)


def check_fit(data: DataSet, transform: Transform, bad: Bad) -> None:
    """Raise early what would fail late: a transform for other data, or none for data that needs one."""
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
        raise DataError(f"{data.name}: {kind}s do not go with an {type(transform).__name__}; use the other transform")


def fits_in_memory(data: DataSet, transform: Transform, train: bool = False) -> bool:
    """Return whether a set can live as one tensor: small images and sounds, but not items, which may augment."""
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


def _shape_of(data: FileSet, transform: Transform) -> tuple[int, ...]:
    if isinstance(transform, ImageTransform):
        return (len(data), transform.channels, transform.crop, transform.crop)
    assert isinstance(transform, AudioTransform)
    return (len(data), 1, transform.mels, transform.samples // transform.hop_samples + 1)


def _decode_all(data: DataSet, transform: Transform, workers: int | None) -> tuple[np.ndarray, Tensor]:
    """Return every sample by the test transform, and the labels."""
    decoder, out, labels, done = Decoder(data, transform, train=False, seed=0), np.empty(0), [], 0
    for x, y, problems in _in_order(decoder, len(data), f"preparing {data.name}", workers):
        if problems:
            raise DataError(problems[0][1] + (OR_SKIP if isinstance(data, FileSet) else ""))
        batch = (finish(x, transform) if isinstance(transform, AudioTransform) else x).numpy()
        if not done:  # once: a list of parts would take twice the memory
            out = np.empty((len(data), *batch.shape[1:]), batch.dtype)
        if batch.shape[1:] != out.shape[1:] or batch.dtype != out.dtype:
            raise DataError(f"{data.name}: samples of shape {batch.shape[1:]} and {out.shape[1:]}; resize them alike")
        out[done : done + len(batch)] = batch
        labels.append(y)
        done += len(batch)
    return out, torch.cat(labels)


def _in_order(decoder: Decoder, count: int, what: str, workers: int | None) -> Iterator[Batch]:
    """Yield all samples of a set, 256 at a time; workers are worth their start only for many."""
    shares = [slice(start, min(start + 256, count)) for start in range(0, count, 256)]
    used = 0 if count <= 1024 else default_workers() if workers is None else workers
    keys = Keys(torch.arange(count), 0, shares)
    return track(stream(decoder, keys, used, torch.device("cpu")), what, len(shares))


@on_cpu
def readable(data: FileSet, workers: int | None = None, *, cache: bool = True) -> FileSet:
    """Return the set without the files that cannot be read, with a warning about how many they are, and why.

    Every file is decoded once, and the cache folder keeps the result.
    """
    left, bad = readable_files(data, workers, cache)
    if bad:
        shown = "; ".join(list(bad.values())[:5]) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else "")
        warnings.warn(
            f"{data.name}: {len(bad)} of {len(data)} files cannot be read and are left out: {shown}", stacklevel=3
        )
    return left


def readable_files(data: FileSet, workers: int | None, cache: bool) -> tuple[FileSet, dict[str, str]]:
    """Return the files that can be read, and for each other one why it cannot."""
    transform = ImageTransform(1, 1, (0.5,), (0.5,)) if data.kind == "image" else _SHORT  # as little work as possible
    decoder = Decoder(data, transform, train=False, seed=0)

    def build() -> np.ndarray:
        batches = _in_order(decoder, len(data), f"reading {data.name}", workers)
        unreadable = {where for _, _, problems in batches for where, _ in problems}
        return np.array([where_is(data, i) not in unreadable for i in range(len(data))])

    fits = lambda good: good.shape == (len(data),) and good.dtype == bool  # noqa: E731
    good = cached(_key(data, None), build, fits) if cache else build()
    bad: dict[str, str] = {}
    for i in np.flatnonzero(~good).tolist():  # again, for the reasons
        bad.update(decoder.__getitems__([(i, 0, i)])[2])
    if len(bad) == len(data):
        raise DataError(
            f"{data.name}: none of its {len(data)} files can be read; the first: {next(iter(bad.values()))}"
        )
    left = [i for i in range(len(data)) if where_is(data, i) not in bad]
    return cast("FileSet", take(data, left)) if bad else data, bad


_SHORT = AudioTransform(sample_rate=1000, seconds=0.1, mels=5, window=0.05)


def _key(data: FileSet, transform: Transform) -> str:
    """Return a key of all that the prepared bytes depend on; its last part changes when the way of preparing does."""
    files = []
    for path in data.paths:
        try:
            info = os.stat(data.root / path)
        except OSError as error:
            raise DataError(f"{data.root / path}: {error.strerror}; check the list or the folder") from error
        files.append((path, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    how: tuple[object, ...] = (transform,)
    if isinstance(transform, ImageTransform):
        how = (transform.resize, transform.crop, transform.channels, transform.interpolation, transform.squash)
        how += (need("PIL", "pillow").__version__,)
    return key_of("prepared", str(data.root.resolve()), files, how, "3")


def content_key(data: DataSet, transform: Transform, rows: range) -> str | None:
    """Return a key of the contents of some rows, labels included; None for an `ItemSet`, which may change."""
    if isinstance(data, TensorSet):
        chosen = slice(rows.start, rows.stop)
        digest = hashlib.sha256(f"{tuple(data.x.shape[1:])} {data.x.dtype}".encode())
        for tensor in (data.x[chosen], data.y[chosen]):
            digest.update(raw(tensor))
        return digest.hexdigest()[:32]
    if isinstance(data, FileSet):
        part = cast("FileSet", take(data, rows))
        return key_of(_key(part, transform), part.y.tolist())
    return None


def data_fingerprint(data: DataSet) -> str | None:
    """Return a digest of the samples and labels of a set, wherever it lies; None for an `ItemSet`, which may change."""
    if isinstance(data, ItemSet):
        return None
    digest = hashlib.sha256(raw(data.y))
    if isinstance(data, TensorSet):
        digest.update(raw(data.x))
    else:
        for path in data.paths:
            digest.update(hashlib.sha256((data.root / path).read_bytes()).digest())
    return digest.hexdigest()[:32]
