"""A data set, in one of three shapes: a tensor in memory, files on disk, or items of somebody else's.

`as_set` makes one of anything: a tensor, arrays, a torch Dataset, a Hugging Face dataset, a list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .errors import DataError

OOD = -1  # the label of what belongs to no class


@dataclass(frozen=True, eq=False)
class TensorSet:
    """A data set in memory. It is a torch Dataset too: `len(s)`, `s[i] -> (x, label)`.

    Bytes are images and get the benchmark's transform; floats (embeddings, spectrograms, prepared images) are taken as
    they are.
    """

    name: str
    x: Tensor  # (N, C, H, W) uint8, or (N, ...) floats
    y: Tensor  # (N,) int64; OOD = -1
    classes: tuple[str, ...] = ()
    split: str = ""  # where it comes from, for reports: "OpenOOD's list", "first 100 a class", ...

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise DataError(
                f"{self.name}: {len(self.x)} samples but {len(self.y)} labels; give one label for each sample"
            )
        _check_labels(self.name, self.y, self.classes)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], int(self.y[i])


@dataclass(frozen=True, eq=False)
class FileSet:
    """A data set of files, read when they are needed. `s[i]` is a Pillow image, or a waveform, and its label."""

    name: str
    root: Path
    paths: tuple[str, ...]  # relative to root
    y: Tensor  # (N,) int64; OOD = -1
    classes: tuple[str, ...] = ()
    split: str = ""
    kind: Literal["image", "audio"] = "image"

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.y):
            raise DataError(
                f"{self.name}: {len(self.paths)} files but {len(self.y)} labels; give one label for each file"
            )
        _check_labels(self.name, self.y, self.classes)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        from . import audio, images

        path = self.root / self.paths[i]
        return images.open_image(path) if self.kind == "image" else audio.read_audio(path), int(self.y[i])


@dataclass(frozen=True, eq=False)
class ItemSet:
    """Somebody else's map-style data set (torch's, Hugging Face's): `items[i]` is an image, a pair or a dictionary."""

    name: str
    items: Any
    classes: tuple[str, ...] = ()
    split: str = ""

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return _pair(self.items[i], f"{self.name}, item {i}")


DataSet: TypeAlias = TensorSet | FileSet | ItemSet


def _check_labels(name: str, y: Tensor, classes: Sequence[str]) -> None:
    if y.ndim != 1 or y.dtype != torch.int64:
        raise DataError(f"{name}: labels must be one int64 for each sample, not {tuple(y.shape)} of {y.dtype}")
    if len(y) and classes and int(y.max()) >= len(classes):
        raise DataError(
            f"{name}: a label is {int(y.max())}, but there are only {len(classes)} classes (counted from 0)"
        )


def take(data: DataSet, index: Tensor | Sequence[int], **changes: Any) -> DataSet:
    """The samples at `index`, in that order; `changes` are other fields of the new set, such as `split=...`.

    >>> take(as_set([torch.zeros(2), torch.ones(2)]), [1])[0]
    (tensor([1., 1.]), -1)
    """
    index = torch.as_tensor(index, dtype=torch.int64)
    if isinstance(data, TensorSet):
        return dataclasses.replace(data, **({"x": data.x[index], "y": data.y[index]} | changes))
    if isinstance(data, FileSet):
        paths = tuple(data.paths[i] for i in index.tolist())
        return dataclasses.replace(data, **({"paths": paths, "y": data.y[index]} | changes))
    return dataclasses.replace(data, items=torch.utils.data.Subset(data.items, index.tolist()), **changes)


def as_ood(data: DataSet, **changes: Any) -> DataSet:
    """The same samples, every one labelled as belonging to no class."""
    if isinstance(data, ItemSet):
        return dataclasses.replace(data, items=_Unlabelled(data.items), classes=(), **changes)
    return dataclasses.replace(data, y=torch.full_like(data.y, OOD), classes=(), **changes)


class _Unlabelled(torch.utils.data.Dataset[Any]):
    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return _pair(self.items[i], f"item {i}")[0], OOD


def labels(data: DataSet) -> Tensor:
    """The labels (N,); for somebody else's items every item is read."""
    if isinstance(data, ItemSet):
        return torch.tensor([data[i][1] for i in range(len(data))], dtype=torch.int64)
    return data.y


def histogram(data: DataSet) -> dict[str, int]:
    """How many samples each class has; "ood" for those of no class.

    >>> histogram(TensorSet("two", torch.zeros(3, 1), torch.tensor([0, 1, 1]), classes=("cat", "dog")))
    {'cat': 1, 'dog': 2}
    """
    values, counts = labels(data).unique(return_counts=True)
    name = lambda k: "ood" if k < 0 else data.classes[k] if data.classes else str(k)  # noqa: E731
    return {name(k): n for k, n in zip(values.tolist(), counts.tolist(), strict=True)}


def as_set(data: Any, name: str = "data") -> DataSet:
    """Make a data set of anything that holds samples.

    A set stays as it is. A tensor or array is unlabelled samples; `(x, y)` of two tensors or arrays, and a
    `TensorDataset`, are samples and labels. A list of tensors, or of (tensor, label) pairs, is stacked where shapes
    agree. Any object with `len` and integer indexing (a torch Dataset, a Hugging Face dataset, a list of Pillow images)
    is read item by item: an item is a sample, a `(sample, label, ...)` pair, or a dictionary with an image and a label.
    A path (str or Path) is read by `spcp.data.read`.
    """
    if isinstance(data, TensorSet | FileSet | ItemSet):
        return data
    if isinstance(data, str | Path):
        from .own import read

        return read(data)
    if isinstance(data, torch.utils.data.TensorDataset):
        data = data.tensors if len(data.tensors) > 1 else data.tensors[0]
    if isinstance(data, Tensor | np.ndarray):
        return TensorSet(name, torch.as_tensor(data), torch.full((len(data),), OOD))
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in data):
        return TensorSet(name, torch.as_tensor(data[0]), torch.as_tensor(data[1]).long())
    if isinstance(data, torch.utils.data.IterableDataset) or not (
        hasattr(data, "__len__") and hasattr(data, "__getitem__")
    ):
        raise DataError(
            f"{name}: a {type(data).__name__} has no length or no index; give a map-style data set or list(...) of it"
        )
    if isinstance(data, list) and data and isinstance(data[0], Tensor | tuple):
        pairs = [_pair(item, f"{name}, item {i}") for i, item in enumerate(data)]
        if all(isinstance(x, Tensor) and x.shape == pairs[0][0].shape for x, _ in pairs):
            return TensorSet(name, torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs]))
    return ItemSet(name, data, classes=_class_names(data))


_IMAGE_KEYS = ("image", "img", "pixel_values", "x", "input", "data")
_LABEL_KEYS = ("label", "labels", "fine_label", "target", "y", "class")


def _pair(item: Any, where: str) -> tuple[Any, int]:
    """Sample and label of an item as data sets give them."""
    if isinstance(item, dict):
        key = next((key for key in _IMAGE_KEYS if key in item), None)
        if key is None:
            raise DataError(
                f"{where}: none of its keys {sorted(item)} is one of {', '.join(_IMAGE_KEYS)}; rename the column"
            )
        label = next((item[key] for key in _LABEL_KEYS if item.get(key) is not None), OOD)
        return item[key], int(label)
    if isinstance(item, tuple | list) and len(item) >= 2:
        return item[0], int(item[1])
    return (item[0] if isinstance(item, tuple | list) else item), OOD


def _class_names(data: Any) -> tuple[str, ...]:
    """Names of the classes, where the data set tells: `features[label].names` (Hugging Face), `.classes` (torch)."""
    features = getattr(data, "features", None)
    if isinstance(features, dict):
        names = next((features[key].names for key in _LABEL_KEYS if hasattr(features.get(key), "names")), ())
    else:
        names = getattr(data, "classes", ())
    return tuple(map(str, names))
