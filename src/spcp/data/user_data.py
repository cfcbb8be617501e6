"""Benchmarks of a user's data: made of folders, arrays or data sets, or described in a TOML file."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import os
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .arrays import array_parts, read_arrays
from .audio import AudioTransform
from .benchmark import Benchmark
from .errors import DataError, read_text
from .folders import Bad, read_folder
from .images import ImageTransform
from .noises import channel_statistics, noise
from .prepared import IN_MEMORY_SIDE, prepare, readable
from .reading import as_set, has_halves, official_reader, part_folders, read
from .sets import DataSet, FileSet, ItemSet, TensorSet, as_ood, labels, on_cpu, take

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_GREY = {"mean": (0.449,), "std": (0.226,)}  # ImageNet in grey
SHARES = (0.8, 0.1, 0.1)  # of training, validation and test data
COMPARED = 20_000  # files: more are told apart by their paths alone


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
    split: Sequence[float] | None = None,
    bad: Bad = "raise",
) -> Benchmark:
    """Make a benchmark of your data.

    Args:
        id: in-distribution data by class. A path or data set, which is split class by class; a folder of `train`, `val`
            and `test` folders (without `test`, `val` is for testing); official files or arrays with a training and a
            test half, of which a tenth of the test half is for validation; or a dictionary of train, val, test.
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
        split: the shares of training, validation and test data, by default 0.8, 0.1, 0.1; see `split_by_class`.
        bad: "skip" decodes every file once and leaves out those that cannot be read, with a warning.
    """
    if bad not in ("raise", "skip"):
        raise DataError(f'bad must be "raise" or "skip", not {bad!r}')
    train, val, test = _id_sets(id, label, split, bad)
    noise_kind = ood_val if isinstance(ood_val, str) else None
    groups = {"far": ("ood", ood), "near": ("near", near), "ood_val": ("ood_val", None if noise_kind else ood_val)}
    ood_sets = {role: _group(group, argument, bad) if group else {} for role, (argument, group) in groups.items()}
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
    sets = {role: data for role, data in benchmark.sets().items() if not (noise_kind and role.startswith("ood_val/"))}
    _check_kinds(sets)
    _check_shared(sets)
    notes = [note for data in sets.values() if isinstance(data, FileSet) for note in data.notes]
    return dataclasses.replace(benchmark, notes=tuple(dict.fromkeys(notes)))


def _id_sets(
    data: Any, label: str | None, shares: Sequence[float] | None, bad: Bad
) -> tuple[DataSet, DataSet | None, DataSet]:
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
            return split_by_class(_clean(read(path, label=label), bad), shares or SHARES)
        if shares is not None:
            raise DataError(f"{path}: is divided into training and test data already; leave out split")
        if "val" not in data and data["train"] == data["test"]:  # a tenth of the test half is for validation
            train, test = (_clean(_part(data, part, label), bad) for part in ("train", "test"))
            val, test = _cut(_same_classes(test, train), (0.1, 0.9))
            return train, val, test
    if not isinstance(data, Mapping) or "pixel_values" in data:  # a whole set in a batch of Hugging Face
        return split_by_class(_clean(as_set(data, "id"), bad), shares or SHARES)
    if shares is not None:
        raise DataError("in-distribution data is given as train, val and test already; leave out split")
    if not {"train", "test"} <= set(data) or set(data) - {"train", "val", "test"}:
        raise DataError(f"in-distribution data needs train and test, and may have val; here are {', '.join(data)}")
    sets = {part: _clean(_part(data, part, label), bad) for part in ("train", "val", "test") if part in data}
    sets = {part: _same_classes(samples, sets["train"]) for part, samples in sets.items()}
    return sets["train"], sets.get("val"), sets["test"]


def _clean(data: DataSet, bad: Bad) -> DataSet:
    return readable(data) if bad == "skip" and isinstance(data, FileSet) else data


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


def split_by_class(data: DataSet, shares: Sequence[float] = SHARES) -> tuple[DataSet, DataSet | None, DataSet]:
    """Split every class of a set by the shares of training, validation (may be 0) and test data.

    The files of a class are put in the order of a hash of their paths: the first are for validation, the next for
    testing, the others for training. So the split is the same wherever the folder lies, and when files come or go, only
    the few at the borders change their part. Samples without a path are shuffled with a fixed seed. Every part has a
    sample of every class.
    """
    class_names = _check_classes(data)
    train, val, test = _checked(shares)
    counts = torch.bincount(labels(data))
    few = int(counts.argmin())
    if counts[few] < 3 - (val == 0):
        raise DataError(
            f"{data.name}: class {class_names[few]} has {counts[few]} samples, too few to be split; add samples, or "
            "give train, val and test"
        )
    sets = _cut(dataclasses.replace(data, split=""), (val, test, train))
    return sets[2], sets[0] if val else None, sets[1]


def _checked(shares: Sequence[float]) -> tuple[float, float, float]:
    """Return the shares of training, validation and test data; they may be in percent."""
    try:
        train, val, test = map(float, shares)
        total = 100.0 if train + val + test > 1.5 else 1.0
        if min(train, test) > 0 and val >= 0 and abs(train + val + test - total) < 1e-6 * total:
            return train / total, val / total, test / total
    except (TypeError, ValueError):
        pass
    given = ", ".join(map(str, shares)) if isinstance(shares, list | tuple) else shares
    raise DataError(
        f"split {given}: must be the shares of training, validation and test data, which add up to 1, such as "
        "0.6, 0.2, 0.2; only that of validation data may be 0"
    )


def _cut(data: DataSet, shares: Sequence[float]) -> list[DataSet]:
    """Cut every class at the shares, in the order of `_hash_of_each`; no part stays empty if there are enough."""
    u, y = _hash_of_each(data), labels(data)
    part = torch.zeros(len(y), dtype=torch.int64)  # the number of each sample's part
    for k in y.unique():
        members = (y == k).nonzero()[:, 0]
        members, n, start = members[u[members].argsort()], len(members), 0
        left = sum(share > 0 for share in shares)  # parts that need a sample
        for i, share in enumerate(shares):
            left -= share > 0
            end = math.ceil(sum(shares[: i + 1]) * n - 0.5 - 1e-9)  # rounded
            end = min(max(end, start + (share > 0)), n - left)
            part[members[start:end]] = i
            start = max(start, end)
    names = [", ".join(filter(None, [data.split, f"{100 * share:g} % of each class"])) for share in shares]
    return [take(data, (part == i).nonzero()[:, 0], split=name) for i, name in enumerate(names)]


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


def _group(group: Any, role: str, bad: Bad) -> dict[str, DataSet]:
    """Return OOD data by name."""
    if not isinstance(group, Mapping):
        raise DataError(
            f'{role}: must be a dictionary of names and data, such as {{"cars": "folder"}}, not {group!r:.60}'
        )
    if "mean" in group:
        raise DataError(f'{role}: a set cannot be called "mean", as the mean over sets is; give it another name')
    sets = {key: _without_classes(data, key) for key, data in group.items()}
    return {key: _clean(as_ood(dataclasses.replace(data, name=key)), bad) for key, data in sets.items()}


def _without_classes(data: Any, name: str) -> DataSet:
    """Return a set; the sub-folders of a folder need not be classes."""
    path = Path(data).expanduser() if isinstance(data, str | Path) else None
    if path is not None and path.is_dir() and not official_reader(path) and not part_folders(path):
        return read_folder(path, label="")
    return as_set(data, name)


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


def _check_kinds(sets: Mapping[str, DataSet]) -> None:
    """Check that all sets hold one kind of data."""
    kinds = {role: _kind(data) for role, data in sets.items()}
    other = next((role for role, kind in kinds.items() if kind != kinds["train"]), None)
    if other:
        raise DataError(f"{other} holds {kinds[other]}, but train holds {kinds['train']}; a benchmark is of one kind")


def _check_shared(sets: Mapping[str, DataSet]) -> None:
    """Check that nothing is both ID and OOD, and that settings are not chosen on what they are tested on."""
    files = _files({role: data for role, data in sets.items() if isinstance(data, FileSet)})
    id_files = {key for role, held in files.items() if "/" not in role for key in held}
    for role, held in files.items():
        both = sorted(path for key, path in held.items() if key in id_files) if "/" in role else []
        if both:
            raise DataError(f"{role}: {both[0]} is both ID and OOD, one of {len(both)} files; remove it from one")
    chosen_on = [role for role in sets if role.startswith("ood_val/")]
    tested_on = [role for role in sets if role.startswith(("near/", "far/"))]
    for one, other in itertools.product(chosen_on, tested_on):
        a, b = sets[one], sets[other]
        both = sorted(path for key, path in files.get(one, {}).items() if key in files.get(other, {}))
        if both or (isinstance(a, TensorSet) and isinstance(b, TensorSet) and torch.equal(a.x, b.x)):
            what = f"share {both[0]}, one of {len(both)} files" if both else "hold the same samples"
            raise DataError(f"{one} and {other} {what}; choose settings on other OOD data than you test on")


def _files(sets: Mapping[str, FileSet]) -> dict[str, dict[str, str]]:
    """Return the paths of each set by what makes a file the same as another: the contents; of many files, the path."""
    paths = {role: [str(data.root.resolve() / path) for path in data.paths] for role, data in sets.items()}
    every = set(itertools.chain.from_iterable(paths.values()))
    sizes = {path: os.path.getsize(path) if os.path.isfile(path) else 0 for path in every if len(every) <= COMPARED}
    count = Counter(sizes.values())

    def key(path: str) -> str:
        size = sizes.get(path, 0)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if size and count[size] > 1 else path

    keys = {path: key(path) for path in every}
    return {role: {keys[path]: path for path in listed} for role, listed in paths.items()}


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
def read_benchmark(path: str | Path, *, bad: Bad | None = None) -> Benchmark:
    """Make a benchmark of a TOML file. Paths in it are relative to the file; `bad` comes before that of the file.

    ```toml
    name = "birds"                       # optional
    bad = "skip"                         # optional: leave out files that cannot be read
    [id]
    path = "photos"                      # as `id` of make_benchmark; or train = ..., val = ..., test = ...
    label = '(\\d)_'                      # optional: matches the class in the path instead
    split = [0.6, 0.2, 0.2]              # optional: shares of training, validation and test data
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
    _section(path, table, "", {"name", "bad", "id", "ood", "transform", "audio"})
    id_table = _section(path, table.get("id"), "id", {"path", "train", "val", "test", "label", "split"})
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
            split=id_table.get("split"),
            bad=bad or table.get("bad", "raise"),
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
