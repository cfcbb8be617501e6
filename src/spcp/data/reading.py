"""Make a data set: `read` one from a path, whose format it recognises, or `as_set` of anything that holds samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arrays import read_arrays
from .errors import DataError
from .files import Split, read_cifar, read_mnist, read_svhn
from .folders import is_system, read_folder, read_places365, read_texture, read_tin
from .sets import (
    LABEL_NAMES,
    DataSet,
    FileSet,
    ItemSet,
    TensorSet,
    inputs_and_labels,
    on_cpu,
    sample_and_label,
    tensor_set,
)

_CIFAR_FILES = {"data_batch_1.bin", "test_batch.bin", "train.bin", "test.bin", "data_batch_1", "test_batch"}
# Files that show that official data has a training and a test half.
_HALVES = (
    {"train_32x32.mat", "test_32x32.mat"}, {"train.bin", "test.bin"}, {"data_batch_1.bin", "test_batch.bin"},
    {"data_batch_1", "test_batch"}, {"meta", "train", "test"}, {"wnids.txt", "train", "val"},
)  # fmt: skip
_PARTS = {"train", "val", "valid", "validation", "test"}  # names of part folders


def read(path: str | Path, split: Split = "test", *, label: str | None = None) -> DataSet:
    """Read the data set at a path, whose format is recognised.

    A path is a file of arrays (npz, npy, safetensors), SVHN's mat, or a folder of CIFAR, MNIST, SVHN, TinyImageNet,
    Textures or Places365 as downloaded, of which `split` chooses the half. Any other folder holds images or sounds
    (see `read_folder`, which gets `label`), or `train` and `test` folders of those.
    """
    path = Path(path).expanduser()
    if path.is_file():
        if path.suffix in (".npz", ".npy", ".safetensors"):
            return read_arrays(path, split)
        if path.suffix == ".mat":
            return read_svhn(path)
        raise DataError(
            f"{path}: not a format that can be read (npz, npy, safetensors, mat); name a folder or convert it"
        )
    if not path.is_dir():
        raise DataError(f"{path}: there is no such file or folder; check the path")
    if (kind := official_reader(path)) and label is None:
        where, reader = kind
        return reader(where, split)
    parts = part_folders(path)
    if parts:
        return read_folder(parts.get(split) or parts["val"], label=label)
    return read_folder(path, label=label)


@on_cpu
def as_set(data: Any, name: str = "data") -> DataSet:
    """Make a data set of anything that holds samples.

    A set stays as it is. A tensor or array is unlabelled samples; `(x, y)` of two tensors or arrays, a dictionary of
    them as in Hugging Face (`pixel_values`, `labels`), and a `TensorDataset` are samples and labels: images as bytes
    (N, H, W), (N, H, W, C) or (N, C, H, W), or floats. A list of tensors, or of (tensor, label) pairs, is stacked where
    shapes agree. Any object with `len` and integer indexing (a torch Dataset, a Hugging Face dataset, a list of Pillow
    images) is read item by item: an item is a sample, a `(sample, label, ...)` pair, or a dictionary with an image and
    a label. A path is read by `spcp.data.read`.
    """
    if isinstance(data, TensorSet | FileSet | ItemSet):
        return data
    if isinstance(data, str | Path):
        return read(data)
    if data is None or hasattr(data, "transform_of"):
        what = (
            "is missing (see the benchmark's notes)" if data is None else "is a whole benchmark; pass one of its sets"
        )
        raise DataError(f"{name}: {what}")
    if isinstance(data, Mapping):  # a batch of Hugging Face
        x, y = inputs_and_labels(data, name)
        data = x if y is None else (x, y)
    if isinstance(data, torch.utils.data.TensorDataset):
        data = data.tensors[:2] if len(data.tensors) > 1 else data.tensors[0]
    if isinstance(data, Tensor | np.ndarray):
        return tensor_set(name, torch.as_tensor(data), None)
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in data):
        return tensor_set(name, torch.as_tensor(data[0]), torch.as_tensor(data[1]))
    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if isinstance(data, torch.utils.data.IterableDataset) or not indexed:
        raise DataError(
            f"{name}: a {type(data).__name__} has no length or no index; give a map-style data set or list(...) of it"
        )
    if isinstance(data, list) and data and isinstance(data[0], Tensor | tuple):
        pairs = [sample_and_label(item, f"{name}, item {i}") for i, item in enumerate(data)]
        if all(isinstance(x, Tensor) and x.shape == pairs[0][0].shape for x, _ in pairs):
            return tensor_set(name, torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs]))
    return ItemSet(name, data, class_names=_class_names(data), split="as given")


def _class_names(data: Any) -> tuple[str, ...]:
    """Return the class names a data set carries: `features[label].names` (Hugging Face) or `.classes` (torch)."""
    features = getattr(data, "features", None)
    if isinstance(features, dict):
        names = next((features[key].names for key in LABEL_NAMES if hasattr(features.get(key), "names")), ())
    else:
        names = getattr(data, "classes", ())
    return tuple(map(str, names))


def official_reader(path: Path) -> tuple[Path, Callable[[Path, Split], DataSet]] | None:
    """Return where official files lie, and how they are read; None for any other folder."""
    names = {entry.name for entry in path.iterdir()}
    if names & _CIFAR_FILES or ({"meta", "test"} <= names and (path / "test").is_file()):
        return path, read_cifar
    raw = path / "raw" if "raw" in names else path
    if any(raw.glob("*idx1-ubyte*")):
        return raw, read_mnist
    if names & {"train_32x32.mat", "test_32x32.mat"}:
        return path, lambda folder, split: read_svhn(folder / f"{split}_32x32.mat")
    if {"wnids.txt", "val"} <= names:
        return path, read_tin
    if path.name == "dtd" and "images" in names:
        return path, lambda folder, _: read_texture(folder)
    if names & {"val_256", "places365_val.txt"}:
        return path, lambda folder, _: read_places365(folder)
    return None


def part_folders(path: Path) -> dict[str, Path]:
    """Return the folders `train`, `val` (by any of its names) and `test` of a folder that has no others."""
    folders = [entry for entry in path.iterdir() if entry.is_dir() and not is_system(entry.name)]
    if len(folders) < 2 or not {folder.name for folder in folders} <= _PARTS or not (path / "train").is_dir():
        return {}
    return {"val" if folder.name.startswith("val") else folder.name: folder for folder in folders}


def has_halves(path: Path) -> bool:
    """Return whether official files hold a training and a test half."""
    names = {entry.name for entry in path.iterdir()}
    names |= {entry.name for entry in (path / "raw").iterdir()} if (path / "raw").is_dir() else set()
    idx = all(any(name.startswith(half) and "idx3-ubyte" in name for name in names) for half in ("train", "t10k"))
    return idx or any(halves <= names for halves in _HALVES)
