"""Readers for official files as they are downloaded: CIFAR, MNIST's idx, SVHN's mat.

Each returns a `TensorSet`, or raises one sentence on what is wrong with a file. Nothing in a file is ever executed.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from .errors import DataError, read_bytes, read_text
from .mat import read_mat
from .plain_pickle import load_plain_pickle
from .sets import TensorSet

Split = Literal["train", "test"]

CIFAR10_CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def check_split(split: str) -> None:
    """Accept "train" and "test"."""
    if split not in ("train", "test"):
        raise DataError(f'split must be "train" or "test", not {split!r}')


# --- CIFAR ------------------------------------------------------------------------------------------------------------


def read_cifar(folder: str | Path, split: Split) -> TensorSet:
    """Read CIFAR-10 or CIFAR-100 (fine labels), from the binary or the python version, in official order."""
    folder = Path(folder).expanduser()
    check_split(split)
    layouts = _CIFAR_LAYOUTS.values()
    layout = next((layout for layout in layouts if any((folder / f).exists() for f in layout[1] + layout[2])), None)
    if layout is None:
        raise DataError(
            f"{folder}: no CIFAR files here; expected one of the folders {', '.join(_CIFAR_LAYOUTS)} as downloaded"
        )
    reader, train, test, hundred = layout
    files = train if split == "train" else test
    parts = [reader(folder / file, hundred) for file in files]
    x = torch.from_numpy(np.concatenate([part[0] for part in parts])).view(-1, 3, 32, 32)
    y = torch.from_numpy(np.concatenate([part[1] for part in parts]))
    return TensorSet(
        f"cifar{100 if hundred else 10}", x, y, _cifar_class_names(folder, hundred), f"official {split} files"
    )


def _cifar_binary(path: Path, hundred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read records of one label byte (CIFAR-100: coarse, fine) and 3 x 32 x 32 pixels."""
    head = 2 if hundred else 1
    raw = np.frombuffer(read_bytes(path), np.uint8)
    if not len(raw) or len(raw) % (head + 3072):
        raise DataError(f"{path}: {len(raw)} bytes are not whole records of {head + 3072}; download the file again")
    records = raw.reshape(-1, head + 3072)
    return records[:, head:].copy(), _cifar_labels(path, records[:, head - 1], hundred)


def _cifar_python(path: Path, hundred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Read a pickled dictionary with `data` (N, 3072) and `labels` or `fine_labels`, without executing anything."""
    batch = load_plain_pickle(path)
    key = b"fine_labels" if hundred else b"labels"
    if not isinstance(batch, dict) or not {b"data", key} <= set(batch):
        raise DataError(f"{path}: no dictionary with 'data' and '{key.decode()}', as CIFAR's have; download it again")
    x, y = batch[b"data"], batch[key]
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072:
        raise DataError(f"{path}: 'data' is not N x 3072 bytes; download the file again")
    if not isinstance(y, list) or len(y) != len(x) or not all(isinstance(label, int) for label in y):
        raise DataError(f"{path}: not one integer label for each of the {len(x)} images; download the file again")
    return x, _cifar_labels(path, np.array(y), hundred)


_CIFAR10_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
_CIFAR_LAYOUTS: Mapping[str, Any] = {  # folder: reader, training files, test files, whether it is CIFAR-100
    "cifar-10-batches-bin": (
        _cifar_binary,
        tuple(f"{name}.bin" for name in _CIFAR10_TRAIN),
        ("test_batch.bin",),
        False,
    ),
    "cifar-100-binary": (_cifar_binary, ("train.bin",), ("test.bin",), True),
    "cifar-10-batches-py": (_cifar_python, _CIFAR10_TRAIN, ("test_batch",), False),
    "cifar-100-python": (_cifar_python, ("train",), ("test",), True),
}


def _cifar_labels(path: Path, y: np.ndarray, hundred: bool) -> np.ndarray:
    count = 100 if hundred else 10
    if y.min() < 0 or y.max() >= count:
        raise DataError(f"{path}: a label is {y.max()}, but CIFAR-{count} has {count} classes; download the file again")
    return y.astype(np.int64)


def _cifar_class_names(folder: Path, hundred: bool) -> tuple[str, ...]:
    if not hundred:
        return CIFAR10_CLASS_NAMES
    path = folder / "fine_label_names.txt"
    if path.exists():
        names = tuple(read_text(path).split())
    elif (path := folder / "meta").exists():
        try:
            names = tuple(name.decode() for name in load_plain_pickle(path)[b"fine_label_names"])
        except (TypeError, KeyError, AttributeError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: holds no fine_label_names; download it again") from error
    else:
        return ()
    if len(names) != 100:
        raise DataError(f"{path}: names {len(names)} classes, but CIFAR-100 has 100; download it again")
    return names


def read_cifar10c(folder: str | Path) -> TensorSet:
    """Read CIFAR-10-C with each of the 10 000 test images once.

    The official files hold every image under every corruption at five severities. Image i gets corruption `i mod 15`
    (of the 15 standard ones, in alphabetic order) at severity `1 + (i div 15) mod 5`.
    """
    folder = Path(folder).expanduser()
    y = _load_npy(folder / "labels.npy").astype(np.int64)
    n = len(y) // 5  # labels.npy repeats the test labels for each severity
    image = np.arange(n)
    x = np.empty((n, 32, 32, 3), np.uint8)
    for k, corruption in enumerate(CORRUPTIONS):
        chosen = image[k::15]
        stack = _load_npy(folder / f"{corruption}.npy")  # (5 n, 32, 32, 3), severity by severity
        if stack.shape != (5 * n, 32, 32, 3) or stack.dtype != np.uint8:
            raise DataError(
                f"{folder / corruption}.npy: {stack.shape} of {stack.dtype}, not {5 * n} x 32 x 32 x 3 bytes"
            )
        x[chosen] = stack[(chosen // 15) % 5 * n + chosen]
    images = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()
    return TensorSet(
        "cifar10c", images, torch.from_numpy(y[:n]), CIFAR10_CLASS_NAMES, "each image under one corruption"
    )


CORRUPTIONS = (
    "brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost", "gaussian_noise", "glass_blur",
    "impulse_noise", "jpeg_compression", "motion_blur", "pixelate", "shot_noise", "snow", "zoom_blur",
)  # fmt: skip


def _load_npy(path: Path) -> np.ndarray:
    """Map an array into memory, which fails where the header declares more than the file holds."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    except Exception as error:  # a damaged header is parsed as Python, and can raise anything
        raise DataError(f"{path}: cannot be read as a npy file ({error}); download it again") from error


# --- MNIST and its relatives ------------------------------------------------------------------------------------------


def read_idx(path: str | Path) -> np.ndarray:
    """Read an array of bytes in MNIST's idx format, gzipped or not: magic number 0 0 8 ndim, sizes, values."""
    path = Path(path).expanduser()
    raw = read_bytes(path)
    stream: Any = gzip.GzipFile(fileobj=io.BytesIO(raw)) if raw[:2] == b"\x1f\x8b" else io.BytesIO(raw)
    try:
        magic = stream.read(4)
        if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
            raise DataError(
                f"{path}: starts with {magic.hex(' ')}, which is not an idx file of bytes; download it again"
            )
        header = stream.read(4 * magic[3])
        if len(header) < 4 * magic[3]:
            raise DataError(f"{path}: ends within its header; download it again")
        shape = np.frombuffer(header, ">u4").tolist()
        size = math.prod(shape)
        if size > 2**40:
            raise DataError(f"{path}: its header promises {size} values; download it again")
        parts, left = [], size + 1  # no more than the header promises, whatever the archive unpacks to,
        while left and (part := stream.read(min(left, 1 << 20))):  # and no memory for what is only promised
            parts.append(part)
            left -= len(part)
        data = b"".join(parts)
    except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); download it again") from error
    if len(data) != size:
        has = "more" if len(data) > size else f"{len(data)}"
        raise DataError(f"{path}: its header promises {size} values, but it has {has}; download it again")
    return np.frombuffer(data, np.uint8).reshape(shape)


def read_mnist(folder: str | Path, split: Split) -> TensorSet:
    """Read MNIST, Fashion-MNIST or KMNIST: the four idx files of one folder, gzipped or not."""
    folder = Path(folder).expanduser()
    check_split(split)
    stem = "train" if split == "train" else "t10k"
    x, y = (
        read_idx(_first(folder, [f"{stem}-{what}{dot}idx{n}-ubyte{gz}" for dot in "-." for gz in ("", ".gz")]))
        for what, n in (("images", 3), ("labels", 1))
    )
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise DataError(f"{folder}: {split} images of shape {x.shape} do not go with labels of shape {y.shape}")
    return TensorSet(
        "mnist", torch.from_numpy(x.copy())[:, None], torch.from_numpy(y.astype(np.int64)), split=f"{split} files"
    )


def _first(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise DataError(f"{folder}: none of {', '.join(names)} is here; download the data set or name another folder")


# --- SVHN -------------------------------------------------------------------------------------------------------------


def read_svhn(path: str | Path) -> TensorSet:
    """Read SVHN's cropped digits, `test_32x32.mat` or `train_32x32.mat`; the digit 0, 10 in the file, becomes 0."""
    path = Path(path).expanduser()
    arrays = read_mat(path, {"X", "y"})
    if missing := sorted({"X", "y"} - set(arrays)):
        raise DataError(f"{path}: has no array {missing[0]!r}, as SVHN's files do; name the file of the cropped digits")
    x, y = arrays["X"], arrays["y"].reshape(-1)
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or x.shape[3] != len(y):
        raise DataError(
            f"{path}: X is {x.shape} of {x.dtype} with {len(y)} labels, not 32 x 32 x 3 x N bytes with N labels"
        )
    strange = y[~np.isin(y, np.arange(11))]
    if len(strange):
        raise DataError(f"{path}: a label is {strange[0]}, but digits go from 1 to 10; download it again")
    labels = np.where(y == 10, 0, y).astype(np.int64)
    images = np.ascontiguousarray(x.transpose(3, 2, 0, 1))
    return TensorSet("svhn", torch.from_numpy(images), torch.from_numpy(labels), tuple("0123456789"), path.name)
