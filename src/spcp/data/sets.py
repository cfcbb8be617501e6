"""Data sets of three kinds: a tensor in memory, files on disk, or the items of another library's data set."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from .audio import read_audio
from .errors import DataError
from .images import open_image

Function = TypeVar("Function", bound=Callable[..., Any])

OOD = -1  # the label of what belongs to no class


@dataclass(frozen=True, eq=False, repr=False)
class TensorSet:
    """A data set in memory. It is a torch Dataset too: `len(s)`, `s[i] -> (x, label)`.

    Bytes are images and get the benchmark's transform; floats (embeddings, spectrograms, prepared images) are taken as
    they are.
    """

    name: str
    x: Tensor  # (N, C, H, W) uint8, or (N, ...) floats
    y: Tensor  # (N,) int64; OOD = -1
    class_names: tuple[str, ...] = ()
    split: str = ""  # where it comes from, for reports: "OpenOOD's list", "first 100 a class", ...

    def __post_init__(self) -> None:
        if self.x.dtype == torch.uint8 and self.x.ndim != 4:
            raise DataError(f"{self.name}: images must be (N, C, H, W) bytes, not {tuple(self.x.shape)}")
        if self.x.dtype != torch.uint8 and not self.x.is_floating_point():
            raise DataError(f"{self.name}: samples of {self.x.dtype} are neither bytes nor floats; convert them")
        _check_labels(self.name, len(self.x), self.y, self.class_names)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], int(self.y[i])

    def __repr__(self) -> str:
        return f"<TensorSet {self.name}: {len(self)} x {tuple(self.x.shape[1:])} {str(self.x.dtype)[6:]}>"


@dataclass(frozen=True, eq=False, repr=False)
class FileSet:
    """A data set of files, read when they are needed. `s[i]` is an image, or (waveform, rate), and its label."""

    name: str
    root: Path
    paths: tuple[str, ...]  # relative to root
    y: Tensor  # (N,) int64; OOD = -1
    class_names: tuple[str, ...] = ()
    split: str = ""
    kind: Literal["image", "audio"] = "image"
    notes: tuple[str, ...] = ()  # what was left out

    def __post_init__(self) -> None:
        _check_labels(self.name, len(self.paths), self.y, self.class_names)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        path = self.root / self.paths[i]
        return open_image(path) if self.kind == "image" else read_audio(path), int(self.y[i])

    def __repr__(self) -> str:
        return f"<FileSet {self.name}: {len(self)} {self.kind} files below {self.root}>"


@dataclass(frozen=True, eq=False, repr=False)
class ItemSet:
    """A map-style data set of another library (torch, Hugging Face): an item is a sample, a pair or a dictionary."""

    name: str
    items: Any
    class_names: tuple[str, ...] = ()
    split: str = ""
    _labels: Tensor | None = dataclasses.field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return sample_and_label(self.items[i], f"{self.name}, item {i}")

    def __repr__(self) -> str:
        return f"<ItemSet {self.name}: {len(self)} items of a {type(self.items).__name__}>"


DataSet: TypeAlias = TensorSet | FileSet | ItemSet


def _check_labels(name: str, count: int, y: Tensor, class_names: Sequence[str]) -> None:
    if y.ndim == 2 and y.shape[1] > 1:
        raise DataError(f"{name}: labels of shape {tuple(y.shape)} look one-hot; give class numbers, y.argmax(1)")
    if y.ndim != 1 or y.dtype != torch.int64:
        raise DataError(f"{name}: labels must be one int64 for each sample, not {tuple(y.shape)} of {y.dtype}")
    if count != len(y):
        raise DataError(f"{name}: {count} samples but {len(y)} labels; give one label for each sample")
    if len(y) and int(y.min()) < OOD:
        raise DataError(f"{name}: a label is {int(y.min())}; classes count from 0, and {OOD} is for what has none")
    if len(y) and class_names and int(y.max()) >= len(class_names):
        raise DataError(
            f"{name}: a label is {int(y.max())}, but there are only {len(class_names)} classes (counted from 0)"
        )


def on_cpu(function: Function) -> Function:
    """Make a function create its tensors on the CPU, whatever torch's default device is."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return cast("Function", wrapped)


@on_cpu
def take(data: DataSet, index: Tensor | Sequence[int], **changes: Any) -> DataSet:
    """Return the samples at `index`, in that order; `changes` are other fields of the new set, such as `split=...`.

    >>> take(TensorSet("two", torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])), [1])[0]
    (tensor([1.]), 1)
    """
    index = torch.as_tensor(index, dtype=torch.int64)
    if isinstance(data, TensorSet):
        return dataclasses.replace(data, **({"x": data.x[index], "y": data.y[index]} | changes))
    if isinstance(data, FileSet):
        paths = tuple(data.paths[i] for i in index.tolist())
        return dataclasses.replace(data, **({"paths": paths, "y": data.y[index]} | changes))
    return dataclasses.replace(data, items=torch.utils.data.Subset(data.items, index.tolist()), **changes)


@on_cpu
def as_ood(data: DataSet, **changes: Any) -> DataSet:
    """Return the same samples, every one labelled OOD."""
    if isinstance(data, ItemSet):
        return dataclasses.replace(data, items=_Unlabelled(data.items), class_names=(), **changes)
    return dataclasses.replace(data, y=torch.full_like(data.y, OOD), class_names=(), **changes)


class _Unlabelled(torch.utils.data.Dataset[Any]):
    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return _sample(self.items[i], f"item {i}"), OOD


def labels(data: DataSet) -> Tensor:
    """Return the labels (N,). An `ItemSet` without `targets` or a label column is read for them, once."""
    if not isinstance(data, ItemSet):
        return data.y
    if data._labels is None:
        column: Any = getattr(data.items, "targets", None)  # torchvision
        if column is None and hasattr(data.items, "column_names"):  # Hugging Face: without decoding the images
            column = next((data.items[key] for key in LABEL_NAMES if key in data.items.column_names), None)
        y = [_label(label, data.name) for label in column] if column is not None else None
        y = y or [data[i][1] for i in range(len(data))]
        object.__setattr__(data, "_labels", torch.tensor(y, dtype=torch.int64, device="cpu"))
    assert data._labels is not None
    return data._labels


def rank_in_class(y: Tensor) -> Tensor:
    """Return for each sample how many earlier ones have its label.

    >>> rank_in_class(torch.tensor([3, 5, 3, 3, 5]))
    tensor([0, 0, 1, 2, 1])
    """
    order = y.argsort(stable=True)
    _, counts = y.unique(return_counts=True)
    rank = torch.empty_like(y)
    rank[order] = torch.cat([torch.arange(n) for n in counts.tolist()]) if len(y) else order
    return rank


def histogram(data: DataSet) -> dict[str, int]:
    """Count the samples of each class; "ood" stands for those of no class.

    >>> histogram(TensorSet("two", torch.zeros(3, 1), torch.tensor([0, 1, 1]), class_names=("cat", "dog")))
    {'cat': 1, 'dog': 2}
    """
    values, counts = labels(data).unique(return_counts=True)
    name = lambda k: "ood" if k < 0 else data.class_names[k] if data.class_names else str(k)  # noqa: E731
    return {name(k): n for k, n in zip(values.tolist(), counts.tolist(), strict=True)}


@on_cpu
def tensor_set(name: str, x: Tensor, y: Tensor | None, split: str = "as given") -> TensorSet:
    """Make a checked set of samples and labels: images become (N, C, H, W), floats float32, and all must be finite."""
    if x.dtype == torch.uint8 and x.ndim in (3, 4):
        x = _planar(x)
    elif x.is_floating_point():
        x = x.float()
        bad = ~torch.isfinite(x).flatten(1).all(1) if x.ndim > 1 else ~torch.isfinite(x)
        if bad.any():
            raise DataError(
                f"{name}: sample {int(bad.nonzero()[0])} is not finite, one of {int(bad.sum())}; remove them"
            )
    if y is None:
        y = torch.full((len(x),), OOD)
    if y.is_floating_point() and not torch.equal(y, y.round()):
        raise DataError(f"{name}: labels must be whole numbers, counted from 0")
    return TensorSet(name, x, (y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y).long(), split=split)


def _planar(x: Tensor) -> Tensor:
    """Return images (N, H, W), (N, H, W, C) or (N, C, H, W) as (N, C, H, W)."""
    if x.ndim == 3:
        return x[:, None]
    if x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        return x.permute(0, 3, 1, 2).contiguous()
    return x


# The names of samples and labels in dictionaries and in array files.
SAMPLE_NAMES = (
    "image", "audio", "images", "img", "pixel_values", "input_values", "embedding", "embeddings", "features", "x",
    "input", "data",
)  # fmt: skip
LABEL_NAMES = ("label", "labels", "fine_label", "target", "targets", "y", "class")


def sample_and_label(item: Any, where: str) -> tuple[Any, int]:
    """Return the sample and the label of an item: a sample, a pair, or a dictionary."""
    label: Any = OOD
    if isinstance(item, Mapping):
        label = inputs_and_labels(item, where)[1]
        label = OOD if label is None else label
    elif isinstance(item, tuple | list) and len(item) >= 2:
        label = item[1]
    return _sample(item, where), _label(label, where)


def _label(label: Any, where: str) -> int:
    try:
        number = int(label)
        if number != label:
            raise ValueError
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{where}: its label {label!r:.40} is not a class number; give numbers, counted from 0"
        ) from error
    return number


def _sample(item: Any, where: str) -> Any:
    if isinstance(item, Mapping):
        return inputs_and_labels(item, where)[0]
    return item[0] if isinstance(item, tuple | list) else item


def inputs_and_labels(batch: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    """Return the inputs of a dictionary, as Hugging Face's batches are, and its labels, or None.

    >>> inputs_and_labels({"pixel_values": "x", "labels": "y"}, "batch")
    ('x', 'y')
    """
    key = next((key for key in SAMPLE_NAMES if key in batch), None)
    if key is None:
        raise DataError(f"{where}: none of its keys {sorted(batch)} is one of {', '.join(SAMPLE_NAMES)}; rename one")
    return batch[key], next((batch[name] for name in LABEL_NAMES if batch.get(name) is not None), None)
