"""`spcp detect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from ..errors import InputError
from ..tables import Record
from .app import command
from .options import LATEST, Json, Model, latest_run, option
from .output import note, show


@command("detect", panel="Detect")
def detect_command(
    files: Annotated[
        list[str], Argument(help="Files, folders, patterns, arrays; - reads a list of them.", show_default=False)
    ],
    run: Annotated[
        Path | None, option(f"A calibrated run, or its detector.safetensors; default: {LATEST}.", "--run", "-r")
    ] = None,
    explain: Annotated[bool, option("Add the p-value of each member of a consensus.", "--explain")] = False,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Classify each file, and tell whether it is OOD.

    The p-value is the share of ID samples that score at most as high as the file: a small one speaks for OOD. Prints a
    table on a terminal, CSV in a pipe. A file that cannot be read has a row with the problem, and the exit code is 1.

    [dim]spcp detect photo.jpg holiday/ 'scans/**/*.png'
    find . -name '*.png' | spcp detect - --json | jq '.[] | select(.is_ood)'[/dim]
    """
    from ..calibration import load_detector
    from ..detection import detect_files, find_files
    from ..progress import track

    paths = find_files(files)
    if not paths:
        raise InputError("there are no files to classify; name some")
    detector, inputs = load_detector(latest_run(run, "detector.safetensors", model), network=model)
    results = track(detect_files(detector, inputs, paths, explain=explain), "detecting", len(paths))
    rows = [result.as_record() for result in results]
    show(rows, as_json, for_people=_for_people)
    ood, unreadable = sum(row["is_ood"] is True for row in rows), sum("problem" in row for row in rows)
    alpha = 100 * (detector.alpha or 0.0)
    note(f"{ood} of {len(rows) - unreadable} are OOD; of ID inputs at most {alpha:g} % are flagged, on average")
    if unreadable:
        note(f"{unreadable} could not be read")
        raise typer.Exit(1)


def _for_people(row: Record) -> Record:
    verdict = {True: "OOD", False: "ID", None: "unreadable"}[row["is_ood"]]
    shown = {"file": row["file"], "verdict": verdict} | {key: row[key] for key in row if key not in ("file", "is_ood")}
    if "members" in row:
        shown["members"] = ", ".join(f"{name} {p:.2g}" for name, p in row["members"].items())
    return shown
