"""`spcp calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument

from ..errors import InputError
from .app import command
from .options import LATEST, Alpha, BadFiles, Json, Model, ScoreName, Truncate, latest_run, open_runs, option
from .output import note, percent, show
from .training import note_choice


@command("calibrate", panel="Detect")
def calibrate_command(
    run: Annotated[
        Path | None, Argument(help=f"Folder of a run, or a file in it that spcp export wrote; default: {LATEST}.")
    ] = None,
    score: ScoreName = None,
    by: Annotated[str, option("What auto compares: detection_rate or auroc.")] = "detection_rate",
    alpha: Alpha = 0.05,
    delta: Annotated[
        float | None, option("Hold alpha for all but this share of calibration sets; default: on average.")
    ] = None,
    by_class: Annotated[bool, option("Set a threshold for each predicted class.", "--by-class")] = False,
    search: Annotated[bool, option("Choose the score's hyperparameters first.", "--search")] = False,
    truncate: Truncate = True,
    model: Model = None,
    bad: BadFiles = "raise",
    as_json: Json = False,
) -> None:
    """Set the score threshold of a run on its validation data, and show the share of each test set that is flagged.

    What is flagged of ID data is the false alarm rate, which alpha bounds; of OOD data, the detection rate. An exported
    file in the folder of a run is calibrated itself, at its own alpha: after it was made int8 by other tools, say.

    [dim]spcp calibrate runs/digits-spcp-0 --alpha 0.01 --score knn[/dim]
    """
    from .. import processes
    from ..calibration import calibrate_run, flagged_shares
    from ..evaluation import Evaluation

    if run is not None and run.suffix == ".onnx":
        _calibrate_file(run, model, as_json)
        return
    (opened,) = open_runs([latest_run(run, model=model)], model)
    settings: Any = {"delta": delta, "by_class": by_class, "search": search, "truncate": truncate, "by": by}
    benchmark = opened.benchmark(bad="skip") if bad == "skip" else None  # else as the run has it
    with processes.joined():
        if processes.count() > 1:  # they share the pass, and the first does the rest
            whole = Evaluation(opened, benchmark, truncate=truncate)
            whole.make_banks(whole.benchmark.sets())
        if processes.rank():
            return
    detector, evaluation = calibrate_run(opened, score, alpha=alpha, benchmark=benchmark, **settings)
    rows = flagged_shares(detector, evaluation)
    show(rows, as_json, f"flagged as OOD at alpha = {alpha:g}", percent("flagged"))
    note_choice(detector)
    hint = "" if len(rows) > 1 else "; there are no OOD sets to test on (--ood)"
    samples = len(detector.calibration_scores)
    note(f"calibrated on {samples} validation samples{hint}; written: {opened.detector_path}")


def _calibrate_file(file: Path, model: str | None, as_json: bool) -> None:
    from ..shipping import calibrate_exported, flagged_by_file

    if not (file.absolute().parent / "config.json").exists():
        raise InputError(
            f"{file}: must lie in the folder of its run, whose validation data calibrates it; move it there"
        )
    (opened,) = open_runs([file.absolute().parent], model)
    benchmark = opened.benchmark()
    detector = calibrate_exported(file, opened, benchmark)
    rows = flagged_by_file(detector, benchmark)
    show(rows, as_json, f"flagged as OOD at alpha = {detector.alpha:g}", percent("flagged", "accuracy"))
    note(f"calibrated on {detector.metadata['calibration_samples']} validation samples; written: {file}")
