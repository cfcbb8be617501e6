"""`spcp demo`, `spcp reproduce`, `spcp report` and `spcp patterns`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from .app import Json, command, note, only_runs, show
from .deciding import Detectors, Runs
from .own_data import Root


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

    print(demo(out, seeds=seeds, epochs=epochs, log=note))


@command("reproduce", panel="Show")
def reproduce_command(
    name: Annotated[str | None, Argument(help="Of a table or figure; without it, all are listed.")] = None,
    budget: Annotated[str, Option("--budget", "-b", help="full, cpu, small or smoke.")] = "cpu",
    only: Annotated[str | None, Option(help="Rows or networks, with commas between them; default: all.")] = None,
    seeds: Annotated[int | None, Option(help="Networks of each kind; default: the budget's.", min=1)] = None,
    root: Root = None,
    out: Annotated[Path, Option("--out", "-o", help="Folder for runs and results.")] = Path("reproduce"),
    as_json: Json = False,
) -> None:
    """A table or figure of the paper: train what it needs, and put ours beside the paper's.

    Budgets: full is the paper's setting (GPU); cpu is real data cut to minutes a run; small is the embedded digits,
    seconds a run; smoke only shows that it runs. Runs are shared between names, resumed after Ctrl-C, and not repeated.

    [dim]spcp reproduce                            # what there is
    spcp reproduce compatibility --budget small
    spcp reproduce cifar10 --budget full --root data[/dim]
    """
    from ..experiments import BUDGETS, EXPERIMENTS, reproduce

    if name is None:
        show([{"name": key, "experiment": own.title, "note": own.note} for key, own in EXPERIMENTS.items()], as_json)
        for key, one in BUDGETS.items():
            note(f"--budget {key}: {one.description}")
        return
    chosen = None if only is None else [own.strip() for own in only.split(",") if own.strip()]
    outcome = reproduce(name, budget, out, only=chosen, seeds=seeds, root=root, log=note)
    show(outcome.records(), as_json, outcome.title)
    for claim in outcome.claims:
        note(f"{claim.support.value}: {claim.text}")
    for finding in outcome.findings:
        note(finding)
    note(f"written: {out / budget / name / 'report.html'}")


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
    print(report(only_runs(runs), out, scores=names, title=title))


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
