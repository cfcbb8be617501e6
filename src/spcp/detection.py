"""Detect OOD samples among files: images or sounds, folders of them, and arrays."""

from __future__ import annotations

import glob
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .data import DataError, FileSet, ImageTransform, Inputs, Loader, read_arrays, read_folder
from .data.decoding import Decoder, Keys, default_workers, stream
from .data.memory import finish
from .data.prepared import fits_in_memory
from .detector import Detection, Detector, Reasons
from .errors import InputError

Decided = Detection | list[Reasons]
Decide = Callable[[torch.Tensor], Decided]

_TOGETHER = 512  # files that are decoded by the same workers, and samples of an array
_BATCH = 64  # of files
_ARRAYS = (".npz", ".npy", ".safetensors")


@dataclass(frozen=True)
class FileDetection:
    """What a detector decides about one sample; a sample that cannot be read has a problem and nothing else."""

    file: str  # with [i] for the i-th sample of an array
    is_ood: bool | None = None
    p_value: float | None = None
    score: float | None = None
    class_name: str | None = None
    problem: str = ""
    members: Mapping[str, float] | None = None  # p-values by member of a consensus, if asked for

    def as_record(self) -> dict[str, Any]:
        """Return the fields by name, for tables and JSON; the problem only where there is one."""
        record: dict[str, Any] = {
            "file": self.file,
            "is_ood": self.is_ood,
            "p_value": self.p_value,
            "class": self.class_name,
            "score": self.score,
        }
        record |= {"members": dict(self.members)} if self.members is not None else {}
        return record | ({"problem": self.problem} if self.problem else {})


def find_files(arguments: Sequence[str], stdin: Any = None) -> list[Path | FileDetection]:
    """Return the files that are named by files, folders, patterns, and "-" for a list on standard input.

    What is not there is a result already, with its problem; if nothing is there, that is an error.
    """
    names: list[str] = []
    for argument in arguments:
        lines = (stdin or sys.stdin).read().split("\n") if argument == "-" else [argument]
        names += [line for line in lines if line.strip() and (line != "-" or argument != "-")]
    found = [file for name in names for file in _found(name.removesuffix("\r"))]
    if found and all(isinstance(file, FileDetection) for file in found):
        raise InputError(next(file.problem for file in found if isinstance(file, FileDetection)))
    return list(dict.fromkeys(found))  # a pattern may match a folder and what is in it


def _found(name: str) -> list[Path | FileDetection]:
    path = os.path.expanduser(name)
    matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
    if not matches:
        what = "no file fits this pattern" if glob.has_magic(path) else "there is no such file or folder"
        return [FileDetection(name, problem=f"{name}: {what}; check it")]
    try:
        return [file for match in matches for file in _below(Path(match))]
    except DataError as error:
        return [FileDetection(name, problem=str(error))]


def _below(path: Path) -> list[Path]:
    """Return a file, or the images or sounds of a folder."""
    if not path.is_dir():
        return [path]
    listed = read_folder(path, label="")
    return [listed.root / name for name in listed.paths]


def detect_files(
    detector: Detector, inputs: Inputs, files: Sequence[Path | FileDetection], *, explain: bool = False
) -> Iterator[FileDetection]:
    """Yield a result for each file, and for each sample of an array, in order; results among the files as they are.

    `explain` adds the p-values of the members of a consensus.
    """
    decide = detector.explain if explain else detector.detect
    for kind, group in itertools.groupby(files, _kind):
        if kind == "result":
            yield from (file for file in group if isinstance(file, FileDetection))
            continue
        paths = [path for path in group if isinstance(path, Path)]
        if kind == "array":
            for path in paths:
                yield from _in_array(decide, inputs, path)
        elif inputs.transform is None:
            problem = f"the network takes floats {inputs.shape}; give an npz, npy or safetensors"
            yield from (FileDetection(str(path), problem=f"{path}: {problem}") for path in paths)
        else:
            for start in range(0, len(paths), _TOGETHER):
                yield from _in_files(decide, inputs, paths[start : start + _TOGETHER], detector.model.device)


def _kind(file: Path | FileDetection) -> str:
    if isinstance(file, FileDetection):
        return "result"
    return "array" if file.suffix.lower() in _ARRAYS else "file"


def _in_array(decide: Decide, inputs: Inputs, path: Path) -> Iterator[FileDetection]:
    try:
        data = read_arrays(path)
        loader = Loader(data, inputs.transform if data.x.dtype == torch.uint8 else None, batch_size=_TOGETHER)
        names = (f"{path}[{i}]" for i in range(len(data)))
        for x, _ in loader:
            if tuple(x.shape[1:]) != inputs.shape:
                raise DataError(f"{path}: its samples are {tuple(x.shape[1:])}, but the network takes {inputs.shape}")
            yield from _results(decide(x), names, inputs)
    except DataError as error:
        yield FileDetection(str(path), problem=str(error))


def _in_files(decide: Decide, inputs: Inputs, files: Sequence[Path], device: torch.device) -> Iterator[FileDetection]:
    kind: Any = "image" if isinstance(inputs.transform, ImageTransform) else "audio"
    data = FileSet("files", Path(), tuple(map(str, files)), torch.full((len(files),), -1), kind=kind)
    shares = [slice(start, min(start + _BATCH, len(data))) for start in range(0, len(data), _BATCH)]
    workers = 0 if len(data) <= _BATCH or fits_in_memory(data, inputs.transform) else default_workers()
    decoder, keys = Decoder(data, inputs.transform, train=False, seed=0), Keys(torch.arange(len(data)), 0, shares)
    for share, (x, _, problems) in zip(shares, stream(decoder, keys, workers, device), strict=True):
        unreadable = dict(problems)
        readable = [path for path in data.paths[share] if path not in unreadable]
        results = _results(decide(finish(x, inputs.transform)), readable, inputs) if readable else iter(())
        for path in data.paths[share]:
            yield FileDetection(path, problem=unreadable[path]) if path in unreadable else next(results)


def _results(decided: Decided, names: Iterable[str], inputs: Inputs) -> Iterator[FileDetection]:
    if isinstance(decided, Detection):
        columns = zip(*(column.tolist() for column in decided), itertools.repeat(None))
    else:
        columns = ((r.prediction, r.score, r.p_value, r.is_ood, r.members) for r in decided)  # type: ignore[assignment]
    for (prediction, score, p_value, is_ood, members), name in zip(columns, names, strict=False):  # no name too many
        yield FileDetection(name, is_ood, p_value, score, inputs.class_names[prediction], members=members)
