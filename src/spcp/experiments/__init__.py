"""The paper's tables and figures, one name each, beside the paper's own figures: `spcp reproduce`."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Callable, Mapping, Sequence
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
from .outcome import Cell, verdict
from .outcome import Outcome as Outcome


def reproduce(
    name: str,
    budget: str = "cpu",
    folder: str | Path = "reproduce",
    *,
    only: Sequence[str] | None = None,
    seeds: int | None = None,
    root: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Do an experiment, write what came out below `folder`, and return it.

    Runs are kept below `folder/BUDGET/runs`, shared by all experiments, resumed if they were stopped, and not repeated.

    Args:
        name: of `EXPERIMENTS`.
        budget: of `BUDGETS`.
        folder: for everything.
        only: rows by name, or by backbone; None: all.
        seeds: how many; None: the budget's.
        root: of data, see `load_benchmark`.
        say: told what is going on.
    """
    for value, known, what in ((name, EXPERIMENTS, "experiment"), (budget, BUDGETS, "budget")):
        if value not in known:
            raise InputError(f"no {what} {value!r}; there are {', '.join(known)}")
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds = {seeds} must be at least 1")
    folder = Path(folder).expanduser() / budget
    threads = torch.get_num_threads()
    torch.set_num_threads(BUDGETS[budget].threads or threads)
    try:
        lab = Lab(BUDGETS[budget], folder, seeds=seeds, root=root, say=say)
        found = _outcome(name, budget, lab, only)
        figures = {kind: drawing.FIGURES[kind](lab, found) for kind in EXPERIMENTS[name].figures}
        page.write(found, figures, folder / name)
    finally:
        torch.set_num_threads(threads)
    return found


def _outcome(name: str, budget: str, lab: Lab, only: Sequence[str] | None = None) -> Outcome:
    """Measure all rows, and compare them with the paper's and with each other."""
    own = EXPERIMENTS[name]
    rows = rows_of(name, lab, only)
    measured = MEASURES[own.measure](lab, rows)
    theirs = dict(_published(own, rows, measured))
    cells = tuple(
        Cell(row, column, metric, tuple(by_seed), theirs.get((row, column, metric)))
        for row in dict.fromkeys(label(row) for row in rows)
        for (column, metric), by_seed in measured[row].items()
    )
    means = {key: figure.mean for key, figure in theirs.items()}
    verdicts = [verdict(claim, measured, means) for claim in claims_of(name, rows)]
    findings = FINDINGS[name](measured) if name in FINDINGS and only is None else ()
    told = tuple(own for own in verdicts if own.gains)
    return Outcome(name, own.title, budget, _about(name, budget, lab, rows, only), cells, told, findings)


def _published(own: Experiment, rows: list[Row], measured: Values) -> Any:
    """The paper's figures for what was measured."""
    for row in rows:
        for column, metric in measured[label(row)]:
            benchmark = row.benchmark if row.benchmark in own.benchmarks else own.benchmarks[0]
            benchmark = "kinetics-sound" if own.benchmarks == ("audio",) else benchmark
            found = paper.figure(own.tables, benchmark, paper_backbone(row), row.name, column, metric)
            if found is not None and metric != "seconds":  # those are of another machine
                yield (label(row), column, metric), found


def _about(name: str, budget: str, lab: Lab, rows: list[Row], only: Sequence[str] | None) -> Mapping[str, Any]:
    """Where the numbers come from."""
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
