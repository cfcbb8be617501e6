"""`spcp eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ..errors import InputError
from .app import command
from .options import BadFiles, Json, Model, Runs, Scores, Truncate, names, open_runs, option
from .output import note, percent, show


@command("eval", panel="Detect")
def eval_command(
    runs: Runs,
    benchmark: Annotated[str | None, option("Another benchmark than the run's.", "--benchmark", "-b")] = None,
    scores: Scores = None,
    search: Annotated[bool, option("Choose hyperparameters on validation data first.", "--search")] = False,
    full_spectrum: Annotated[bool, option("Count covariate-shifted sets as ID.", "--full-spectrum")] = False,
    which: Annotated[str, option("last or best weights.")] = "last",
    truncate: Truncate = True,
    model: Model = None,
    bad: BadFiles = "raise",
    out: Annotated[Path | None, option("Write all measures to .csv, .json, .md or .tex.", "--out", "-o")] = None,
    as_json: Json = False,
) -> None:
    """Evaluate every score on every OOD set, after one pass of the network over each.

    [dim]spcp eval runs/digits-spcp-0
    spcp eval runs/* -s energy,knn -o results.csv
    torchrun --nproc-per-node 2 -m spcp eval runs/digits-spcp-0    # the same numbers, by two processes[/dim]
    """
    from .. import processes
    from ..data import load_benchmark
    from ..evaluation import CONVENTION, evaluate
    from ..files import written
    from ..tables import to_csv, to_json

    if which not in ("last", "best"):
        raise InputError(f"--which {which}: must be last or best")
    if out is not None and out.suffix not in (".csv", ".json", ".md", ".tex"):
        raise InputError(f"{out}: must end in .csv, .json, .md or .tex")
    given = bad if bad == "skip" else None  # else as the data's description has it
    opened = open_runs(runs, model)
    if out is not None and len(opened) > 1 and out.suffix in (".md", ".tex"):
        raise InputError(f"{out}: can hold one run only; name a .csv or .json file, or use spcp report")
    rows: list[dict[str, Any]] = []
    with processes.joined():
        for run in opened:
            options: Any = {"search": search, "full_spectrum": full_spectrum, "which": which, "truncate": truncate}
            root = run.config.root
            data = run.benchmark(bad=given) if benchmark is None else load_benchmark(benchmark, root, bad=given)
            table = evaluate(run, data, names(scores), **options)
            rows += [{"run": str(run.folder), **record} for record in table.records()]
        if processes.rank():  # the first of several shows and writes
            return
    if out is not None:
        text = table.markdown() if out.suffix == ".md" else table.latex() if out.suffix == ".tex" else ""
        with written(out.expanduser()) as file:
            file.write((text or (to_csv if out.suffix == ".csv" else to_json)(rows)).encode())
        note(f"written: {out}")
    rates = ("detection_rate", "false_alarm_rate") if all(row["detection_rate"] is not None for row in rows) else ()
    measures = ("fpr95", "auroc", *rates)
    keys = ("run", "score", "group", "dataset", *measures)[len(opened) == 1 :]
    shown = rows if as_json else [{key: row[key] for key in keys} for row in rows]
    show(shown, as_json, for_people=percent(*measures))
    note(CONVENTION.removeprefix("Percent. "))  # a table on a terminal is in percent, CSV and JSON are not
    for folder, accuracy in {row["run"]: row["accuracy"] for row in rows}.items():
        note(f"ID accuracy {100 * accuracy:.2f} %" + (f" of {folder}" if len(opened) > 1 else ""))
