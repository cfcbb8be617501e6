"""The paper's tables and figures, one name each, beside the paper's numbers: `spcp reproduce`."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..engines.runs import Engine
from ..environment import environment, machine
from ..errors import InputError
from . import drawing, page, paper
from .budgets import BUDGETS as BUDGETS
from .budgets import Budget as Budget
from .catalogue import EXPERIMENTS as EXPERIMENTS
from .catalogue import Experiment as Experiment
from .catalogue import claims_of, label, rows_of
from .findings import FINDINGS
from .lab import Lab as Lab
from .lab import Row as Row
from .lab import UntrainedError
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
    trained_only: bool = False,
    engine: Engine | None = None,
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
        trained_only: train nothing; rows and seeds whose runs are not done are left out, and the outcome says so.
        engine: where runs are trained and scored, and how many at a time; by default one after the other in this
            process. The numbers do not depend on it, but for the threads of a run, by default one.
        log: called with messages about the progress.
    """
    for value, names, what in ((name, EXPERIMENTS, "experiment"), (budget, BUDGETS, "budget")):
        if value not in names:
            raise InputError(f"no {what} {value!r}; there are {', '.join(names)}")
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds = {seeds} must be at least 1")
    folder = Path(folder).expanduser() / budget
    engine = engine or Engine()
    with engine.started(), engine.limited():
        lab = Lab(BUDGETS[budget], folder, seeds=seeds, root=root, trained_only=trained_only, engine=engine, log=log)
        outcome = _outcome(name, budget, lab, only)
        figures = {kind: drawing.FIGURES[kind](lab, outcome) for kind in EXPERIMENTS[name].figures}
        page.write(outcome, figures, folder / name)
    return outcome


def _outcome(name: str, budget: str, lab: Lab, only: Sequence[str] | None = None) -> Outcome:
    """Measure all rows, and compare them with the paper's and with each other."""
    experiment = EXPERIMENTS[name]
    rows, missing = _trained(name, lab, rows_of(name, lab, only))
    measured = MEASURES[experiment.measure](lab, rows)
    if callable(experiment.claims) and lab.budget.verdicts:  # they are about the value chosen
        with contextlib.suppress(UntrainedError):
            lab.rho_norm(rows[0].benchmark)
    theirs, elsewhere = _published(experiment, rows, measured)
    cells = tuple(
        Cell(row, *measure, tuple(by_seed.values()), tuple(by_seed), theirs.get(key), elsewhere.get(key))
        for row in dict.fromkeys(label(row) for row in rows)
        for measure, by_seed in measured[row].items()
        for key in [(row, *measure)]
    )
    findings = FINDINGS[name](measured) if name in FINDINGS and only is None and not missing else ()
    about = {**_about(name, budget, lab, rows, only), **_notes(experiment, rows, missing, bool(elsewhere))}
    return judged(Outcome(name, experiment.title, budget, about, cells, (), findings))


def judged(outcome: Outcome) -> Outcome:
    """Judge the paper's claims by the numbers of an outcome; those about rows that are not there are left out."""
    facts, learnt = outcome.about, dict(outcome.values)
    unlearnt = _unlearnt(outcome)
    if unlearnt:
        listed = ", ".join(f"{row} {learnt.pop(row) and accuracy:.1f} %" for row, accuracy in unlearnt.items())
        told = f"Not compared, because more than {POINTS:g} points of accuracy are missing: {listed}."
        facts = {**facts, "unlearnt": told}
    theirs = {(cell.row, cell.column, cell.metric): cell.paper or cell.elsewhere for cell in outcome.cells}
    means = {key: figure[0] for key, figure in theirs.items() if figure}
    claims = claims_of(
        outcome.name, BUDGETS[outcome.budget], facts.get("rho_norm", 0.0), facts.get("settings") or ("",)
    )
    results = (judge(claim, learnt, means) for claim in claims)
    return dataclasses.replace(outcome, about=facts, claims=tuple(result for result in results if result.gains))


POINTS = 2.0  # of accuracy that LogitNorm may lose to plain training and still count as trained


def _unlearnt(outcome: Outcome) -> dict[str, float]:
    """Return the rows of LogitNorm, which learns slowly, that did not come close to plain accuracy; with theirs."""
    accuracy = {cell.row: cell.mean for cell in outcome.cells if (cell.column, cell.metric) == ("id", "ACC")}
    plain = max((accuracy[row] for row in ("Energy", "Vanilla") if row in accuracy), default=0.0)
    return {row: share for row, share in accuracy.items() if "LogitNorm" in row and share < plain - POINTS}


def _trained(name: str, lab: Lab, rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that have runs, and the names of the others."""
    if EXPERIMENTS[name].measure == "time":  # which trains nothing
        return rows, []
    kept = [row for row in rows if lab.seeds_of(row)]
    if not kept:
        raise InputError(f"{lab.folder}: nothing of {name} is trained there yet; leave out --trained to train it")
    return kept, [label(row) for row in rows if row not in kept]


Figures = dict[tuple[str, str, str], paper.Figure]


def _published(experiment: Experiment, rows: list[Row], measured: Values) -> tuple[Figures, Figures]:
    """Return the paper's numbers by row, column and metric: on the same benchmark, and on others."""
    same: Figures = {}
    elsewhere: Figures = {}
    for row in rows:
        for column, metric in measured[label(row)]:
            benchmark = _paper_benchmark(experiment, row)
            figure = paper.figure(
                experiment.tables, benchmark, row.paper_backbone, row.paper or row.name, column, metric
            )
            if figure is not None and metric != "seconds":  # those are of another machine
                (same if benchmark == row.benchmark else elsewhere)[label(row), column, metric] = figure
    return same, elsewhere


def _paper_benchmark(experiment: Experiment, row: Row) -> str:
    benchmarks = ("kinetics-sound",) if experiment.benchmarks == ("audio",) else experiment.benchmarks
    return row.benchmark if row.benchmark in benchmarks else benchmarks[0]


def _notes(experiment: Experiment, rows: list[Row], missing: list[str], elsewhere: bool) -> Mapping[str, str]:
    """Say what a reader has to know: what is special, what is missing, where the paper's numbers come from."""
    told = {"note": experiment.note} if experiment.note else {}
    if missing:
        told["missing"] = f"Not trained yet: {', '.join(missing)}."
    if elsewhere:
        told["paper"] = paper.BENCHMARKS[_paper_benchmark(experiment, rows[0])]
    return told


def _about(name: str, budget: str, lab: Lab, rows: list[Row], only: Sequence[str] | None) -> Mapping[str, Any]:
    """Describe where the numbers come from."""
    config = lab.config(rows[0], 0)
    rho_norm = lab.chosen(rows[0].benchmark)
    command = ["spcp", "reproduce", name, "--budget", budget]
    command += [] if only is None else ["--only", ",".join(only)]
    command += [] if len(lab.seeds) == lab.budget.seeds else ["--seeds", str(len(lab.seeds))]
    command += ["--trained"] if lab.trained_only else []
    size = lab.benchmark(rows[0].benchmark).fewer(config.images).train
    loss = lab.final_loss(next((row for row in rows if row.method == "plain"), None))
    settings = list(dict.fromkeys(row.setting for row in rows))
    shown = {"network": config.network, "width": config.width, "epochs": config.epochs, "augment": config.augment}
    return {
        "command": shlex.join(command),
        "data": rows[0].benchmark,
        "images": len(size or ()),
        **{key: value for key, value in shown.items() if value is not None},
        **({} if rho_norm is None else {"rho_norm": rho_norm}),
        **({"grid": lab.grid[rows[0].benchmark]} if rows[0].benchmark in lab.grid else {}),
        **({} if loss is None else {"training loss of the plain network": loss}),
        **({"settings": settings} if settings != [""] else {}),
        "seeds": len(lab.seeds) if not lab.trained_only else max(len(lab.seeds_of(row)) for row in rows),
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "precision": config.precision,
        "environment": environment(),
        "versions": f"spcp {__version__}, torch {torch.__version__}",
    }
