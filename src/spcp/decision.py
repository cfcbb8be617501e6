"""Decide about files: a calibrated run as one file that needs nothing else, and verdicts on what lies on disk."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .calibration import Detection, Detector, build_score, read_notes
from .config import Config, build_network
from .data import Benchmark, DataError, FileSet, ImageTransform, Inputs, Loader, read_arrays, read_folder, take
from .errors import InputError
from .evaluation import Evaluation
from .features import device_of
from .methods import METHODS
from .runs import Run

FILE = "detector.safetensors"  # in the folder of a run
TOGETHER = 512  # files that are looked at together
ARRAYS = (".npz", ".npy", ".safetensors")


@dataclass(frozen=True)
class Verdict:
    """On one sample; what could not be read has a problem and nothing else."""

    name: str  # the file, with [i] for the i-th sample of an array
    label: str = ""
    score: float = float("nan")
    p_value: float = float("nan")
    is_ood: bool = True
    problem: str = ""


def calibrate_run(
    folder: Run | str | Path,
    score: str | None = None,
    *,
    benchmark: Benchmark | None = None,
    alpha: float = 0.05,
    delta: float | None = None,
    by_class: bool = False,
    search: bool = False,
    head: str = "truncating",
) -> tuple[Detector, Evaluation]:
    """Calibrate the network of a run on its validation data, and keep the detector in the run's folder.

    Where the score learns from validation data, or its hyperparameters are searched on it, one half of it is for that
    and the other for the threshold.

    Args:
        folder: of the run.
        score: the detector's name; by default the one that the run's method is scored with.
        benchmark: instead of the run's own.
        alpha: at most this share of known samples is flagged; `delta` and `by_class` as for `Detector.calibrate`.
        search: choose the detector's hyperparameters first.
        head: "truncating", or "plain".
    """
    run = folder if isinstance(folder, Run) else Run.open(folder)
    benchmark = benchmark or run.benchmark()
    known = benchmark.val
    if known is None:
        raise InputError(f"{benchmark.name}: has no validation data to calibrate on; give it some (val)")
    name = score or METHODS[run.config.method][0].score
    if search or build_score(name).fitted_on == "val":  # what was learned from cannot be calibrated on
        benchmark = dataclasses.replace(benchmark, val=take(known, range(0, len(known), 2)))
        known = take(known, range(1, len(known), 2))
    own = Evaluation(run, benchmark, head=head)
    fitted = own.fitted(name, search=search)
    detector = Detector(own.model, fitted, method=own.method, head=head, classifier=own.classifier).eval()
    loader = Loader(known, benchmark.transform_of("val"), batch_size=own.batch_size, device=device_of(own.model))
    detector.calibrate(loader, alpha, delta=delta, by_class=by_class)
    notes = {"network": run.config.network, "width": run.config.width, "inputs": run.inputs.as_json()}
    detector.save(run.detector_path, notes)
    return detector, own


def load_decision(path: str | Path) -> tuple[Detector, Inputs]:
    """The detector that `calibrate_run` left, by its file or by the folder of the run; the data is not needed."""
    path = Path(path).expanduser()
    if path.is_dir():
        if not (path / FILE).exists():
            raise InputError(f"{path}: holds no calibrated detector; make one: spcp calibrate {path}")
        path = path / FILE
    notes = read_notes(path)
    try:
        inputs = Inputs.from_json(notes["inputs"])
        network = build_network(Config(network=notes["network"], width=notes["width"]), inputs)
    except (KeyError, DataError) as error:
        raise InputError(
            f"{path}: does not say which network it is for; load it with spcp.Detector.load(path, model)"
        ) from error
    return Detector.load(path, network), inputs


def find_files(arguments: Sequence[str], stdin: Any = None) -> list[Path]:
    """The files that are meant by files, folders, patterns, and "-" for a list on standard input, one a line."""
    found: list[Path] = []
    for argument in arguments:
        path = Path(argument).expanduser()
        if argument == "-":
            lines = [line.strip() for line in (stdin or sys.stdin).read().splitlines()]
            found += find_files([line for line in lines if line and line != "-"])
        elif path.exists():
            found += _below(path)
        elif glob.has_magic(argument):
            matches = sorted(glob.glob(str(path), recursive=True))
            if not matches:
                raise InputError(f"{argument}: no file fits this pattern; check it")
            found += [own for match in matches for own in _below(Path(match))]
        else:
            raise InputError(f"{argument}: there is no such file or folder; check the path")
    return list(dict.fromkeys(found))  # a pattern may match a folder and what is in it


def _below(path: Path) -> list[Path]:
    """A file, or the images or sounds of a folder."""
    if not path.is_dir():
        return [path]
    listed = read_folder(path, label="")
    return [listed.root / own for own in listed.paths]


def verdicts(detector: Detector, inputs: Inputs, files: Sequence[Path]) -> Iterator[Verdict]:
    """One for each file, and for each sample of an array, in order."""
    for is_array, group in itertools.groupby(files, lambda own: own.suffix.lower() in ARRAYS):
        own = list(group)
        if is_array:
            for path in own:
                yield from _of_array(detector, inputs, path)
            continue
        if inputs.transform is None:
            raise InputError(f"{own[0]}: the network takes floats {inputs.shape}; give an npz, npy or safetensors")
        for start in range(0, len(own), TOGETHER):
            yield from _of_files(detector, inputs, own[start : start + TOGETHER])


def _of_array(detector: Detector, inputs: Inputs, path: Path) -> Iterator[Verdict]:
    try:
        data = read_arrays(path)
        loader = Loader(data, inputs.transform if data.x.dtype == torch.uint8 else None, batch_size=TOGETHER)
        names = iter([f"{path}[{i}]" for i in range(len(data))])
        for x, _ in loader:
            if tuple(x.shape[1:]) != inputs.shape:
                raise DataError(f"{path}: its samples are {tuple(x.shape[1:])}, but the network takes {inputs.shape}")
            yield from _said(detector.detect(x), [next(names) for _ in x], inputs)
    except DataError as error:
        yield Verdict(str(path), problem=str(error))


def _of_files(detector: Detector, inputs: Inputs, files: Sequence[Path]) -> Iterator[Verdict]:
    kind: Any = "image" if isinstance(inputs.transform, ImageTransform) else "audio"
    data = FileSet("files", Path(), tuple(map(str, files)), torch.full((len(files),), -1), kind=kind)
    try:
        found, skipped = _looked_at(detector, inputs, data, "raise")
    except DataError:  # some cannot be read: which ones takes another look
        try:
            found, skipped = _looked_at(detector, inputs, data, "skip")
        except DataError as error:  # none can
            found, skipped = [], {str(path): str(error) for path in files}
    left = iter(
        _said(Detection(*(torch.cat(own) for own in zip(*found, strict=True))), data.paths, inputs) if found else ()
    )
    for path in data.paths:
        yield Verdict(path, problem=skipped[path]) if path in skipped else dataclasses.replace(next(left), name=path)


def _looked_at(detector: Detector, inputs: Inputs, data: FileSet, bad: Any) -> tuple[list[Detection], dict[str, str]]:
    loader = Loader(data, inputs.transform, batch_size=64, bad=bad, cache=False, workers=None if len(data) > 64 else 0)
    return [detector.detect(x) for x, _ in loader], loader.skipped


def _said(found: Detection, names: Sequence[str], inputs: Inputs) -> Iterator[Verdict]:
    columns = zip(
        found.predictions.tolist(), found.scores.tolist(), found.p_values.tolist(), found.is_ood.tolist(), strict=True
    )
    for name, (k, score, p_value, is_ood) in zip(names, columns, strict=False):
        yield Verdict(name, inputs.class_names[k], score, p_value, is_ood)


def as_row(verdict: Verdict) -> dict[str, Any]:
    """For tables and JSON."""
    known = not verdict.problem
    return {
        "file": verdict.name,
        "verdict": "unreadable" if verdict.problem else "odd" if verdict.is_ood else "known",
        "class": verdict.label or None,
        "score": verdict.score if known else None,
        "p_value": verdict.p_value if known else None,
    } | ({"problem": verdict.problem} if verdict.problem else {})
