"""Readers for folders: images or sounds by class, TinyImageNet, Textures, Places365, and OpenOOD's image lists.

Each returns a `FileSet`: files are found and labelled here, and decoded by the loader. `bad="skip"` leaves out what
cannot be used and says how many, `bad="raise"` stops at the first.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from .errors import DataError
from .files import Split, check_split, read_bytes
from .sets import OOD, FileSet, on_cpu

Bad = Literal["raise", "skip"]

IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
SOUNDS = {".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif"}


@on_cpu
def read_folder(
    folder: str | Path,
    *,
    kind: Literal["image", "audio"] | None = None,
    label: str | None = None,
    class_names: Sequence[str] | None = None,
) -> FileSet:
    r"""All images, or all sounds, below a folder, in the order of their names.

    The class of a file is the sub-folder it is in; in a folder without sub-folders all are unlabelled. Instead, `label`
    can be a regular expression whose first group finds the class in the path: `r"(\d)_[^/]*$"` for `7_anna_3.wav`; ""
    leaves all unlabelled.
    Classes are numbered in the order of their names (numbers by value), or as `class_names` says.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; check the path")
    files = list(_walk(folder))
    images = [file for file in files if _suffix(file) in IMAGES]
    sounds = [file for file in files if _suffix(file) in SOUNDS]
    if kind is None:
        if images and sounds:
            raise DataError(f"{folder}: holds both images and sounds; say which with kind='image' or kind='audio'")
        kind = "audio" if sounds else "image"
    paths = images if kind == "image" else sounds
    if not paths:
        endings = " ".join(sorted(IMAGES if kind == "image" else SOUNDS))
        raise DataError(f"{folder}: holds no {kind} files ({endings}); check the path")
    if label == "":
        names = [""] * len(paths)
    elif label is None:
        names = [path.split("/")[0] if "/" in path else "" for path in paths]
    else:
        names = [_matched(label, path, folder) for path in paths]
    if "" in names and len(set(names)) > 1:
        stray = paths[names.index("")]
        raise DataError(f"{folder / stray}: lies beside the class folders, so it has no class; move it into one")
    known = list(class_names) if class_names is not None else sorted(set(names) - {""}, key=_by_value)
    number = {name: k for k, name in enumerate(known)} | {"": OOD}
    unknown = next((name for name in names if name not in number), None)
    if unknown is not None:
        raise DataError(f"{folder}: the class {unknown!r} is none of the {len(known)} known ones; rename or remove it")
    y = torch.tensor([number[name] for name in names])
    return FileSet(folder.name, folder, tuple(paths), y, tuple(known), f"all of {folder.name}", kind)


def _walk(folder: Path, prefix: str = "", above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """Paths below a folder, relative to it, in order; hidden ones are left out, and links that lead back up."""
    info = folder.stat()
    here = (info.st_dev, info.st_ino)
    if here in above:
        return
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", above | {here})
        elif entry.is_file():
            yield f"{prefix}{entry.name}"


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _matched(pattern: str, path: str, folder: Path) -> str:
    try:
        found = re.search(pattern, path)
        return str(found[1]) if found and found[1] is not None else _no_label(folder / path, pattern)
    except (re.error, IndexError) as error:
        raise DataError(
            f"label pattern {pattern!r}: {error}; it must be a regular expression with one group"
        ) from error


def _no_label(path: Path, pattern: str) -> str:
    raise DataError(f"{path}: the label pattern {pattern!r} does not match it; mend the pattern or remove the file")


def _by_value(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


@on_cpu
def read_imglist(imglist: str | Path, root: str | Path, *, bad: Bad = "raise") -> FileSet:
    """An OpenOOD list: lines `relative/path label`, -1 for OOD, split at the first space; images lie below `root`."""
    imglist, root = Path(imglist).expanduser(), Path(root).expanduser()
    paths, y = parse_imglist(imglist, bad=bad)
    missing = [i for i, path in enumerate(paths) if not (root / path).is_file()]
    if missing:
        message = f"{imglist}: {len(missing)} of {len(paths)} images are not below {root}, such as {paths[missing[0]]}"
        if bad == "raise" or len(missing) == len(paths):
            raise DataError(f"{message}; complete the data set or pass bad='skip'")
        warnings.warn(f"{message}; they are left out", stacklevel=2)
        there = sorted(set(range(len(paths))) - set(missing))
        paths, y = tuple(paths[i] for i in there), tuple(y[i] for i in there)
    return FileSet(imglist.stem, root, tuple(paths), torch.tensor(y, dtype=torch.int64), split="OpenOOD's list")


def parse_imglist(imglist: Path, *, bad: Bad = "raise") -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Paths and labels of an OpenOOD list; a line without a label, or whose path leaves the root, is an error."""
    paths, y, skipped = [], [], []
    try:
        lines = read_bytes(imglist).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{imglist}: not a text file; download it again") from error
    for number, line in enumerate(lines, 1):
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
            raise DataError(f"{imglist}, line {number} ({line[:80]!r}) {problem}; mend it or pass bad='skip'")
        else:
            skipped.append(number)
    if skipped:
        warnings.warn(f"{imglist}: {len(skipped)} lines left out, such as line {skipped[0]}", stacklevel=3)
    if not paths:
        raise DataError(f"{imglist}: names no image; each line should be 'path label'")
    return tuple(paths), tuple(y)


@on_cpu
def read_tin(folder: str | Path, split: Split) -> FileSet:
    """TinyImageNet-200 as downloaded; "test" is its validation set, whose labels are in `val_annotations.txt`."""
    folder = Path(folder).expanduser()
    check_split(split)
    if split == "train":
        found = read_folder(folder / "train", kind="image")
        return FileSet("tin", found.root, found.paths, found.y, found.class_names, "training images")
    table = folder / "val" / "val_annotations.txt"
    rows = [line.split("\t") for line in read_bytes(table).decode().splitlines() if line.strip()]
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
        classes = tuple(sorted((folder / "wnids.txt").read_text().split()))
    else:
        classes = tuple(sorted({row[1] for row in rows}))
    number = {name: k for k, name in enumerate(classes)}
    if any(row[1] not in number for row in rows):
        raise DataError(f"{table}: names a class that wnids.txt does not; download the data set again")
    y = torch.tensor([number[row[1]] for row in rows])
    return FileSet("tin", folder / "val" / "images", tuple(row[0] for row in rows), y, classes, "validation images")


def read_texture(folder: str | Path) -> FileSet:
    """Textures (DTD) as downloaded: all images by class."""
    folder = Path(folder).expanduser()
    found = read_folder(folder / "images" if (folder / "images").is_dir() else folder, kind="image")
    return FileSet("texture", found.root, found.paths, found.y, found.class_names, "all images")


@on_cpu
def read_places365(folder: str | Path) -> FileSet:
    """Places365's validation images; labels from `places365_val.txt` where it is there, else none."""
    folder = Path(folder).expanduser()
    images = folder / "val_256" if (folder / "val_256").is_dir() else folder
    found = read_folder(images, kind="image", label="")  # sub-folders, where there are any, are no labels
    table = next((p for p in (folder / "places365_val.txt", folder.parent / "places365_val.txt") if p.exists()), None)
    y = found.y
    if table is not None:
        rows = dict(zip(*parse_imglist(table), strict=True))
        unlabelled = [path for path in found.paths if PurePosixPath(path).name not in rows]
        if unlabelled:
            raise DataError(
                f"{table}: has no label for {unlabelled[0]}, one of {len(unlabelled)} images; get the whole file"
            )
        y = torch.tensor([rows[PurePosixPath(path).name] for path in found.paths])
    return FileSet("places365", images, found.paths, y, split="validation images")
