"""`spcp report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .app import command
from .options import Model, Runs, Scores, names, open_runs, option
from .output import result


@command("report", panel="Report")
def report_command(
    runs: Runs,
    out: Annotated[Path, option("Folder of the report.", "--out", "-o")] = Path("report"),
    scores: Scores = None,
    model: Model = None,
    title: Annotated[str | None, option("Title of the report.")] = None,
) -> None:
    """Write one page about runs: verdict, tables, score distributions, ROC, contribution patterns and examples.

    Runs that differ in the seed alone count as one. Writes report.html (one file, no network needed), report.md,
    results.csv and figures as PNG, SVG and PDF.

    [dim]spcp report runs/digits-plain-* runs/digits-spcp-*[/dim]
    """
    from ..report import report

    result(report(open_runs(runs, model), out, scores=names(scores), title=title))
