"""`spcp eval`, `spcp calibrate` and `spcp detect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from ..errors import InputError
from .app import LATEST, Json, command, latest_run, note, only_runs, show

Runs = Annotated[list[Path], Argument(help="Folders of runs.", show_default=False)]
Head = Annotated[str, Option(help="truncating, as it was trained, or plain.")]
Detectors = Annotated[str | None, Option("--detectors", "-d", help="Names with commas; default: all that make sense.")]


@command("eval", panel="Detect and decide")
def eval_command(
    runs: Runs,
    benchmark: Annotated[str | None, Option("--benchmark", "-b", help="Another than the run's own.")] = None,
    detectors: Detectors = None,
    search: Annotated[bool, Option("--search", help="Choose hyperparameters on validation data first.")] = False,
    full_spectrum: Annotated[bool, Option("--full-spectrum", help="Count shifted sets as known.")] = False,
    which: Annotated[str, Option(help="last or best weights.")] = "last",
    head: Head = "truncating",
    out: Annotated[Path | None, Option("--out", "-o", help="Write all measures to .csv, .json, .md or .tex.")] = None,
    as_json: Json = False,
) -> None:
    """Every detector on every set, after one pass of the network over each.

    [dim]spcp eval runs/digits-spcp-0
    spcp eval runs/* -d energy,knn -o results.csv[/dim]
    """
    from ..evaluation import CONVENTION, NAMES, Table, evaluate

    if which not in ("last", "best"):
        raise InputError(f"--which {which}: must be last or best")
    if out is not None:
        if out.suffix not in (".csv", ".json", ".md", ".tex"):
            raise InputError(f"{out}: must end in .csv, .json, .md or .tex")
        if len(runs) > 1 and out.suffix in (".md", ".tex"):
            raise InputError(f"{out}: holds one run; name a .csv or .json, or see spcp report")
    names = None if detectors is None else [own.strip() for own in detectors.split(",") if own.strip()]
    rows: list[dict[str, Any]] = []
    runs = only_runs(runs)
    for run in runs:
        table = evaluate(run, benchmark, names, search=search, full_spectrum=full_spectrum, which=which, head=head)
        rows += [{"run": str(run), **row} for row in table.rows]
    if out is not None:
        note(f"written: {Table(tuple(rows), {}).save(out)}")
    if as_json:
        show(rows, True)
        return
    short = [
        {key: row[key] for key in ("run", "detector", "group", "set")}
        | {NAMES[key]: round(row[key], 2) for key in ("fpr95", "auroc")}
        for row in rows
    ]
    show([{key: row[key] for key in row if key != "run" or len(runs) > 1} for row in short])
    note(CONVENTION)
    accuracies = {row["run"]: row["accuracy"] for row in rows}
    for run, accuracy in accuracies.items():
        note(f"ID accuracy {accuracy:.2f} %" + (f" of {run}" if len(runs) > 1 else ""))


@command("calibrate", panel="Detect and decide")
def calibrate_command(
    run: Annotated[Path | None, Argument(help=f"Folder of a run; default: {LATEST}.", show_default=False)] = None,
    detector: Annotated[
        str | None, Option("--detector", "-d", help="See `spcp detectors`; default: the method's.")
    ] = None,
    alpha: Annotated[float, Option(help="Flag at most this share of what is known.")] = 0.05,
    delta: Annotated[float | None, Option(help="Keep that promise for all but this share of calibration sets.")] = None,
    by_class: Annotated[bool, Option("--by-class", help="A threshold for each predicted class.")] = False,
    search: Annotated[bool, Option("--search", help="Choose the detector's hyperparameters first.")] = False,
    head: Head = "truncating",
    as_json: Json = False,
) -> None:
    """Set the threshold of a run on its validation data, with a promise, and show what it flags.

    [dim]spcp calibrate runs/digits-spcp-0 --alpha 0.01 --detector knn[/dim]
    """
    from ..decision import FILE, calibrate_run

    folder = latest_run(run)
    found, own = calibrate_run(folder, detector, alpha=alpha, delta=delta, by_class=by_class, search=search, head=head)
    rows = []
    for role in ("test", *(role for role in own.benchmark.sets() if role.startswith(("near/", "far/", "shifted/")))):
        if found.score.needs_inputs:
            classes, scores = own.features(role).k, own.scores(found.score, role)
        else:
            classes, scores = found.scores(own.features(role))
        flagged = found.decide(classes, scores).is_ood
        rows.append(
            {"set": role, "samples": len(flagged), "flagged_percent": round(100 * flagged.float().mean().item(), 2)}
        )
    show(rows, as_json, f"flagged with alpha {alpha:g}")
    odd = "" if len(rows) > 1 else "; there are no odd sets to test on (--ood)"
    note(f"calibrated on {len(found.sorted_scores)} validation samples{odd}; written: {folder / FILE}")


@command("detect", panel="Detect and decide")
def detect_command(
    files: Annotated[
        list[str], Argument(help="Files, folders, patterns, arrays; - reads a list of them.", show_default=False)
    ],
    run: Annotated[
        Path | None, Option("--run", "-r", help=f"A calibrated run, or its detector.safetensors; default: {LATEST}.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say of each file what it shows, how well it fits what the network knows, and whether it is odd.

    The p-value is the share of known samples that look at least as odd. A table on a terminal, CSV in a pipe. Exit code
    1 if a file cannot be read; the others are judged all the same.

    [dim]spcp detect photo.jpg holiday/ 'scans/**/*.png'
    find . -name '*.png' | spcp detect - --json | jq '.[] | select(.verdict == "odd")'[/dim]
    """
    from ..decision import FILE, as_row, find_files, load_decision, verdicts
    from ..progress import track

    found = find_files(files)
    if not found:
        raise InputError("there are no files to look at; name some")
    detector, inputs = load_decision(latest_run(run, FILE))
    rows = [as_row(own) for own in track(verdicts(detector, inputs, found), "looking", len(found))]
    show(rows, as_json)
    odd, bad = (sum(row["verdict"] == kind for row in rows) for kind in ("odd", "unreadable"))
    alpha = detector.alpha or 0.0
    note(f"{odd} of {len(rows) - bad} are odd; of what is known, at most {100 * alpha:g} % would be")
    if bad:
        note(f"{bad} could not be read")
        raise typer.Exit(1)
