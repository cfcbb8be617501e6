"""`spcp reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ..errors import InputError
from .app import command
from .options import EngineOptions, Json, Root, names, option
from .output import note, show


@command("reproduce", panel="Report")
def reproduce_command(
    many: EngineOptions,
    name: Annotated[str | None, Argument(help="Name of a table or figure; without it, all are listed.")] = None,
    budget: Annotated[str, option("full, cpu, small or smoke.", "--budget", "-b")] = "cpu",
    only: Annotated[str | None, option("Rows or networks, separated by commas; default: all.")] = None,
    seeds: Annotated[int | None, Option(help="Networks of each kind; default: the budget's.", min=1)] = None,
    trained: Annotated[bool, Option("--trained", help="Train nothing: publish what is trained.")] = False,
    records: Annotated[
        Path | None, option("Folder with records of runs, such as docs/results: what they hold is not trained.")
    ] = None,
    measure: Annotated[
        bool, Option("--measure", help="Without a name: measure what experiments ask of all runs that are done.")
    ] = False,
    root: Root = None,
    out: Annotated[Path, option("Folder for runs and results.", "--out", "-o")] = Path("reproduce"),
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the paper: train what it needs, and compare our numbers with the paper's.

    Budgets: full is the paper's setting (GPU); cpu is real data reduced to minutes a run; small is the embedded digits,
    seconds a run; smoke only shows that it runs. Runs are shared between names, resumed after Ctrl-C, and not repeated.

    [dim]spcp reproduce                            # list them
    spcp reproduce compatibility --budget small
    spcp reproduce --measure --budget small       # keep what is known of all runs, without their weights
    spcp reproduce cifar10 --budget full --root data[/dim]
    """
    from ..experiments import BUDGETS, EXPERIMENTS, measure_runs, page, reproduce

    if measure:
        if name is not None:
            raise InputError(f"--measure is for the runs of all experiments; leave out {name}")
        made = measure_runs(budget, out, root=root, log=note)
        note(f"records of {len(made)} runs, which need no weights any more: {out / budget / 'runs'}")
        return
    if name is None:
        show([{"name": key, "experiment": e.title, "note": e.note} for key, e in EXPERIMENTS.items()], as_json)
        for key, chosen in BUDGETS.items():
            note(f"--budget {key}: {chosen.description}")
        return
    given: dict[str, Any] = {"seeds": seeds, "root": root, "trained_only": trained, "records": records}
    outcome = reproduce(name, budget, out, only=names(only), **given, engine=many.engine_of(), log=note)
    show(outcome.records() if as_json else page.records(outcome), as_json, outcome.title, page.for_people)
    for text in (*([outcome.about["note"]] if "note" in outcome.about else []), *page.lacking(outcome)):
        note(text)
    for claim in outcome.claims:
        note(f"{claim.support.value} ({claim.tally}): {claim.text}")
    for finding in outcome.findings:
        note(finding)
    note(f"written: {out / budget / name / 'report.html'}")
