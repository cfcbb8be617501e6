"""`spcp demo`, `spcp report` and `spcp patterns`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from .app import Json, command, note, only_runs, show
from .deciding import Detectors, Runs


@command("demo", panel="Show")
def demo_command(
    out: Annotated[Path, Option("--out", "-o", help="Folder for runs and the report.")] = Path("demo"),
    seeds: Annotated[int, Option(help="Networks of each kind.", min=1)] = 3,
    epochs: Annotated[int | None, Option(help="Fewer for a quick look.")] = None,
) -> None:
    """Plain training against SPCP on embedded real data: train, detect, decide, and a report to look at.

    Takes about two minutes; the same command goes on after Ctrl-C.
    """
    from ..demo import demo

    print(demo(out, seeds=seeds, epochs=epochs, say=note))


@command("report", panel="Show")
def report_command(
    runs: Runs,
    out: Annotated[Path, Option("--out", "-o", help="Folder of the report.")] = Path("report"),
    detectors: Detectors = None,
    title: Annotated[str | None, Option(help="Its title.")] = None,
) -> None:
    """One page on some runs: verdict, tables, distributions, ROC, patterns and examples.

    Runs that differ by the seed alone are taken together. Writes report.html (one file, no network), report.md,
    results.csv and figures as PNG, SVG and PDF.

    [dim]spcp report runs/digits-plain-* runs/digits-spcp-*[/dim]
    """
    from ..report import report

    names = None if detectors is None else [own.strip() for own in detectors.split(",") if own.strip()]
    print(report(only_runs(runs), out, detectors=names, title=title))


@command("patterns", panel="Show")
def patterns_command(
    runs: Runs,
    out: Annotated[Path, Option("--out", "-o", help="Folder for the figure.")] = Path("patterns"),
    as_json: Json = False,
) -> None:
    """How few weights carry the predictions: sparsity, and the sorted contribution matrices as a figure.

    [dim]spcp patterns runs/digits-plain-0 runs/digits-spcp-0[/dim]
    """
    from ..report import patterns

    rows, files = patterns(runs, out)
    show(rows, as_json)
    note(f"written: {', '.join(map(str, files))}")
