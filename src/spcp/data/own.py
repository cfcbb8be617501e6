"""The user's own data: a path that is recognised, and a benchmark made of folders or described in a TOML file."""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .audio import AudioTransform
from .benchmarks import Benchmark
from .errors import DataError
from .files import Split, read_arrays, read_bytes, read_cifar, read_mnist, read_svhn
from .folders import read_folder, read_places365, read_texture, read_tin
from .images import ImageTransform
from .loader import fits_in_memory, prepare
from .noise import channel_statistics, noise
from .sets import DataSet, FileSet, TensorSet, as_ood, as_set, labels, take

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read(path: str | Path, split: Split = "test", *, label: str | None = None) -> DataSet:
    """The data set at a path, by the looks of it.

    Arrays (npz, npy, safetensors), SVHN's mat, and the folders of CIFAR, MNIST, TinyImageNet, Textures and Places365 as
    downloaded, of which `split` chooses the half; any other folder is one of images or sounds (see `read_folder`).
    """
    path = Path(path).expanduser()
    if path.is_file():
        if path.suffix in (".npz", ".npy", ".safetensors"):
            return read_arrays(path, split)
        if path.suffix == ".mat":
            return read_svhn(path)
        raise DataError(
            f"{path}: not a kind of file this reads (npz, npy, safetensors, mat); name a folder or convert it"
        )
    if not path.is_dir():
        raise DataError(f"{path}: there is no such file or folder; check the path")
    names = {entry.name for entry in path.iterdir()}
    if label is None:
        if names & {"data_batch_1.bin", "test_batch.bin", "train.bin", "test.bin", "data_batch_1", "test_batch"}:
            return read_cifar(path, split)
        if {"meta", "test"} <= names and (path / "test").is_file():
            return read_cifar(path, split)
        if any("-idx1-ubyte" in name or ".idx1-ubyte" in name for name in names):
            return read_mnist(path, split)
        if "wnids.txt" in names and "val" in names:
            return read_tin(path, split)
        if path.name == "dtd" and "images" in names:
            return read_texture(path)
        if "val_256" in names or "places365_val.txt" in names:
            return read_places365(path)
    return read_folder(path, label=label)


def own_benchmark(
    id: Any,
    ood: Mapping[str, Any] | None = None,
    *,
    near: Mapping[str, Any] | None = None,
    ood_val: Mapping[str, Any] | str | None = None,
    transform: ImageTransform | AudioTransform | None = None,
    size: int | None = None,
    name: str = "own",
    label: str | None = None,
) -> Benchmark:
    """A benchmark of one's own data.

    Args:
        id: known data by class: a path or a data set, which is split 80 / 10 / 10; or a dictionary of train, val, test.
        ood: odd data by name, each a path or a data set.
        near: odd data that is close to what is known, by name.
        ood_val: odd data for choosing hyperparameters, by name; "gaussian" or "uniform" for noise.
        transform: how samples are prepared. By default images get `size` pixels (224), with mean and deviation as
            measured on the training images up to 64 pixels and as ImageNet's above; sounds one second at 16 kHz.
        size: side of the images.
        name: of the benchmark.
        label: a regular expression that finds the class in a path, where classes are not folders.
    """
    val: DataSet | None
    if isinstance(id, Mapping):
        if not {"train", "test"} <= set(id) or set(id) - {"train", "val", "test"}:
            raise DataError(f"known data needs train and test, and may have val; here are {', '.join(id)}")
        train = _set(id["train"], "train", "train", label)
        val = _same_classes(_set(id["val"], "val", "test", label), train) if "val" in id else None
        test = _same_classes(_set(id["test"], "test", "test", label), train)
    else:
        train, val, test = split_by_class(_set(id, "id", label=label))
    y = labels(train)
    if not len(y) or int(y.min()) < 0:
        raise DataError(f"{train.name}: known data must have classes; put each class into a folder of its own")
    if transform is None:
        transform = _fitted_transform(train, size)
    groups = {
        role: {key: as_ood(dataclasses.replace(_set(value, key), name=key)) for key, value in (group or {}).items()}
        for role, group in (("near", near), ("far", ood))
    }
    if isinstance(ood_val, str):
        like = (
            train
            if isinstance(train, TensorSet)
            else prepare(train, transform)
            if fits_in_memory(transform)
            else transform
        )
        assert isinstance(like, TensorSet | ImageTransform)
        validation: dict[str, DataSet] = {f"{ood_val} noise": noise(ood_val, like)}  # type: ignore[arg-type]
    else:
        validation = {key: as_ood(dataclasses.replace(_set(v, key), name=key)) for key, v in (ood_val or {}).items()}
    benchmark = Benchmark(
        name,
        transform,
        train.classes or tuple(map(str, range(int(y.max()) + 1))),
        train,
        val,
        test,
        ood_val=validation,
        near=groups["near"],
        far=groups["far"],
    )
    made = isinstance(ood_val, str)  # noise is bytes or floats, whatever the data is kept in
    kinds = {role: _kind(data) for role, data in benchmark.sets().items() if not (made and role.startswith("ood_val/"))}
    odd = next((role for role, kind in kinds.items() if kind != kinds["train"]), None)
    if odd:
        raise DataError(
            f"{name}: {odd} holds {kinds[odd]}, but train holds {kinds['train']}; a benchmark is of one kind"
        )
    return benchmark


def read_benchmark(path: str | Path) -> Benchmark:
    """A benchmark from a TOML file. Paths in it are relative to the file.

    ```toml
    name = "birds"                       # optional
    [id]
    path = "photos"                      # a folder a class, split 80 / 10 / 10; or train = ..., val = ..., test = ...
    label = '(\\d)_'                      # optional: finds the class in the path instead
    [ood]
    near = { bats = "bats" }
    far = { cars = "cars", noise = "noise.npz" }
    val = "gaussian"                     # or { name = "folder" }; optional
    [transform]                          # optional
    size = 64                            # or resize, crop, mean, std, augment, flip, padding
    [audio]                              # instead, for sounds: sample_rate, seconds, mels, ...
    ```
    """
    path = Path(path).expanduser()
    try:
        table = tomllib.loads(read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not valid TOML ({error}); mend it there") from error
    known = _section(path, table, "", {"name", "id", "ood", "transform", "audio"})
    own = _section(path, known.get("id"), "id", {"path", "train", "val", "test", "label"})
    ood = _section(path, known.get("ood", {}), "ood", {"near", "far", "val"})
    base = path.parent
    halves = {key: base / own[key] for key in ("train", "val", "test") if key in own}
    if ("path" in own) == bool(halves):
        raise DataError(f"{path}: [id] needs either path, or train and test")
    groups = {}
    for key in ("near", "far"):
        group = ood.get(key, {})
        if not isinstance(group, dict):
            raise DataError(f'{path}: {key} in [ood] must be a table of names and paths, such as {{ cars = "cars" }}')
        groups[key] = {name: base / where for name, where in group.items()}
    validation = ood.get("val")
    if isinstance(validation, dict):
        validation = {name: base / where for name, where in validation.items()}
    elif validation not in (None, "gaussian", "uniform"):
        raise DataError(f'{path}: val in [ood] must be "gaussian", "uniform" or a table of names and paths')
    transform, size = _transform_of(path, known)
    return own_benchmark(
        base / own["path"] if "path" in own else halves,
        groups["far"],
        near=groups["near"],
        ood_val=validation,
        transform=transform,
        size=size,
        name=str(known.get("name", path.stem)),
        label=own.get("label"),
    )


def _section(path: Path, table: Any, name: str, allowed: set[str]) -> dict[str, Any]:
    where = f"[{name}]" if name else "the file"
    if not isinstance(table, dict):
        raise DataError(f"{path}: has no section {where}; see spcp.data.read_benchmark for the format")
    unknown = sorted(set(table) - allowed)
    if unknown:
        raise DataError(f"{path}: {where} does not know {unknown[0]!r}; it may have {', '.join(sorted(allowed))}")
    return table


def _transform_of(path: Path, table: dict[str, Any]) -> tuple[ImageTransform | AudioTransform | None, int | None]:
    try:
        if "audio" in table:
            return AudioTransform(**table["audio"]), None
        options = dict(table.get("transform", {}))
        size = options.pop("size", None)
        if not options:
            return None, size
        for key in ("mean", "std"):
            if key in options:
                options[key] = tuple(options[key])
        if size is not None:
            options = {"resize": size, "crop": size} | options
        return ImageTransform(**({"mean": _IMAGENET_MEAN, "std": _IMAGENET_STD} | options)), None
    except TypeError as error:
        raise DataError(f"{path}: [transform] or [audio]: {error}") from error


def split_by_class(data: DataSet) -> tuple[DataSet, DataSet, DataSet]:
    """80 % of each class for training, 10 % for validation, 10 % for testing, at least one each.

    Files are dealt out by a hash of their paths, so that a file stays where it is when others are added or the folder
    moves; other samples by a hash of their position.
    """
    y = labels(data)
    names = data.paths if isinstance(data, FileSet) else tuple(map(str, range(len(data))))
    parts: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for k in y.unique().tolist():
        own = (y == k).nonzero()[:, 0].tolist()
        own.sort(key=lambda i: hashlib.sha256(names[i].encode()).digest())
        if len(own) < 3:
            label = data.classes[k] if data.classes else k
            raise DataError(f"{data.name}: class {label} has {len(own)} samples, too few to split; give at least 3")
        n = max(1, round(len(own) / 10))
        parts["val"] += own[:n]
        parts["test"] += own[n : 2 * n]
        parts["train"] += own[2 * n :]
    text = "80/10/10 of each class by a hash of the path"
    train, val, test = (take(data, sorted(index), split=f"{name}: {text}") for name, index in parts.items())
    return train, val, test


def _set(data: Any, name: str, split: Split = "test", label: str | None = None) -> DataSet:
    return read(data, split, label=label) if isinstance(data, str | Path) else as_set(data, name)


def _same_classes(data: DataSet, train: DataSet) -> DataSet:
    """Numbered as in training."""
    if data.classes == train.classes or not data.classes or not train.classes:
        return data
    number = {name: k for k, name in enumerate(train.classes)}
    stranger = next((name for name in data.classes if name not in number), None)
    if stranger is not None:
        raise DataError(f"{data.name}: the class {stranger!r} is not in the training data; remove it or add it there")
    renumber = torch.tensor([number[name] for name in data.classes])
    return take(data, torch.arange(len(data)), y=renumber[labels(data)], classes=train.classes)


def _kind(data: DataSet) -> str:
    if isinstance(data, FileSet):
        return "images" if data.kind == "image" else "sounds"
    return (
        "images"
        if not isinstance(data, TensorSet) or data.x.dtype == torch.uint8
        else f"floats {tuple(data.x.shape[1:])}"
    )


def _fitted_transform(train: DataSet, size: int | None) -> ImageTransform | AudioTransform | None:
    """A transform for data that came without one."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    if isinstance(train, FileSet) and train.kind == "audio":
        plain = AudioTransform()
        x: Tensor = prepare(train, plain).x
        return dataclasses.replace(plain, mean=float(x.mean()), std=float(x.std()))
    if isinstance(train, TensorSet):
        if train.x.dtype != torch.uint8:
            return None
        size = size or int(min(train.x.shape[2:]))
    size = size or 224
    channels = train.x.shape[1] if isinstance(train, TensorSet) else 3
    if size > 64:
        mean, std = (_IMAGENET_MEAN, _IMAGENET_STD) if channels == 3 else ((0.449,), (0.226,))
        return ImageTransform(round(size * 8 / 7), size, mean, std, augment="resized_crop")
    plain_image = ImageTransform(size, size, (0.5,) * channels, (0.5,) * channels)
    mean, std = channel_statistics(prepare(train, plain_image))
    return dataclasses.replace(plain_image, mean=mean, std=tuple(max(s, 1e-3) for s in std))
