"""Readers for folders: images or sounds by class, TinyImageNet, Textures, Places365, and OpenOOD's image lists.

Each returns a `FileSet`: files are listed and labelled here, and decoded by the loader. `bad="skip"` leaves out what
cannot be used, with a warning; `bad="raise"` stops at the first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import importlib.util
import itertools
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import torch

from ..progress import printable
from .errors import DataError, read_text
from .files import Split, check_split
from .images import HEIC
from .sets import OOD, FileSet, on_cpu

Bad = Literal["raise", "skip"]
Kind = Literal["image", "audio"]

IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
SOUNDS = {".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif"}
MEDIA = {  # that cannot be read, and lie beside photographs and sounds
    *HEIC, ".avif", ".jxl", ".jp2", ".svg", ".psd", ".dng", ".raw", ".cr2", ".cr3", ".nef", ".arw", ".mov", ".mp4",
    ".m4v", ".avi", ".mkv", ".webm", ".m4a", ".aac", ".wma", ".opus",
}  # fmt: skip
_SORTED = 50_000  # names of a folder that are sorted in memory


@on_cpu
def read_folder(
    folder: str | Path,
    *,
    kind: Kind | None = None,
    label: str | None = None,
    class_names: Sequence[str] | None = None,
) -> FileSet:
    r"""List all images, or all sounds, below a folder, in the order of their names.

    The class of a file is the sub-folder it is in; in a folder without sub-folders all are unlabelled. Instead, `label`
    can be a regular expression whose first group matches the class in the path: `r"(\d)_[^/]*$"` for `7_anna_3.wav`;
    "" leaves all unlabelled. Classes are numbered in the order of their names (numbers by value), or of `class_names`.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; check the path")
    files = list(walk(folder))
    images, sounds = ([file for file in files if suffix_of(file) in endings(kind)] for kind in ("image", "audio"))
    if kind is None:
        if images and sounds:
            raise DataError(f"{folder}: holds both images and sounds; choose with kind='image' or kind='audio'")
        kind = "audio" if sounds else "image"
    paths = images if kind == "image" else sounds
    others = sorted(set(files) - set(paths))
    notes = left_out(folder, Counter(f"*{suffix_of(path)}" if suffix_of(path) else _last(path) for path in others))
    if not paths:
        raise nothing_in(folder, kind, notes)
    if label == "":
        names = [""] * len(paths)
    elif label is None:
        names = [printable(path.split("/")[0]) if "/" in path else "" for path in paths]
    else:
        names = [printable(_matched(label, path, folder)) for path in paths]
    if "" in names and len(set(names)) > 1:
        path = paths[names.index("")]
        raise DataError(f"{folder / path}: lies beside the class folders, so it has no class; move it into one")
    class_names = tuple(class_names) if class_names is not None else tuple(sorted(set(names) - {""}, key=_by_value))
    number = {name: k for k, name in enumerate(class_names)} | {"": OOD}
    extra = next((name for name in names if name not in number), None)
    if extra is not None:
        raise DataError(f"{folder}: the class {extra!r} is none of the {len(class_names)} given; rename or remove it")
    if label is None and class_names:
        folders = {
            printable(entry.name) for entry in os.scandir(folder) if entry.is_dir() and not is_system(entry.name)
        }
        for name in sorted(folders - set(names)):
            notes.append(f"{folder / name}: holds no {kind} files, so it is no class; fill or remove it")
            warnings.warn(notes[-1], stacklevel=3)
    y = torch.tensor([number[name] for name in names])
    return FileSet(folder.name, folder, tuple(paths), y, class_names, f"all of {folder.name}", kind, tuple(notes))


def endings(kind: Kind) -> set[str]:
    """Return the endings of the files that can be read as images, or as sounds."""
    if kind == "audio":
        return SOUNDS
    return IMAGES | HEIC if importlib.util.find_spec("pillow_heif") else IMAGES


def nothing_in(folder: Path, kind: Kind, notes: Sequence[str]) -> DataError:
    """Return the error about a folder that holds no images, or no sounds."""
    listed = " ".join(sorted(endings(kind)))
    return DataError("; ".join([f"{folder}: holds no {kind} files ({listed})", *notes, "check the path"]))


def left_out(folder: Path, kinds: Counter[str]) -> list[str]:
    """Say how many files of which kinds are left out, in at most one note; a warning if images or sounds are among."""
    if not kinds:
        return []
    listed = [f"{count} {kind}" for kind, count in kinds.most_common(6)] + ["others"] * (len(kinds) > 6)
    seen = {kind.removeprefix("*") for kind in kinds}
    note = f"{folder}: left out: {', '.join(listed)}" + "; pip install 'spcp[heic]' reads HEIC" * bool(seen & HEIC)
    if seen & MEDIA:
        warnings.warn(note, stacklevel=4)
    return [note]


def walk(
    folder: Path,
    *,
    ordered: bool = True,
    onerror: Callable[[DataError], None] | None = None,
    prefix: str = "",
    above: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[str]:
    """Yield the paths below a folder, relative to it, in order; not below hidden ones or links that lead back up.

    A folder that cannot be read is an error, or passed to `onerror`.
    """
    try:
        info = folder.stat()
        here = (info.st_dev, info.st_ino)
        if here in above:
            return
        for name, is_folder in entries(folder, ordered):
            if is_folder and not is_system(name):
                inner: Any = {"prefix": f"{prefix}{name}/", "above": above | {here}}
                yield from walk(folder / name, ordered=ordered, onerror=onerror, **inner)
            else:
                yield f"{prefix}{name}"
    except OSError as error:
        problem = DataError(f"{folder}: {error.strerror}; check the path and its permissions")
        if onerror is None:
            raise problem from error
        onerror(problem)


def entries(folder: str | Path, ordered: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield the files and folders in a folder by name, in order, and whether each is a folder.

    Of a million names only `_SORTED` are in memory at a time: sorted runs of them go to temporary files, to be merged.
    """
    with os.scandir(folder) as entries, contextlib.ExitStack() as files:
        # No name holds a zero or a slash, so a line can stand for one.
        lines = (
            entry.name.replace("\n", "\0") + "/" * entry.is_dir()
            for entry in entries
            if is_system(entry.name) or entry.is_dir() or entry.is_file()
        )
        run = sorted(itertools.islice(lines, _SORTED), key=_name) if ordered else []
        runs: list[Iterable[str]] = [run if ordered else lines]
        while len(run) == _SORTED:
            file = files.enter_context(
                tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape", newline="\n")
            )
            file.writelines(f"{line}\n" for line in run)
            file.seek(0)
            runs[-1] = (line[:-1] for line in file)
            run = sorted(itertools.islice(lines, _SORTED), key=_name)
            runs.append(run)
        for line in heapq.merge(*runs, key=_name):
            yield _name(line).replace("\0", "\n"), line.endswith("/")


def _name(line: str) -> str:
    return line.removesuffix("/")


def is_system(name: str) -> bool:
    """Return whether a file or folder is hidden, or one that a system leaves behind."""
    return name.startswith(".") or name in {"__MACOSX", "Thumbs.db", "desktop.ini"}


def suffix_of(path: str) -> str:
    """Return the ending, in small letters; none for what a system leaves behind."""
    name = _last(path)
    return "" if is_system(name) else os.path.splitext(name)[1].lower()


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _matched(pattern: str, path: str, folder: Path) -> str:
    try:
        match = re.search(pattern, path)
        label = match[1] if match else None
    except (re.error, IndexError) as error:
        raise DataError(
            f"label pattern {pattern!r}: {error}; it must be a regular expression with one group"
        ) from error
    if label is None:
        raise DataError(
            f"{folder / path}: the label pattern {pattern!r} does not match it; correct the pattern or remove the file"
        )
    return str(label)


def _by_value(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


@on_cpu
def read_imglist(imglist: str | Path, root: str | Path, *, bad: Bad = "raise") -> FileSet:
    """Read an OpenOOD list: lines `path label` (-1 for OOD), split at the first space; paths start at `root`."""
    imglist, root = Path(imglist).expanduser(), Path(root).expanduser()
    paths, y = parse_imglist(imglist, bad=bad)
    missing = [i for i, path in enumerate(paths) if not os.path.isfile(root / path)]  # False for any name
    if missing:
        message = f"{imglist}: {len(missing)} of {len(paths)} images are not below {root}, such as {paths[missing[0]]}"
        if bad == "raise" or len(missing) == len(paths):
            raise DataError(f"{message}; complete the data set or pass bad='skip'")
        warnings.warn(f"{message}; they are left out", stacklevel=2)
        there = sorted(set(range(len(paths))) - set(missing))
        paths, y = tuple(paths[i] for i in there), tuple(y[i] for i in there)
    return FileSet(imglist.stem, root, tuple(paths), torch.tensor(y, dtype=torch.int64), split="OpenOOD's list")


def parse_imglist(imglist: Path, *, bad: Bad = "raise") -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Read paths and labels of an OpenOOD list; a line without a label, or whose path leaves the root, is an error."""
    paths, y, skipped = [], [], []
    for number, line in enumerate(read_text(imglist).split("\n"), 1):
        if not line.strip():
            continue
        path, _, label = line.rstrip("\r").partition(" ")
        problem = None
        if not label.strip():
            problem = "has no label"
        elif not re.fullmatch(r"-1|\d{1,9}", label.strip()):
            problem = f"has the label {label.strip()[:20]!r}, which is no class number and not -1"
        elif path.startswith(("/", "\\")) or ":" in path[:2] or (".." in path and ".." in re.split(r"[/\\]", path)):
            problem = "leads out of the data folder"
        if problem is None:
            paths.append(path)
            y.append(int(label))
        elif bad == "raise":
            raise DataError(f"{imglist}, line {number} ({line[:80]!r}) {problem}; correct it or pass bad='skip'")
        else:
            skipped.append(number)
    if skipped:
        warnings.warn(f"{imglist}: {len(skipped)} lines left out, such as line {skipped[0]}", stacklevel=3)
    if not paths:
        raise DataError(f"{imglist}: names no image; each line should be 'path label'")
    return tuple(paths), tuple(y)


@on_cpu
def read_tin(folder: str | Path, split: Split) -> FileSet:
    """Read TinyImageNet-200 as downloaded; "test" is its validation set, whose labels are in `val_annotations.txt`."""
    folder = Path(folder).expanduser()
    check_split(split)
    if split == "train":
        return dataclasses.replace(read_folder(folder / "train", kind="image"), name="tin", split="training images")
    table = folder / "val" / "val_annotations.txt"
    rows = [line.split("\t") for line in read_text(table).splitlines() if line.strip()]
    short = next((i for i, row in enumerate(rows, 1) if len(row) < 2), None)
    if short or not rows:
        raise DataError(f"{table}: line {short or 1} has no class; download the data set again")
    images = folder / "val" / "images"
    present = {e.name for e in os.scandir(images) if not e.name.startswith(".")} if images.is_dir() else set()
    lost = [row[0] for row in rows if row[0] not in present]
    if lost or len(present) > len(rows):
        what = f"{lost[0]} is listed but missing" if lost else f"{len(present)} images but {len(rows)} labels"
        raise DataError(f"{table}: {what}; download the data set again")
    if (folder / "wnids.txt").exists():
        class_names = tuple(sorted(read_text(folder / "wnids.txt").split()))
    else:
        class_names = tuple(sorted({row[1] for row in rows}))
    number = {name: k for k, name in enumerate(class_names)}
    if any(row[1] not in number for row in rows):
        raise DataError(f"{table}: names a class that wnids.txt does not; download the data set again")
    y = torch.tensor([number[row[1]] for row in rows])
    return FileSet("tin", folder / "val" / "images", tuple(row[0] for row in rows), y, class_names, "validation images")


def read_texture(folder: str | Path) -> FileSet:
    """Read Textures (DTD) as downloaded: all images by class."""
    folder = Path(folder).expanduser()
    data = read_folder(folder / "images" if (folder / "images").is_dir() else folder, kind="image")
    return dataclasses.replace(data, name="texture", split="all images")


@on_cpu
def read_places365(folder: str | Path) -> FileSet:
    """Read Places365's validation images, with labels from `places365_val.txt` if that is there."""
    folder = Path(folder).expanduser()
    images = folder / "val_256" if (folder / "val_256").is_dir() else folder
    data = read_folder(images, kind="image", label="")  # sub-folders, where there are any, are no labels
    table = next((p for p in (folder / "places365_val.txt", folder.parent / "places365_val.txt") if p.exists()), None)
    y = data.y
    if table is not None:
        rows = dict(zip(*parse_imglist(table), strict=True))
        unlabelled = [path for path in data.paths if PurePosixPath(path).name not in rows]
        if unlabelled:
            raise DataError(
                f"{table}: has no label for {unlabelled[0]}, one of {len(unlabelled)} images; get the whole file"
            )
        y = torch.tensor([rows[PurePosixPath(path).name] for path in data.paths])
    return dataclasses.replace(data, name="places365", y=y, split="validation images")
