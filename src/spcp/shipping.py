"""The detector of a run as a file that is shipped: exported, thinned, in int8, and calibrated as it is shipped."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .data import Benchmark, ImageTransform
from .data.images import as_image, with_channels
from .detector import Detector
from .errors import InputError
from .evaluation import Evaluation
from .export import Int8, calibrate_file, quantise
from .exported import ExportedDetector
from .runs import Run
from .scores import KNN, Consensus, NNGuide, Relation, Score, name_of

_BATCH = 64
_RANGES = 512  # training samples that show the ranges of activations
_NEIGHBOURS = (KNN, NNGuide, Relation)  # scores that keep features of training samples


def export_run(
    run: Run,
    path: str | Path | None = None,
    *,
    preprocessing: bool = False,
    bank: int | None = None,
    int8: Int8 | None = None,
    benchmark: Benchmark | None = None,
) -> Path:
    """Export the calibrated detector of a run, checked on its validation data; see `Detector.export`.

    A file that decides otherwise than the detector, because of `bank`, `int8` or images that it prepares itself, is
    calibrated again, on the samples that the detector was calibrated on: so its false alarm rate is at most alpha, too.

    Args:
        run: a calibrated run.
        path: the file to write, .onnx or .pt2; by default detector.onnx in the run's folder.
        preprocessing: put the test transform into the file, which then takes images as bytes (B, H, W, C).
        bank: keep so many features of training samples, where the score keeps such.
        int8: compute the network in int8: "dynamic" scales what enters a layer batch by batch, "static" once, by its
            range on training data.
        benchmark: instead of the run's.
    """
    path = run.folder / "detector.onnx" if path is None else Path(path).expanduser()
    if int8 and path.suffix != ".onnx":
        raise InputError(f"{path}: int8 is for ONNX files; name one that ends in .onnx")
    if int8 not in (None, "dynamic", "static"):
        raise InputError(f'int8 = {int8!r} must be "dynamic" or "static"')
    detector, inputs = run.detector(), run.inputs
    benchmark = benchmark or run.benchmark()
    if int8 == "static" and benchmark.train is None:
        raise InputError(f"{benchmark.name}: has no training data to see ranges on; take --int8 dynamic")
    fitting, calibration = _divided(run, benchmark, detector)
    if bank is not None:
        detector = thinned(detector, bank, fitting, calibration)
    held_out = calibration.benchmark
    samples: Any = next(_inputs(held_out, "val", preprocessing))
    samples = list(samples) if preprocessing else torch.from_numpy(samples)
    notes = {"run": {"name": run.folder.name, "fingerprint": detector.model.fingerprint()}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft = detector.export(
            Path(folder) / path.name, samples, inputs=inputs, preprocessing=preprocessing, notes=notes
        )
        if int8 == "static":
            quantise(draft, int8, _first(_inputs(benchmark, "train", preprocessing), _RANGES))
        elif int8:
            quantise(draft, int8)
        if int8 or preprocessing:
            calibrate_file(draft, _inputs(held_out, "val", preprocessing))
        os.replace(draft, path)
    return path


def calibrate_exported(path: str | Path, run: Run, benchmark: Benchmark | None = None) -> ExportedDetector:
    """Calibrate an exported file again, on the samples that the detector of its run was calibrated on."""
    exported = ExportedDetector.open(path)
    benchmark = benchmark or run.benchmark()
    _, calibration = _divided(run, benchmark, run.detector())
    return calibrate_file(path, _inputs(calibration.benchmark, "val", exported.takes_pixels))


def flagged_by_file(detector: ExportedDetector, benchmark: Benchmark) -> list[dict[str, Any]]:
    """Return the share that an exported detector flags of the test data and of each OOD set, and its accuracy."""
    rows = []
    roles = [role for role in benchmark.sets() if role.startswith(("near/", "far/", "shifted/"))]
    for role in ("test", *roles):
        detections = [detector.detect(batch) for batch in _inputs(benchmark, role, detector.takes_pixels)]
        flagged = np.concatenate([detection.is_ood for detection in detections])
        row: dict[str, Any] = {"dataset": role, "samples": len(flagged), "flagged": float(flagged.mean())}
        if role == "test":
            y = np.concatenate([y.numpy() for _, y in benchmark.loader(role, batch_size=_BATCH)])
            row["accuracy"] = float((np.concatenate([detection.predictions for detection in detections]) == y).mean())
        rows.append(row)
    return rows


def thinned(detector: Detector, count: int, fitting: Evaluation, calibration: Evaluation) -> Detector:
    """Return the detector with `count` of the training samples' features that its score keeps, calibrated again.

    A neighbour's rank k shrinks along, so that it stays about as far away.
    """
    result = copy.deepcopy(detector)
    members = result.score.members_by_name() if isinstance(result.score, Consensus) else {"": result.score}
    neighbours = {name: member for name, member in members.items() if isinstance(member, _NEIGHBOURS)}
    if not neighbours:
        raise InputError(f"{name_of(result.score)} keeps no features of training samples; leave --bank out")
    if count < 1:
        raise InputError(f"--bank {count}: must be at least 1")
    for name, member in neighbours.items():
        _thin(member, count)
        if isinstance(result.score, Consensus) and result.score.members is not None:
            result.score.members[name] = member.options
    if "val" in result.score.fitted_on:
        result.fit_held_out(fitting.samples(result.score, "val"))
    assert result.alpha is not None
    samples = calibration.samples(result.score, "val")
    return result.calibrate(samples, result.alpha, delta=result.delta, by_class=result.by_class)


def _thin(score: Score, count: int) -> None:
    kept: Any = score
    have = len(kept.bank)
    rows = torch.randperm(have, generator=torch.Generator().manual_seed(0))[:count].sort().values
    for name in score.state:  # each has a row for each sample
        setattr(kept, name, getattr(kept, name)[rows])
    if "k" in score.options:
        kept.k = max(1, round(min(kept.k, have) * len(rows) / have))


def _divided(run: Run, benchmark: Benchmark, detector: Detector) -> tuple[Evaluation, Evaluation]:
    """Return what the detector's score was fitted with, and what its threshold was calibrated on."""
    whole = Evaluation(run, benchmark, truncate=detector.model.truncate)
    count, used = len(benchmark.val or ()), len(detector.calibration_scores)
    assert detector.alpha is not None
    for fits, chooses in ((False, False), (True, False), (True, True)):  # whichever was done, by the size of the rest
        fitting, rest = whole.divide(detector.alpha, detector.delta, fitting=fits, choosing=chooses)
        if used == (count if rest is None else len(rest)):
            break
    else:
        raise InputError(
            f"{run.folder}: its detector was calibrated on {used} other samples than the validation data of "
            f"{benchmark.name}; calibrate it again: spcp calibrate {run.folder}"
        )
    return fitting, whole if rest is None else whole.with_val(rest)


def _inputs(benchmark: Benchmark, role: str, preprocessing: bool) -> Iterator[np.ndarray]:
    """Yield a set in batches as a file takes it: prepared, or images of one size each."""
    if not preprocessing:
        for x, _ in benchmark.loader(role, batch_size=_BATCH):
            yield x.cpu().numpy()
        return
    transform, data = benchmark.transform_of(role), benchmark.sets()[role]
    if not isinstance(transform, ImageTransform):
        raise InputError("only images can be prepared inside of a file; export without the preprocessing")
    batch: list[np.ndarray] = []
    for i in range(len(data)):
        image = np.asarray(with_channels(as_image(data[i][0], f"{data.name}, item {i}"), transform.channels))
        image = image[:, :, None] if image.ndim == 2 else image
        if batch and (len(batch) == _BATCH or image.shape != batch[0].shape):
            yield np.stack(batch)
            batch = []
        batch.append(image)
    if batch:
        yield np.stack(batch)


def _first(batches: Iterator[np.ndarray], count: int) -> Iterator[np.ndarray]:
    for batch in batches:
        yield batch
        count -= len(batch)
        if count <= 0:
            return
