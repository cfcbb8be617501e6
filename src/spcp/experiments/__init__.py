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
from ..config import Config
from ..engines.runs import Engine
from ..environment import described, environment, machine
from ..errors import InputError
from ..methods import METHODS
from ..progress import track
from . import drawing, page, paper
from .budgets import BUDGETS as BUDGETS
from .budgets import Budget as Budget
from .catalogue import EXPERIMENTS as EXPERIMENTS
from .catalogue import SCORES, claims_of, label, rows_of
from .catalogue import Experiment as Experiment
from .findings import FINDINGS, PARTIAL
from .lab import Lab as Lab
from .lab import Row as Row
from .lab import UntrainedError
from .measures import Values, measure
from .outcome import Cell, judge
from .outcome import Outcome as Outcome
from .records import FILE
from .records import Record as Record


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
    records: str | Path | None = None,
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
        records: a folder with records of runs (`record.json`) by budget, such as docs/results: what is in them is
            neither trained nor scored, so that results of several machines add up.
        log: called with messages about the progress.
    """
    for value, names, what in ((name, EXPERIMENTS, "experiment"), (budget, BUDGETS, "budget")):
        if value not in names:
            raise InputError(f"no {what} {value!r}; there are {', '.join(names)}")
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds = {seeds} must be at least 1")
    folder = Path(folder).expanduser() / budget
    records = None if records is None else Path(records).expanduser() / budget
    engine = engine or Engine()
    given: dict[str, Any] = {"seeds": seeds, "root": root, "trained_only": trained_only, "records": records}
    with engine.started(), engine.limited():
        lab = Lab(BUDGETS[budget], folder, **given, engine=engine, log=log)
        outcome = _outcome(name, budget, lab, only)
        figures = {}
        for kind in EXPERIMENTS[name].figures:
            try:
                figures[kind] = drawing.FIGURES[kind](lab, outcome)
            except UntrainedError as error:
                log(f"no figure {kind}: it needs the weights of {error}, of which there is a record only")
        page.write(outcome, figures, folder / name)
    return outcome


def measure_runs(
    budget: str = "cpu",
    folder: str | Path = "reproduce",
    *,
    root: str | Path | None = None,
    log: Callable[[str], None] = print,
) -> list[Path]:
    """Measure all that any experiment may ask of the runs that are done, and return their records.

    `reproduce` then does with the records, and needs the weights for figures only. All is every score with both heads,
    and truncation at inference with every value of rho_norm that may come to be chosen.
    """
    if budget not in BUDGETS:
        raise InputError(f"no budget {budget!r}; there are {', '.join(BUDGETS)}")
    lab = Lab(BUDGETS[budget], Path(folder).expanduser() / budget, root=root, trained_only=True, log=log)
    done = []
    with Engine().limited():
        for run in lab.runs():
            log(f"measure: {run.folder.relative_to(lab.folder / 'runs')}")
            names = measures_of(run.config, lab.budget)
            for name in track(names, "measures", len(names)):
                lab.measure(run, name)
            done.append(run.folder / FILE)
    return done


def measures_of(config: Config, budget: Budget) -> list[str]:
    """List all that experiments may ask of a run: measures and heads, as `Lab.measure` takes them."""
    heads = ["trained", "plain"] if config.truncation.rho_norm else ["trained"]
    at_inference = ["auto", *(f"fitted {value:g}" for value in budget.grid)] if config.method == "plain" else []
    scores = SCORES if config.method in ("plain", "spcp") else (METHODS[config.method][0].score,)
    told = [f"{what} {head}" for what in ("validation", "contributions") for head in (*heads, *at_inference)]
    told += [f"{what} {head}" for what in ("noise-validation", "tails") for head in heads] + ["lengths trained"]
    return [*told, *(f"{score} {head}" for score in scores for head in heads), *(f"energy {x}" for x in at_inference)]


def _outcome(name: str, budget: str, lab: Lab, only: Sequence[str] | None = None) -> Outcome:
    """Measure all rows, and compare them with the paper's and with each other."""
    experiment = EXPERIMENTS[name]
    rows, missing = _trained(name, lab, rows_of(name, lab, only))
    measured = measure(experiment.measure, lab, rows)
    unmeasured = [label(row) for row in rows if not measured[label(row)]]
    rows = [row for row in rows if measured[label(row)]]
    if not rows:
        raise InputError(
            f"{lab.folder}: the records of {name} lack its measures; leave out --trained to train its runs"
        )
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
    about = {**_about(name, budget, lab, rows, only), **_notes(experiment, rows, missing, unmeasured, bool(elsewhere))}
    return judged(Outcome(name, experiment.title, budget, about, cells, ()))


def judged(outcome: Outcome) -> Outcome:
    """Judge the paper's claims by the numbers of an outcome, and say what is special and what our additions found.

    Claims about rows that are not there are left out, and, where nothing was chosen, those about the value chosen.
    """
    facts, unlearnt = outcome.about, outcome.unlearnt
    learnt = {row: values for row, values in outcome.values.items() if row not in unlearnt}
    means = {(cell.row, cell.column, cell.metric): cell.paper[0] for cell in outcome.cells if cell.paper}
    claims = claims_of(
        outcome.name, BUDGETS[outcome.budget], facts.get("rho_norm", 0.0), facts.get("settings") or ("",)
    )
    is_chosen = "rho_norm" in facts and len(facts.get("grid", ())) != 1  # without a grid: it is the paper's
    results = (judge(claim, learnt, means) for claim in claims if is_chosen or not claim.chosen)
    judgements = tuple(result for result in results if result.gains)
    note = {"note": EXPERIMENTS[outcome.name].note} if EXPERIMENTS[outcome.name].note else {}
    return dataclasses.replace(outcome, about={**facts, **note}, claims=judgements, findings=_findings(outcome))


def _findings(outcome: Outcome) -> tuple[str, ...]:
    """Say what our additions found; most of them need all of their rows."""
    is_whole = "missing" not in outcome.about and "--only" not in outcome.about.get("command", "")
    is_told = outcome.name in FINDINGS and BUDGETS[outcome.budget].verdicts
    return FINDINGS[outcome.name](outcome.values) if is_told and (is_whole or outcome.name in PARTIAL) else ()


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
        benchmark = _paper_benchmark(experiment, row)
        is_same = benchmark == row.benchmark
        sets = {column for column, _ in measured[label(row)]}
        for column, metric in measured[label(row)]:
            key = (experiment.tables, benchmark, row.paper_backbone, row.paper or row.name, column, metric)
            over = is_same and column in ("near", "far")  # the sets that are here
            figure = paper.group_figure(*key, sets) if over else paper.figure(*key)
            if figure is not None and metric != "seconds":  # those are of another machine
                (same if is_same else elsewhere)[label(row), column, metric] = figure
    return same, elsewhere


def _paper_benchmark(experiment: Experiment, row: Row) -> str:
    benchmarks = ("kinetics-sound",) if experiment.benchmarks == ("audio",) else experiment.benchmarks
    return row.benchmark if row.benchmark in benchmarks else benchmarks[0]


def _notes(
    experiment: Experiment, rows: list[Row], missing: list[str], unmeasured: list[str], elsewhere: bool
) -> Mapping[str, str]:
    """Say what is missing, and where the paper's numbers come from."""
    told = {}
    lacking = {"Not trained yet": missing, "Recorded without these measures": unmeasured}
    sentences = [f"{what}: {_listed(names)}." for what, names in lacking.items() if names]
    if sentences:
        told["missing"] = " ".join(sentences)
    if elsewhere:
        told["paper"] = paper.BENCHMARKS[_paper_benchmark(experiment, rows[0])]
    return told


def _listed(names: list[str]) -> str:
    """List names; of many, some and how many others there are."""
    return ", ".join(names if len(names) <= 12 else [*names[:4], f"and {len(names) - 4} other rows"])


def _about(name: str, budget: str, lab: Lab, rows: list[Row], only: Sequence[str] | None) -> Mapping[str, Any]:
    """Describe where the numbers come from."""
    config = lab.config(rows[0], 0)
    rho_norm = lab.chosen(rows[0].benchmark)
    command = ["spcp", "reproduce", name, "--budget", budget]
    command += [] if only is None else ["--only", ",".join(only)]
    command += [] if len(lab.seeds) == lab.budget.seeds else ["--seeds", str(len(lab.seeds))]
    command += ["--trained"] if lab.trained_only else []
    loss = lab.final_loss(next((row for row in rows if row.method == "plain"), None))
    settings = list(dict.fromkeys(row.setting for row in rows))
    is_timed = EXPERIMENTS[name].measure == "time"  # in float32, without runs
    trained = [] if is_timed else lab.trained_with(rows)
    shown = {"network": config.network, "width": config.width, "epochs": config.epochs, "augment": config.augment}
    return {
        "command": shlex.join(command),
        "data": rows[0].benchmark,
        "images": lab.images(rows[0]),
        **{key: value for key, value in shown.items() if value is not None},
        **({} if rho_norm is None else {"rho_norm": rho_norm}),
        **lab.choices.get(rows[0].benchmark, {}),
        **({} if loss is None else {"training loss of the plain network": loss}),
        **({"settings": settings} if settings != [""] else {}),
        "seeds": len(lab.seeds) if not lab.trained_only else max(len(lab.seeds_of(row)) for row in rows),
        "machine": "; ".join(dict.fromkeys(map(described, trained))) or machine(),
        "date": datetime.date.today().isoformat(),
        "precision": "32-true" if is_timed else config.precision,
        "environment": environment(),
        **({"trained with": trained} if trained else {}),
        "versions": f"spcp {__version__}, torch {torch.__version__}",
    }
