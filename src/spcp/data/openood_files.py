"""Find OpenOOD's data sets: in its folders, with its image lists, or as official files.

With OpenOOD's image lists the splits are exactly OpenOOD's. With official files alone, a deterministic split stands in;
each set carries in `split` which of the two it is, and `Benchmark.summary()` prints it. From official files MNIST and
SVHN are the original pixels; OpenOOD's copies went through JPEG.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .benchmark import Benchmark
from .downloads import SOURCES
from .errors import DataError
from .files import CIFAR10_CLASS_NAMES, read_cifar, read_cifar10c, read_mnist, read_svhn
from .folders import parse_imglist, read_folder, read_places365, read_texture, read_tin
from .openood import BENCHMARKS, IMAGENET, Part
from .sets import DataSet, FileSet, TensorSet, as_ood, labels, rank_in_class, take

# Folders that hold a source, in the order of preference; below the root, or below OpenOOD's image folders.
_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "cifar100": ("cifar-100-binary", "cifar-100-python"),
    "tin": ("tiny-imagenet-200",),
    "mnist": ("MNIST/raw", "mnist"),
    "svhn": ("svhn", "SVHN", "."),
    "texture": ("dtd", "texture"),
    "places365": ("places365", "places365_standard", "."),
    "cifar10c": ("CIFAR-10-C",),
    "imagenet": ("imagenet", "imagenet_1k", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"),
}
_IMAGE_ROOTS = ("images_classic", "images_largescale", ".")


class Finder:
    """Find the parts of one benchmark below a root, and keep notes of what is missing."""

    def __init__(self, name: str, root: Path) -> None:
        if not root.is_dir():
            raise DataError(
                f"{root}: there is no such data folder; pass root=..., set SPCP_DATA, or fetch the data: "
                f"spcp.data.download({name!r})"
            )
        self.name, self.root, self.spec = name, root, BENCHMARKS[name]
        self.notes: list[str] = []
        spec = self.spec
        groups = (spec.ood_val, spec.near, spec.far, spec.shifted)
        self.parts = [spec.train, spec.val, spec.test, *(part for group in groups for part in group.values())]
        self.read: dict[tuple[str, str], DataSet | None] = {}

    def load(self) -> Benchmark:
        """Return the benchmark with every set that is there; only the test images must be."""
        spec = self.spec
        test = self.find("test", self.name, spec.test)
        if test is None:
            parent = "; give its parent folder" if self.root.name in _FOLDERS.get(self.name, ()) else ""
            how = _how_to_get(spec.test.source, self.root)
            raise DataError(f"{self.name}: its test images are not below {self.root}{parent}; {how}")
        if not (self.root / "benchmark_imglist").is_dir():
            self.notes.append(
                f"no benchmark_imglist below {self.root}, so the splits are spcp's and results differ a little from "
                "published ones; get it by way of https://github.com/Jingkang50/OpenOOD"
            )
        train, val = self.find("train", self.name, spec.train), self.find("val", self.name, spec.val)
        ood = {
            role: {name: as_ood(data) for name, part in parts.items() if (data := self.find(role, name, part))}
            for role, parts in (("ood_val", spec.ood_val), ("near", spec.near), ("far", spec.far))
        }
        numbers = tuple(map(str, range(spec.num_classes)))
        class_names = test.class_names or (CIFAR10_CLASS_NAMES if self.name == "cifar10" else numbers)
        shifted = {name: data for name, part in spec.shifted.items() if (data := self.find("shifted", name, part))}
        for name, data in list(shifted.items()):
            if data.class_names and data.class_names != class_names:  # read from its folders, without a list
                del shifted[name]
                self.notes.append(
                    f"shifted/{name}: its classes are not the benchmark's, so it needs OpenOOD's list; skipped"
                )
        # ImageNet-C comes cropped to 224 pixels; OpenOOD leaves it so.
        exceptions = (
            {"shifted/imagenet_c": dataclasses.replace(IMAGENET, resize=224)} if "imagenet_c" in shifted else {}
        )
        groups: dict[str, Any] = {**ood, "shifted": shifted, "notes": tuple(self.notes), "exceptions": exceptions}
        return Benchmark(self.name, spec.transform, class_names, train, val, test, **groups)

    def imglist(self, part: Part) -> Path:
        """Return where the list of a part would be."""
        return self.root / "benchmark_imglist" / f"{part.imglist}.txt"

    def find(self, role: str, name: str, part: Part) -> DataSet | None:
        """Return one set: by its list if that is there, else by the rule; never both for the parts of one source."""
        imglist = self.imglist(part)
        if not imglist.exists() and any(self.imglist(p).exists() for p in self.parts if p.source == part.source):
            self.notes.append(
                f"{role}/{name}: {imglist} is missing, and spcp's split would overlap with the other lists, so it is "
                "skipped; complete the lists"
            )
            return None
        data = self.listed(imglist, part) if imglist.exists() else self.ruled(part)
        if data is None or not len(data):
            how = _how_to_get(part.source, self.root)
            self.notes.append(f"{role}/{name}: not below {self.root}, so it is skipped; {how}")
            return None
        data = dataclasses.replace(data, name=name)
        if part.count and len(data) != part.count:
            self.notes.append(f"{role}/{name}: {len(data)} images, where OpenOOD has {part.count}")
        return data

    def listed(self, imglist: Path, part: Part) -> DataSet | None:
        """Return the images of a list, from OpenOOD's folders or else from official files."""
        paths, y = parse_imglist(imglist)
        present = {folder: _present(folder, paths) for folder in (self.root / base for base in _IMAGE_ROOTS)}
        folder, index = max(present.items(), key=lambda item: len(item[1]))
        if 2 * len(index) > len(paths):  # a few files do not make a data set
            chosen = tuple(paths[i] for i in index)
            return FileSet(part.source, folder, chosen, torch.tensor([y[i] for i in index]), split="OpenOOD's list")
        if part.source == "cifar10c":  # its official files are arrays, which the list's names do not describe
            return self.ruled(part)
        data = self.official("imagenet" if part.source == "imagenet200" else part.source, part.half)
        if data is None:
            return None
        if part.source in ("mnist", "svhn"):
            return dataclasses.replace(data, split="OpenOOD's list (all images), official files")
        tails, where = _positions(data, paths)
        index = [i for i, tail in enumerate(tails) if tail in where]
        data = take(data, [where[tails[i]] for i in index], split="OpenOOD's list, official files")
        listed = torch.tensor([y[i] for i in index], dtype=torch.int64)
        if isinstance(data, FileSet):
            return dataclasses.replace(data, y=listed, class_names=())
        if len(listed) and listed.min() >= 0 and not torch.equal(listed, labels(data)):
            raise DataError(f"{imglist}: its labels are not those of the files below {self.root}; download both again")
        return data

    def ruled(self, part: Part) -> DataSet | None:
        """Return a part without a list: official files, split by the part's rule."""
        data = self.official(part.source, part.half)
        if data is None or (data.name == "imagenet" and not data.class_names):  # a flat folder has no labels
            return None
        return take(data, part.rule.select(data), split=f"spcp's split: {part.rule.text}")

    def official(self, source: str, half: str) -> DataSet | None:
        """Return a source from official files, read once."""
        if source == "imagenet200":
            return self.imagenet200(half)
        if (source, half) not in self.read:
            self.read[source, half] = next(self.candidates(source, half), None)
        return self.read[source, half]

    def candidates(self, source: str, half: str) -> Iterator[DataSet]:
        """Yield the source from every folder that holds it."""
        for base in (".", *_IMAGE_ROOTS[:2]):
            for name in _FOLDERS.get(source, (source,)):
                folder = self.root / base / name
                if folder.is_dir() and any(folder.iterdir()):
                    data = _read_source(source, half, folder, name)
                    if data is not None:
                        yield data

    def imagenet200(self, half: str) -> DataSet | None:
        """Return the classes of ImageNet-R, which are those of ImageNet-200, out of ImageNet."""
        data, renditions = self.official("imagenet", half), self.official("imagenet_r", "test")
        if data is None or renditions is None or not data.class_names:
            return None
        number = {name: k for k, name in enumerate(renditions.class_names)}
        y = torch.tensor([number.get(name, -1) for name in data.class_names])[labels(data)]
        index = (y >= 0).nonzero()[:, 0]
        return take(data, index, y=y[index], class_names=renditions.class_names)


def _read_source(source: str, half: str, folder: Path, name: str) -> DataSet | None:
    """Read a source from its official files in a folder of that name; None if this half of it is not there."""
    if source in ("cifar10", "cifar100"):
        first = ("data_batch_1", "train") if half == "train" else ("test_batch", "test")
        here = any((folder / f"{name}{suffix}").is_file() for name in first for suffix in ("", ".bin"))
        return read_cifar(folder, "train" if half == "train" else "test") if here else None
    if source == "mnist":
        halves = []
        if any(folder.glob("train-*")):
            halves.append(read_mnist(folder, "train"))
        if any(folder.glob("t10k-*")):
            halves.append(read_mnist(folder, "test"))
        return (
            TensorSet("mnist", torch.cat([h.x for h in halves]), torch.cat([h.y for h in halves])) if halves else None
        )
    if source == "svhn":
        return read_svhn(folder / "test_32x32.mat") if (folder / "test_32x32.mat").exists() else None
    if source == "tin":
        return read_tin(folder, "test") if (folder / "val").is_dir() else None
    if source == "texture":
        return read_texture(folder)
    if source == "places365":
        return read_places365(folder) if name == "places365" or (folder / "val_256").is_dir() else None
    if source == "cifar10c":
        return read_cifar10c(folder)
    if source == "imagenet":
        if not (folder / half).is_dir():
            return None
        return dataclasses.replace(read_folder(folder / half, kind="image"), name="imagenet")
    return read_folder(folder, kind="image")


def _present(folder: Path, paths: tuple[str, ...]) -> list[int]:
    """Return the indices of the paths that exist; each folder is listed once."""
    by_parent: dict[str, list[int]] = {}
    for i, path in enumerate(paths):
        by_parent.setdefault(path.rpartition("/")[0], []).append(i)
    present: list[int] = []
    for parent, members in by_parent.items():
        if (folder / parent).is_dir():
            names = {entry.name for entry in os.scandir(folder / parent)}
            present += [i for i in members if paths[i].rpartition("/")[2] in names]
    return sorted(present)


def _positions(data: DataSet, paths: tuple[str, ...]) -> tuple[list[str], dict[str, int]]:
    """Return the key of each listed image, and the position of each key among official files.

    A key is the name of the file, with its folder where names repeat; for CIFAR, whose lists call the n-th image of a
    class (from 1, in official order) `cifar10/test/airplane/0001.png`, class and number.
    """
    if isinstance(data, FileSet):
        for depth in (1, 2, 3):
            where = {_tail(path, depth): i for i, path in enumerate(data.paths)}
            if len(where) == len(data.paths):
                return [_tail(path, depth) for path in paths], where
        raise DataError(f"{data.root}: file names repeat, so the list cannot be matched to them; use OpenOOD's folders")
    if not data.class_names:
        raise DataError(f"{data.name}: its class names are missing, which the list goes by; download it again")
    y = labels(data)
    numbers = (rank_in_class(y) + 1).tolist()
    where = {f"{data.class_names[k]}/{n:04d}.png": i for i, (k, n) in enumerate(zip(y.tolist(), numbers, strict=True))}
    return [_tail(path, 2) for path in paths], where


def _tail(path: str, depth: int) -> str:
    """Return the last parts of a path.

    >>> _tail("a/b/c.png", 2)
    'b/c.png'
    """
    return "/".join(path.split("/")[-depth:])


def _how_to_get(source: str, root: Path) -> str:
    if source in SOURCES:
        return f"spcp.data.download({source!r}, {str(root)!r}) fetches it"
    if (root / "images_classic").is_dir() and not (root / "benchmark_imglist").is_dir():
        return "OpenOOD's folders need its benchmark_imglist; get it by way of https://github.com/Jingkang50/OpenOOD"
    if source in ("imagenet", "imagenet200"):
        which = " and OpenOOD's lists or ImageNet-R, which name its classes" if source == "imagenet200" else ""
        return f"get ILSVRC 2012 from https://image-net.org as the folder 'imagenet' (train and val by class){which}"
    return f"get {source} by way of https://github.com/Jingkang50/OpenOOD and put it into images_largescale/{source}"
