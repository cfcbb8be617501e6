"""Detect OOD samples among files: images or sounds, folders of them, and arrays."""

from __future__ import annotations

import glob
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .data import DataError, FileSet, ImageTransform, Inputs, Loader, read_arrays, read_folder
from .detector import Detection, Detector, Reasons
from .errors import InputError

Decided = Detection | list[Reasons]
Decide = Callable[[torch.Tensor], Decided]

_TOGETHER = 512  # files of one loader
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


def find_files(arguments: Sequence[str], stdin: Any = None) -> list[Path]:
    """Return the files that are named by files, folders, patterns, and "-" for a list on standard input."""
    files: list[Path] = []
    for argument in arguments:
        path = Path(argument).expanduser()
        if argument == "-":
            lines = [line.strip() for line in (stdin or sys.stdin).read().splitlines()]
            files += find_files([line for line in lines if line and line != "-"])
        elif path.exists():
            files += _below(path)
        elif glob.has_magic(argument):
            matches = sorted(glob.glob(str(path), recursive=True))
            if not matches:
                raise InputError(f"{argument}: no file fits this pattern; check it")
            files += [file for match in matches for file in _below(Path(match))]
        else:
            raise InputError(f"{argument}: there is no such file or folder; check the path")
    return list(dict.fromkeys(files))  # a pattern may match a folder and what is in it


def _below(path: Path) -> list[Path]:
    """Return a file, or the images or sounds of a folder."""
    if not path.is_dir():
        return [path]
    listed = read_folder(path, label="")
    return [listed.root / name for name in listed.paths]


def detect_files(
    detector: Detector, inputs: Inputs, files: Sequence[Path], *, explain: bool = False
) -> Iterator[FileDetection]:
    """Yield a result for each file, and for each sample of an array, in order; `explain` adds the members' p-values."""
    decide = detector.explain if explain else detector.detect
    for is_array, group in itertools.groupby(files, lambda path: path.suffix.lower() in _ARRAYS):
        paths = list(group)
        if is_array:
            for path in paths:
                yield from _in_array(decide, inputs, path)
            continue
        if inputs.transform is None:
            raise InputError(f"{paths[0]}: the network takes floats {inputs.shape}; give an npz, npy or safetensors")
        for start in range(0, len(paths), _TOGETHER):
            yield from _in_files(decide, inputs, paths[start : start + _TOGETHER])


def _in_array(decide: Decide, inputs: Inputs, path: Path) -> Iterator[FileDetection]:
    try:
        data = read_arrays(path)
        loader = Loader(data, inputs.transform if data.x.dtype == torch.uint8 else None, batch_size=_TOGETHER)
        names = iter([f"{path}[{i}]" for i in range(len(data))])
        for x, _ in loader:
            if tuple(x.shape[1:]) != inputs.shape:
                raise DataError(f"{path}: its samples are {tuple(x.shape[1:])}, but the network takes {inputs.shape}")
            yield from _results(decide(x), names, inputs)
    except DataError as error:
        yield FileDetection(str(path), problem=str(error))


def _in_files(decide: Decide, inputs: Inputs, files: Sequence[Path]) -> Iterator[FileDetection]:
    kind: Any = "image" if isinstance(inputs.transform, ImageTransform) else "audio"
    data = FileSet("files", Path(), tuple(map(str, files)), torch.full((len(files),), -1), kind=kind)
    try:
        detections, skipped = _run(decide, inputs, data, "raise")
    except DataError:  # some cannot be read: which ones takes another pass
        try:
            detections, skipped = _run(decide, inputs, data, "skip")
        except DataError as error:  # none can
            detections, skipped = [], {str(path): str(error) for path in files}
    names = iter([path for path in data.paths if path not in skipped])
    results = itertools.chain.from_iterable(_results(detection, names, inputs) for detection in detections)
    for path in data.paths:
        yield FileDetection(path, problem=skipped[path]) if path in skipped else next(results)


def _run(decide: Decide, inputs: Inputs, data: FileSet, bad: Any) -> tuple[list[Decided], dict[str, str]]:
    loader = Loader(data, inputs.transform, batch_size=64, bad=bad, cache=False, workers=None if len(data) > 64 else 0)
    return [decide(x) for x, _ in loader], loader.skipped


def _results(decided: Decided, names: Iterable[str], inputs: Inputs) -> Iterator[FileDetection]:
    if isinstance(decided, Detection):
        columns = zip(*(column.tolist() for column in decided), itertools.repeat(None))
    else:
        columns = ((r.prediction, r.score, r.p_value, r.is_ood, r.members) for r in decided)  # type: ignore[assignment]
    for (prediction, score, p_value, is_ood, members), name in zip(columns, names, strict=False):  # no name too many
        yield FileDetection(name, is_ood, p_value, score, inputs.class_names[prediction], members=members)
