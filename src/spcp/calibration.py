"""Calibrate the network of a run, and keep the detector in one file that needs nothing else."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

from . import __version__
from .config import Config, build_network
from .data import Benchmark, DataError, DataSet, Inputs, Loader, take
from .data.prepared import data_fingerprint
from .detector import Detector, read_notes
from .errors import InputError
from .evaluation import Evaluation
from .runs import Run
from .scores import build_score


def calibrate_run(
    run: Run,
    score: str | None = None,
    *,
    alpha: float = 0.05,
    delta: float | None = None,
    by_class: bool = False,
    search: bool = False,
    truncate: bool = True,
    benchmark: Benchmark | None = None,
) -> tuple[Detector, Evaluation]:
    """Calibrate the network of a run on its validation data, and save the detector in the run's folder.

    Its notes (`spcp.detector.read_notes`) record the version, the date, the calibration data with a fingerprint, the
    accuracy on the test data, and what is flagged of it and of each OOD set.

    Where the score is fitted on validation data, or its hyperparameters are searched on it, one half of the data is for
    that and the other for the threshold.

    Args:
        run: a trained or adopted run.
        score: the name of the score; by default that of the run's method.
        alpha: the largest false alarm rate; `delta` and `by_class` are those of `Detector.calibrate`.
        delta: see `Detector.calibrate`.
        by_class: see `Detector.calibrate`.
        search: choose the hyperparameters of the score first.
        truncate: False scores the network as if its SPCP heads were plain linear layers.
        benchmark: instead of the run's.
    """
    benchmark = benchmark or run.benchmark()
    if benchmark.val is None:
        raise InputError(f"{benchmark.name}: has no validation data to calibrate on; give it some (val)")
    model, calibration = run.load(truncate=truncate), benchmark.val
    name = score or (model.method.score if model.method is not None else "energy")
    if search or build_score(name, **Evaluation(model, benchmark).options_for(name)).fitted_on == "val":
        halves = [take(calibration, range(start, len(calibration), 2)) for start in (0, 1)]
        benchmark, calibration = dataclasses.replace(benchmark, val=halves[0]), halves[1]
    evaluation = Evaluation(model, benchmark)
    detector = Detector(model, evaluation.fitted(name, search=search)).eval()
    loader = Loader(calibration, benchmark.transform_of("val"), batch_size=evaluation.batch_size, device=model.device)
    detector.calibrate(loader, alpha, delta=delta, by_class=by_class)
    config = run.config
    notes = {"network": config.network, "width": config.width, "architecture": config.architecture}
    notes |= {"inputs": run.inputs.as_json(), **_record(detector, evaluation, calibration)}
    detector.save(run.detector_path, notes)
    return detector, evaluation


def flagged_shares(detector: Detector, evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the share that a detector flags of the test data, and of each near-OOD, far-OOD and shifted set."""
    roles = [role for role in evaluation.benchmark.sets() if role.startswith(("near/", "far/", "shifted/"))]
    rows = []
    for role in ("test", *roles):
        scores = evaluation.scores(detector.score, role)
        flagged = detector.decide(evaluation.bank(role).predictions, scores).is_ood
        rows.append({"dataset": role, "samples": len(flagged), "flagged": flagged.double().mean().item()})
    return rows


def _record(detector: Detector, evaluation: Evaluation, calibration: DataSet) -> dict[str, Any]:
    """Return what to know about a detector that is shipped: when, with what and on what it was made, and its rates."""
    return {
        "spcp": __version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "calibration_data": {
            "name": evaluation.benchmark.name,
            "samples": len(calibration),
            "fingerprint": data_fingerprint(calibration),
        },
        "accuracy": evaluation.bank("test").accuracy(),
        "rates": flagged_shares(detector, evaluation),
    }


def load_detector(path: str | Path, *, network: str | None = None) -> tuple[Detector, Inputs]:
    """Load the detector that `calibrate_run` saved, by its file or by the folder of the run; no data is needed.

    A detector whose network is code, such as "package.module:function", is loaded only if `network` names the same.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        run = Run.open(path, network=network)
        return run.detector(), run.inputs
    notes = read_notes(path)
    try:
        config = Config(network=notes["network"], width=notes["width"], architecture=notes.get("architecture"))
        inputs = Inputs.from_json(notes["inputs"])
    except (KeyError, DataError) as error:
        raise InputError(
            f"{path}: does not name its network; load it with spcp.Detector.load(path, network)"
        ) from error
    return Detector.load(path, build_network(config, inputs, code=network)), inputs
