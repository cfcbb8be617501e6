"""Benchmarks of a user's data: made of folders, arrays or data sets, or described in a TOML file."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .arrays import array_parts, read_arrays
from .audio import AudioTransform
from .benchmark import Benchmark
from .errors import DataError, read_text
from .folders import Bad
from .images import ImageTransform
from .noise import channel_statistics, noise
from .prepared import IN_MEMORY_SIDE, prepare, readable
from .reading import as_set, has_halves, official_reader, part_folders, read
from .sets import DataSet, FileSet, ItemSet, TensorSet, as_ood, labels, on_cpu, take

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_GREY = {"mean": (0.449,), "std": (0.226,)}  # ImageNet in grey


@on_cpu
def make_benchmark(
    id: Any,
    ood: Mapping[str, Any] | None = None,
    *,
    near: Mapping[str, Any] | None = None,
    ood_val: Mapping[str, Any] | str | None = None,
    transform: ImageTransform | AudioTransform | Mapping[str, Any] | None = None,
    size: int | None = None,
    name: str = "data",
    label: str | None = None,
    bad: Bad = "raise",
) -> Benchmark:
    """Make a benchmark of your data.

    Args:
        id: in-distribution data by class. A path or data set, split 80 / 10 / 10; a folder of `train`, `val` and `test`
            folders (without `test`, `val` is for testing); official files or arrays with a training and a test half, of
            which a tenth of the test half is for validation; or a dictionary of train, val, test.
        ood: out-of-distribution data by name, each a path or a data set; it becomes `far`.
        near: near-OOD data by name.
        ood_val: OOD data for choosing hyperparameters, by name; "gaussian" or "uniform" for noise.
        transform: how samples are prepared, or a dictionary of the fields that should differ from the default. By
            default images get `size` pixels (224; arrays keep theirs), with mean and deviation as measured on the
            training images up to 64 pixels and as ImageNet's above, and are mirrored in training (`{"flip": False}`
            for digits, text or signs); sounds one second at 16 kHz.
        size: the side of the images.
        name: the name of the benchmark.
        label: a regular expression that matches the class in a path, where classes are not folders.
        bad: "skip" decodes every file once and leaves out those that cannot be read, with a warning.
    """
    train, val, test = _id_sets(id, label)
    noise_kind = ood_val if isinstance(ood_val, str) else None
    groups = {"far": ("ood", ood), "near": ("near", near), "ood_val": ("ood_val", None if noise_kind else ood_val)}
    ood_sets = {role: _group(group, argument) if group else {} for role, (argument, group) in groups.items()}
    if bad == "skip":
        clean = lambda data: readable(data) if isinstance(data, FileSet) else data  # noqa: E731
        train, val, test = clean(train), val and clean(val), clean(test)
        ood_sets = {role: {key: clean(data) for key, data in group.items()} for role, group in ood_sets.items()}
    class_names = _check_classes(train)
    for part in (val, test):
        if part is not None and len(y := labels(part)) and not (int(y.min()) >= 0 and int(y.max()) < len(class_names)):
            low, high = int(y.min()), int(y.max())
            raise DataError(
                f"{part.name}: its labels are {low} to {high}, but training has {len(class_names)} classes; relabel it"
            )
    if not isinstance(transform, ImageTransform | AudioTransform):
        transform = _fitted_transform(train, dict(transform or {}) | ({} if size is None else {"size": size}))
    if noise_kind:
        ood_sets["ood_val"] = {f"{noise_kind} noise": _noise(noise_kind, train, transform)}
    ood_val_sets, near_sets, far_sets = (ood_sets[role] for role in ("ood_val", "near", "far"))
    benchmark = Benchmark(name, transform, class_names, train, val, test, ood_val_sets, near_sets, far_sets)
    _check_kinds(benchmark, noise=noise_kind is not None)
    return benchmark


def _id_sets(data: Any, label: str | None) -> tuple[DataSet, DataSet | None, DataSet]:
    """Return in-distribution data for training, validation and testing."""
    if isinstance(data, str | Path):
        path = Path(data).expanduser()
        if path.is_file() and {"train", "test"} <= (has := array_parts(path) if path.suffix != ".mat" else set()):
            data = {part: path for part in ("train", "val", "test") if part in has}
        elif path.is_dir() and label is None and official_reader(path) and has_halves(path):
            data = {"train": path, "test": path}
        elif path.is_dir() and (parts := part_folders(path)):
            data = parts if "test" in parts else {"train": parts["train"], "test": parts["val"]}
        else:
            return split_by_class(read(path, label=label))
        if "val" not in data and data["train"] == data["test"]:  # a tenth of the test half is for validation
            train = _part(data, "train", label)
            test = _same_classes(_part(data, "test", label), train)
            chosen = _hash_of_each(test) < 0.1
            val = take(test, chosen.nonzero()[:, 0], split=f"{test.split}, a tenth of it")
            return train, val, take(test, (~chosen).nonzero()[:, 0], split=f"{test.split}, without validation")
    if not isinstance(data, Mapping):
        return split_by_class(as_set(data, "id"))
    if not {"train", "test"} <= set(data) or set(data) - {"train", "val", "test"}:
        raise DataError(f"in-distribution data needs train and test, and may have val; here are {', '.join(data)}")
    train = _part(data, "train", label)
    rest = {part: _same_classes(_part(data, part, label), train) for part in ("val", "test") if part in data}
    return train, rest.get("val"), rest["test"]


def _part(data: Mapping[str, Any], part: str, label: str | None) -> DataSet:
    """Return training, validation or test data; where several name one file, that part of it."""
    if not isinstance(data[part], str | Path):
        return as_set(data[part], part)
    path = Path(data[part]).expanduser()
    if path.is_file() and path.suffix in (".npz", ".safetensors"):
        if part not in array_parts(path) and any(other != part and data[other] == data[part] for other in data):
            raise DataError(f"{path}: has no arrays for {part}, such as {part}_images; name another file for it")
        return read_arrays(path, part)
    if part == "val" and data["test"] == data["val"]:
        raise DataError(f"{path}: cannot be both val and test; name two folders, or leave out val")
    return read(path, "train" if part == "train" else "test", label=label)


def split_by_class(data: DataSet) -> tuple[DataSet, DataSet, DataSet]:
    """Split a set: about 80 % for training, 10 % for validation, 10 % for testing.

    The part of a file follows from a hash of its path alone, so that it stays the same when others are added or
    removed or the folder moves. Samples without a path are divided within each class, at random with a fixed seed.
    """
    _check_classes(data)
    u, y = _hash_of_each(data), labels(data)
    parts = {"val": u < 0.1, "test": (u >= 0.1) & (u < 0.2), "train": u >= 0.2}
    few = next((k for k in y.unique().tolist() if not (parts["train"] & (y == k)).any()), None)
    if few is not None or not parts["val"].any() or not parts["test"].any():
        what = (
            f"class {data.class_names[few] if data.class_names else few}" if few is not None else f"{len(data)} samples"
        )
        raise DataError(f"{data.name}: {what} cannot be split 80 / 10 / 10; add samples, or give train, val and test")
    by = "by a hash of the path" if isinstance(data, FileSet) else "of each class"
    train, val, test = (
        take(data, parts[name].nonzero()[:, 0], split=f"{share} % {by}")
        for name, share in (("train", 80), ("val", 10), ("test", 10))
    )
    return train, val, test


def _hash_of_each(data: DataSet) -> Tensor:
    """Return a number in [0, 1) for each sample: a hash of its path, or else its place in its class, shuffled."""
    if isinstance(data, FileSet):
        digests = (hashlib.sha256(os.fsencode(path)).digest() for path in data.paths)
        return torch.tensor([int.from_bytes(digest[:6], "big") / 2**48 for digest in digests], dtype=torch.float64)
    y = labels(data)
    u = torch.empty(len(y), dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    for k in y.unique():
        members = (y == k).nonzero()[:, 0]
        n = len(members)
        u[members[torch.randperm(n, generator=rng)]] = (torch.arange(n) + 0.5).double() / n
    return u


def _group(group: Any, role: str) -> dict[str, DataSet]:
    """Return OOD data by name."""
    if not isinstance(group, Mapping):
        raise DataError(
            f'{role}: must be a dictionary of names and data, such as {{"cars": "folder"}}, not {group!r:.60}'
        )
    if "mean" in group:
        raise DataError(f'{role}: a set cannot be called "mean", as the mean over sets is; give it another name')
    return {key: as_ood(dataclasses.replace(as_set(data, key), name=key)) for key, data in group.items()}


def _same_classes(data: DataSet, train: DataSet) -> DataSet:
    """Return a set with its classes numbered as in training."""
    if data.class_names == train.class_names or not data.class_names or not train.class_names:
        return data
    number = {name: k for k, name in enumerate(train.class_names)}
    extra = next((name for name in data.class_names if name not in number), None)
    if extra is not None or isinstance(data, ItemSet):
        raise DataError(
            f"{data.name}: the class {extra or data.class_names!r} is not in the training data; make them agree"
        )
    renumber = torch.tensor([number[name] for name in data.class_names])
    return take(data, torch.arange(len(data)), y=renumber[labels(data)], class_names=train.class_names)


def _check_classes(train: DataSet) -> tuple[str, ...]:
    """Return the class names, each of which must have training samples."""
    y = labels(train)
    where = train.root if isinstance(train, FileSet) else train.name
    if not len(y) or int(y.min()) < 0:
        if isinstance(train, FileSet):
            remedy = r"put each class into a separate folder, or match it in the path: label=r'(\d)_'"
        else:
            remedy = "give labels, counted from 0"
        raise DataError(f"{where}: in-distribution data must have classes; {remedy}")
    class_names = train.class_names or tuple(map(str, range(int(y.max()) + 1)))
    counts = torch.bincount(y, minlength=len(class_names))
    if len(class_names) < 2:
        raise DataError(
            f"{where}: has only one class, {class_names[0]!r}; name the folder that holds the class folders"
        )
    if not counts.all():
        empty = class_names[int((counts == 0).nonzero()[0])]
        raise DataError(f"{where}: class {empty} has no training samples; labels must count from 0 without gaps")
    return class_names


def _kind(data: DataSet) -> str:
    """Return what the samples of a set are: "images", "sounds" or "floats (shape)"."""
    if isinstance(data, FileSet):
        return "images" if data.kind == "image" else "sounds"
    if isinstance(data, TensorSet):
        return "images" if data.x.dtype == torch.uint8 else f"floats {tuple(data.x.shape[1:])}"
    x = torch.as_tensor(data[0][0]) if hasattr(data[0][0], "dtype") else None
    return f"floats {tuple(x.shape)}" if x is not None and x.is_floating_point() else "images"


def _check_kinds(benchmark: Benchmark, noise: bool) -> None:
    """Check that all sets hold one kind of data, and that nothing is both ID and OOD."""
    sets = {role: data for role, data in benchmark.sets().items() if not (noise and role.startswith("ood_val/"))}
    kinds = {role: _kind(data) for role, data in sets.items()}
    other = next((role for role, kind in kinds.items() if kind != kinds["train"]), None)
    if other:
        raise DataError(f"{other} holds {kinds[other]}, but train holds {kinds['train']}; a benchmark is of one kind")
    file_sets = {role: data for role, data in sets.items() if isinstance(data, FileSet)}
    files = {role: {str(data.root.resolve() / path) for path in data.paths} for role, data in file_sets.items()}
    id_files = {path for role, paths in files.items() if "/" not in role for path in paths}
    for role, paths in files.items():
        both = sorted(paths & id_files) if "/" in role else []
        if both:
            raise DataError(f"{role}: {both[0]} is both ID and OOD, one of {len(both)} files; remove it from one")


def _noise(kind: str, train: DataSet, transform: ImageTransform | AudioTransform | None) -> TensorSet:
    if isinstance(train, TensorSet):
        like: TensorSet | ImageTransform = train
    elif isinstance(transform, ImageTransform) and transform.crop > IN_MEMORY_SIDE:
        like = transform
    else:
        like = prepare(train, transform)
    return noise(kind, like)  # type: ignore[arg-type]


def _fitted_transform(train: DataSet, options: dict[str, Any]) -> ImageTransform | AudioTransform | None:
    """Return the default for this data, with mean and deviation as measured, changed by the options."""
    kind = _kind(train)
    try:
        if kind == "sounds":
            return _fitted_audio(train, options)
        if kind == "images":
            return _fitted_images(train, options)
    except TypeError as error:
        fields = AudioTransform if kind == "sounds" else ImageTransform
        names = ", ".join(["size"] * (kind == "images") + [field.name for field in dataclasses.fields(fields)])
        wrong = str(error).split("__init__() ")[-1].split(". Did you mean")[0]  # from Python 3.13 on, it guesses
        raise DataError(f"transform: {wrong}; it may have {names}") from error
    if options:
        raise DataError(f"transform: {kind} are taken as they are; leave out {', '.join(options)}")
    return None


def _fitted_audio(train: DataSet, options: dict[str, Any]) -> AudioTransform:
    plain = AudioTransform(**options)
    if {"mean", "std"} & set(options):
        return plain
    x = prepare(train, plain).x
    return dataclasses.replace(plain, mean=float(x.mean()), std=float(x.std()))


def _fitted_images(train: DataSet, options: dict[str, Any]) -> ImageTransform:
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    size = options.pop("size", None)
    arrays = isinstance(train, TensorSet)
    if size is None:
        size = options.get("crop", int(min(train.x.shape[2:])) if isinstance(train, TensorSet) else 224)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise DataError(f"transform: size must be a whole number of pixels, not {size!r}")
    large = size > IN_MEMORY_SIDE and not arrays
    options = {"resize": round(size * 8 / 7) if large else size, "crop": size} | options
    options = {"augment": "resized_crop" if large else "crop"} | options
    channels = len(
        options.get("mean", options.get("std", (0,) * (train.x.shape[1] if isinstance(train, TensorSet) else 3)))
    )
    usual: dict[str, Any] = dict(_IMAGENET if channels == 3 else _GREY)
    if {"mean", "std"} <= set(options) or size > IN_MEMORY_SIDE:
        return ImageTransform(**(usual | options))
    half: dict[str, Any] = {"mean": (0.5,) * channels, "std": (0.5,) * channels}
    plain = ImageTransform(**(half | options))
    mean, std = channel_statistics(prepare(train, plain))
    measured: dict[str, Any] = {"mean": mean, "std": tuple(max(s, 1e-3) for s in std)}
    return ImageTransform(**(measured | options))


@on_cpu
def read_benchmark(path: str | Path) -> Benchmark:
    """Make a benchmark of a TOML file. Paths in it are relative to the file.

    ```toml
    name = "birds"                       # optional
    [id]
    path = "photos"                      # as `id` of make_benchmark; or train = ..., val = ..., test = ...
    label = '(\\d)_'                      # optional: matches the class in the path instead
    [ood]
    near = { bats = "bats" }
    far = { cars = "cars", noise = "noise.npz" }
    val = "gaussian"                     # or { name = "folder" }; optional
    [transform]                          # optional
    size = 64                            # and, or, resize, crop, mean, std, augment, flip, padding
    [audio]                              # instead, for sounds: sample_rate, seconds, mels, ...
    ```
    """
    path = Path(path).expanduser()
    try:
        table = tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not valid TOML ({error}); correct it there") from error
    _section(path, table, "", {"name", "id", "ood", "transform", "audio"})
    id_table = _section(path, table.get("id"), "id", {"path", "train", "val", "test", "label"})
    ood_table = _section(path, table.get("ood", {}), "ood", {"near", "far", "val"})
    for section in ("transform", "audio"):
        _section(path, table.get(section, {}), section, None)
    parts = {key: _path(path, "id", key, id_table[key]) for key in ("train", "val", "test") if key in id_table}
    if ("path" in id_table) == bool(parts):
        raise DataError(f"{path}: [id] needs either path, or train and test")
    groups = {}
    for key in ("near", "far", "val"):
        group = ood_table.get(key, {})
        if key == "val" and group in ("gaussian", "uniform"):
            groups[key] = group
            continue
        if not isinstance(group, dict):
            also = '"gaussian", "uniform" or ' if key == "val" else ""
            raise DataError(f'{path}: {key} in [ood] must be {also}a table of names and paths, as {{ cars = "cars" }}')
        groups[key] = {name: _path(path, "ood", name, where) for name, where in group.items()}
    if not isinstance(id_table.get("label", ""), str):
        raise DataError(f"{path}: label in [id] must be a regular expression in quotes, not {id_table['label']!r}")
    try:
        return make_benchmark(
            _path(path, "id", "path", id_table["path"]) if "path" in id_table else parts,
            groups["far"],
            near=groups["near"],
            ood_val=groups["val"],
            transform=table.get("audio") or table.get("transform"),
            name=str(table.get("name", path.stem)),
            label=id_table.get("label"),
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _section(path: Path, table: Any, name: str, allowed: set[str] | None) -> dict[str, Any]:
    where = f"[{name}]" if name else "the file"
    if not isinstance(table, dict):
        raise DataError(f"{path}: has no section {where}; see spcp.data.read_benchmark for the format")
    extra = sorted(set(table) - allowed) if allowed is not None else []
    if extra:
        raise DataError(f"{path}: {where} cannot have {extra[0]!r}; it may have {', '.join(sorted(allowed or ()))}")
    return table


def _path(path: Path, section: str, key: str, value: Any) -> Path:
    if not isinstance(value, str):
        raise DataError(f"{path}: {key} in [{section}] must be a path in quotes, not {value!r}")
    return path.parent / Path(value).expanduser()
