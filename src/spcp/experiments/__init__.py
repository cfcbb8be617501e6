"""The paper's tables and figures, one name each, beside the paper's numbers: `spcp reproduce`."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..environment import environment, machine
from ..errors import InputError
from . import drawing, page, paper
from .budgets import BUDGETS as BUDGETS
from .budgets import Budget as Budget
from .catalogue import EXPERIMENTS as EXPERIMENTS
from .catalogue import Experiment as Experiment
from .catalogue import claims_of, label, paper_backbone, rows_of
from .findings import FINDINGS
from .lab import Lab as Lab
from .lab import Row as Row
from .measures import MEASURES, Values
from .outcome import Cell, judge
from .outcome import Outcome as Outcome


def reproduce(
    name: str,
    budget: str = "cpu",
    folder: str | Path = "reproduce",
    *,
    only: Sequence[str] | None = None,
    seeds: int | None = None,
    root: str | Path | None = None,
    log: Callable[[str], None] = print,
) -> Outcome:
    """Run an experiment, write its outcome below `folder`, and return it.

    Runs are kept below `folder/BUDGET/runs`, shared by all experiments, resumed if they were stopped, and not repeated.

    Args:
        name: one of `EXPERIMENTS`.
        budget: one of `BUDGETS`.
        folder: for everything.
        only: rows by name, or by backbone; None: all.
        seeds: how many; None: the budget's.
        root: the data folder, see `load_benchmark`.
        log: called with messages about the progress.
    """
    for value, names, what in ((name, EXPERIMENTS, "experiment"), (budget, BUDGETS, "budget")):
        if value not in names:
            raise InputError(f"no {what} {value!r}; there are {', '.join(names)}")
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds = {seeds} must be at least 1")
    folder = Path(folder).expanduser() / budget
    threads = torch.get_num_threads()
    torch.set_num_threads(BUDGETS[budget].threads or threads)
    try:
        lab = Lab(BUDGETS[budget], folder, seeds=seeds, root=root, log=log)
        outcome = _outcome(name, budget, lab, only)
        figures = {kind: drawing.FIGURES[kind](lab, outcome) for kind in EXPERIMENTS[name].figures}
        page.write(outcome, figures, folder / name)
    finally:
        torch.set_num_threads(threads)
    return outcome


def _outcome(name: str, budget: str, lab: Lab, only: Sequence[str] | None = None) -> Outcome:
    """Measure all rows, and compare them with the paper's and with each other."""
    experiment = EXPERIMENTS[name]
    rows = rows_of(name, lab, only)
    measured = MEASURES[experiment.measure](lab, rows)
    theirs = dict(_published(experiment, rows, measured))
    cells = tuple(
        Cell(row, column, metric, tuple(by_seed), theirs.get((row, column, metric)))
        for row in dict.fromkeys(label(row) for row in rows)
        for (column, metric), by_seed in measured[row].items()
    )
    means = {key: figure.mean for key, figure in theirs.items()}
    claims = [judge(claim, measured, means) for claim in claims_of(name, rows)]
    findings = FINDINGS[name](measured) if name in FINDINGS and only is None else ()
    about = _about(name, budget, lab, rows, only)
    return Outcome(
        name, experiment.title, budget, about, cells, tuple(claim for claim in claims if claim.gains), findings
    )


def _published(
    experiment: Experiment, rows: list[Row], measured: Values
) -> Iterator[tuple[tuple[str, str, str], paper.Figure]]:
    """Yield the paper's numbers for what was measured, by row, column and metric."""
    for row in rows:
        for column, metric in measured[label(row)]:
            benchmarks = experiment.benchmarks
            benchmark = row.benchmark if row.benchmark in benchmarks else benchmarks[0]
            benchmark = "kinetics-sound" if benchmarks == ("audio",) else benchmark
            figure = paper.figure(experiment.tables, benchmark, paper_backbone(row), row.name, column, metric)
            if figure is not None and metric != "seconds":  # those are of another machine
                yield (label(row), column, metric), figure


def _about(name: str, budget: str, lab: Lab, rows: list[Row], only: Sequence[str] | None) -> Mapping[str, Any]:
    """Describe where the numbers come from."""
    config = lab.config(rows[0], 0)
    rho_norm = lab.chosen(rows[0].benchmark)
    command = ["spcp", "reproduce", name, "--budget", budget]
    command += [] if only is None else ["--only", ",".join(only)]
    command += [] if len(lab.seeds) == lab.budget.seeds else ["--seeds", str(len(lab.seeds))]
    size = lab.benchmark(rows[0].benchmark).fewer(config.images).train
    loss = lab.final_loss(next((row for row in rows if row.method == "plain"), None))
    shown = {"network": config.network, "width": config.width, "epochs": config.epochs, "augment": config.augment}
    return {
        "command": shlex.join(command),
        "data": rows[0].benchmark,
        "images": len(size or ()),
        **{key: value for key, value in shown.items() if value is not None},
        **({} if rho_norm is None else {"rho_norm": rho_norm}),
        **({} if loss is None else {"training loss of the plain network": loss}),
        "seeds": len(lab.seeds),
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "precision": config.precision,
        "environment": environment(),
        "versions": f"spcp {__version__}, torch {torch.__version__}",
    }
