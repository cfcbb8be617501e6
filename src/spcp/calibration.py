"""Calibrate the network of a run, and keep the detector in one file that needs nothing else."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import __version__
from .choice import By, Choice, choose, misranked, note_trials, try_detector
from .config import Config, build_network
from .conformal import samples_needed, split
from .data import Benchmark, Inputs
from .data.prepared import data_fingerprint
from .detector import Detector, read_notes
from .errors import InputError
from .evaluation import Evaluation
from .files import locked
from .runs import Run
from .scores import DEFAULT, SCORES, applicable, build_score

AUTO = ("auto", "auto-proxies")  # in place of the name of a score


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
    by: By = "detection_rate",
) -> tuple[Detector, Evaluation]:
    """Calibrate the network of a run on its validation data, and save the detector in the run's folder.

    Where the score is fitted or chosen on validation data, or the run was (`tune`), one part of the data is for that
    and the other for the threshold, see `Evaluation.divide`; so the guarantee is exact. Then the detector is tried on
    OOD validation data and on outliers made of ID samples, and a warning says where it is blind. `detector.notes` holds
    which score was chosen and why ("choice", a `Choice`), and the trials ("trials"). The file's notes (`read_notes`)
    also record the version, the date, the calibration data with a fingerprint, the accuracy on the test data, and what
    is flagged of it and of each OOD set.

    Args:
        run: a trained or adopted run.
        score: the name of a score; by default a consensus of several. "auto" chooses (`choose`) if there is OOD
            validation data, and else takes the default; "auto-proxies" then chooses on outliers made of ID samples.
        alpha: the largest false alarm rate; `delta` and `by_class` are those of `Detector.calibrate`.
        delta: see `Detector.calibrate`.
        by_class: see `Detector.calibrate`.
        search: choose the hyperparameters of the score first.
        truncate: False scores the network as if its SPCP heads were plain linear layers.
        benchmark: instead of the run's.
        by: what "auto" compares: "detection_rate" at alpha, or "auroc".
    """
    with locked(run.folder):  # nobody may train it further meanwhile
        return _calibrate(run, score, alpha, delta, by_class, search, truncate, benchmark, by)


def _calibrate(
    run: Run,
    score: str | None,
    alpha: float,
    delta: float | None,
    by_class: bool,
    search: bool,
    truncate: bool,
    benchmark: Benchmark | None,
    by: By,
) -> tuple[Detector, Evaluation]:
    benchmark = benchmark or run.benchmark()
    if benchmark.val is None:
        raise InputError(f"{benchmark.name}: has no validation data to calibrate on; give it some (val)")
    whole = Evaluation(run, benchmark, truncate=truncate)
    choosing = search or score in AUTO
    fitting = not choosing and "val" in _fitted_on(score or DEFAULT)
    evaluation, rest = whole.divide(alpha, delta, fitting=fitting, choosing=choosing)
    if rest is not None and len(rest) < samples_needed(alpha, delta):
        raise InputError(
            f"{run.folder}: its settings were chosen on {len(benchmark.val) - len(rest)} validation samples, and the "
            f"other {len(rest)} are too few for alpha = {alpha:g}; at least {samples_needed(alpha, delta)} are needed"
        )
    choice = _choice(evaluation, score, alpha, by)
    detector = Detector(evaluation.model, evaluation.fitted(choice.score, search=search)).eval()
    calibration = whole if rest is None else whole.with_val(rest)
    detector.calibrate(calibration.samples(detector.score, "val"), alpha, delta=delta, by_class=by_class)
    outliers = {role: evaluation.samples(detector.score, role) for role in evaluation.outliers()}
    truncates = truncate and run.config.truncation.rho_norm != 0
    note_trials(detector, choice, try_detector(detector, outliers), truncates=truncates)
    config = run.config
    notes = {"network": config.network, "width": config.width, "architecture": config.architecture}
    notes |= {"inputs": run.inputs.as_json(), **_record(detector, calibration)}
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


def _record(detector: Detector, evaluation: Evaluation) -> dict[str, Any]:
    """Return what to know about a detector that is shipped: when, with what and on what it was made, and its rates."""
    val = evaluation.benchmark.val
    assert val is not None
    return {
        "spcp": __version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "calibration_data": {
            "name": evaluation.benchmark.name,
            "samples": len(val),
            "fingerprint": data_fingerprint(val),
        },
        "accuracy": evaluation.bank("test").accuracy(),
        "rates": flagged_shares(detector, evaluation),
    }


def _fitted_on(name: str) -> tuple[str, ...]:
    return SCORES[name][0].fitted_on if name in SCORES else build_score(name).fitted_on  # an error that lists names


def _choice(evaluation: Evaluation, score: str | None, alpha: float, by: By) -> Choice:
    """Choose a score on the part of the validation data that is for choosing.

    The default is replaced only where it ranks outliers above ID samples (`misranked`).
    """
    if score not in (None, *AUTO):
        return Choice(score, "named")
    roles, val, why = evaluation.outliers(), evaluation.bank("val"), "the default"
    if score == "auto" and not any(role.startswith("ood_val/") for role in roles):
        score, why = None, "the default, because there is no OOD validation data to choose by (--ood-val)"
    few = len(val) < samples_needed(alpha) + 2
    if few and score is not None:
        return Choice(DEFAULT, f"the default, because {len(val)} validation samples are too few to choose by")
    if score is None and (few or not roles):
        return Choice(DEFAULT, why)
    method, sets = evaluation.model.method, evaluation.benchmark.sets()

    def best_of(names: Iterable[str], by: By) -> Choice:
        return choose(
            evaluation.model,
            {name: evaluation.options_for(name) for name in names},
            val=val,
            train=evaluation.bank("train") if "train" in sets else None,
            ood={role: evaluation.bank(role) for role in roles},
            alpha=alpha,
            by=by,
        )

    scores = [DEFAULT, *applicable(sets, None if method is None else method.readable), *evaluation.default_scores()]
    if score is not None:
        return best_of(scores, by)
    wrong = misranked(best_of([DEFAULT], by).candidates[0].trials, len(split(len(val), alpha)[1]))
    if not wrong:
        return Choice(DEFAULT, why)
    choice = best_of(scores, "auroc")
    return replace(choice, reason=f"the default ranks outliers above ID samples ({wrong}); {choice.reason}")


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
        config.check()
    except (KeyError, InputError) as error:
        raise InputError(
            f"{path}: does not name its network; load it with spcp.Detector.load(path, network)"
        ) from error
    return Detector.load(path, build_network(config, inputs, code=network)), inputs
