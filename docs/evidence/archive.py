"""The small files of docs/results: taking them over, reading them, and what all parts of the pages share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib

from spcp.config import config_for, rho_norm_for
from spcp.experiments import BUDGETS, EXPERIMENTS, Outcome, drawing, judged
from spcp.experiments.outcome import Cell
from spcp.experiments.records import FILE
from spcp.report.figures import as_svg, for_both_schemes

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
KEPT = DOCS / "results"
BUDGET = {"Digits": "small", "CIFAR-10": "cpu", "CIFAR-100": "cpu"}  # by setting, a column each
MAIN = {"Digits": "cifar10", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}  # the experiment with every method
TITLES = {
    "digits": "Digits",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "spoken-digits": "Spoken digits",
    "photos": "Photos",
    "embeddings": "Embeddings",
}
LEFT_OUT = {  # by budget: what has no column, or repeats the numbers of others
    "small": ("cifar100", "imagenet200", "hyperparameters"),
    "cpu": ("imagenet200", "hyperparameters"),
}
Kept = Mapping[str, Mapping[str, Outcome]]  # by setting and name


def take_over(folder: Path) -> None:
    """Keep the records of runs, the outcomes and their figures, and draw anew what can be drawn of the numbers."""
    matplotlib.rcParams["svg.hashsalt"] = "results"  # the same picture gives the same file
    for path in sorted((folder / "cpu/runs").rglob(FILE)):  # digits take seconds to train
        kept = KEPT / path.relative_to(folder)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
    for budget in LEFT_OUT:
        for path in sorted((folder / budget).glob("*/outcome.json")):
            outcome = Outcome.read(path.read_text())
            if outcome.name in LEFT_OUT[budget] or not _current(outcome) or "--only" in outcome.about["command"]:
                continue
            (KEPT / budget).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, KEPT / budget / f"{outcome.name}.json")
            for made in (path.parent / "figures").glob("*.svg"):  # not of weights that are gone
                (KEPT / budget / f"{outcome.name}-{made.name}").write_text(for_both_schemes(made.read_text()))
    for title, by_name in outcomes().items():
        for outcome in by_name.values():
            for kind in set(EXPERIMENTS[outcome.name].figures) & set(drawing.FROM_NUMBERS):
                figure, _ = drawing.FIGURES[kind](None, outcome)
                (KEPT / outcome.budget / f"{outcome.name}-{kind}.svg").write_text(for_both_schemes(as_svg(figure)))
        summary = summary_of(by_name)
        if summary:
            figure, _ = drawing.summary(*summary, title)
            picture_of(title).write_text(for_both_schemes(as_svg(figure)))


def picture_of(title: str) -> Path:
    """Return where the picture of a setting is: AUROC, set by set."""
    return KEPT / BUDGET[title] / f"summary{'-cifar100' if title == 'CIFAR-100' else ''}.svg"


def _current(outcome: Outcome) -> bool:
    """Tell whether an outcome is of the network that its budget has now."""
    facts = outcome.about
    settings = BUDGETS[outcome.budget].settings.get(facts["data"], {})
    return bool(config_for(facts["data"], **settings).network == facts["network"])


def outcomes() -> Kept:
    """Read the outcomes that are kept, by setting and name."""
    kept: dict[str, dict[str, Outcome]] = {title: {} for title in BUDGET}
    for budget, title in (("small", "Digits"), ("cpu", "CIFAR-10")):
        for name in EXPERIMENTS:
            path = KEPT / budget / f"{name}.json"
            if name not in LEFT_OUT[budget] and path.exists():
                outcome = judged(Outcome.read(path.read_text()))
                if _current(outcome):
                    kept["CIFAR-100" if name == "cifar100" else title][name] = outcome
    return kept


def summary_of(by_name: Mapping[str, Outcome]) -> tuple[Outcome, dict[str, str]] | None:
    """Return what the summary of a setting is taken from, with its rows and their names; None if there is nothing."""
    if "cifar100" in by_name:
        main = by_name["cifar100"]
        value, paper_value = main.about.get("rho_norm", 0.0), rho_norm_for("cifar100")
        also = ", and the paper's" if value == paper_value else ""
        arms = {"Energy": "plain", "SPCP": f"SPCP, rho_norm={value:g} ({how_taken(main)}{also})"}
        if not also:
            arms[f"SPCP rho_norm={paper_value:g}"] = f"SPCP, rho_norm={paper_value:g} (the paper's)"
        return (main, {row: name for row, name in arms.items() if row in main.rows}) if "Energy" in main.rows else None
    rho = by_name.get("ablation-rho")
    return (rho, _arms(rho)) if rho is not None and "rho_norm=0" in rho.rows else None


def _arms(rho: Outcome) -> dict[str, str]:
    """Name the rows of the summary: plain training, what the paper's rule chose, and the paper's for CIFAR-10."""
    chosen = f"rho_norm={rho.about['rho_norm']:g}" if "rho_norm" in rho.about else ""
    arms = {"rho_norm=0": "plain", chosen: f"SPCP, {chosen} ({how_taken(rho)})"}
    arms.setdefault("rho_norm=3", "SPCP, rho_norm=3 (the paper's for CIFAR-10)")
    return {row: name for row, name in arms.items() if row in rho.rows}


def how_taken(outcome: Outcome) -> str:
    """Say how rho_norm was taken: chosen, or the only value that there is."""
    return "chosen" if len(outcome.about.get("grid", ())) > 1 else "the only value trained so far"


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write a table in Markdown, and the empty line after it; nothing if it has no rows."""
    if rows:
        yield from (f"| {' | '.join(head)} |", "|" + "---|" * len(head))
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""


def cell_of(outcome: Outcome, row: str, column: str, metric: str) -> Cell:
    """Return one number, which has to be there."""
    cell = outcome.cell(row, column, metric)
    assert cell is not None, (outcome.name, row, column, metric)
    return cell


def mean_text(outcome: Outcome, row: str, column: str, metric: str = "AUROC", *, over: set[int]) -> str:
    """Write the mean over some seeds; nothing if a row lacks one of them."""
    by_seed = outcome.values.get(row, {}).get((column, metric), {})
    return f"{sum(by_seed[seed] for seed in over) / len(over):.1f}" if over and over <= by_seed.keys() else ""


def shared_seeds(outcome: Outcome, rows: Sequence[str] | None = None) -> set[int]:
    """Return the seeds that all rows have, or those of some rows that are there."""
    wanted = [row for row in outcome.learnt if rows is None or row in rows]
    return set.intersection(*(set(outcome.seeds(row)) for row in wanted)) if wanted else set()


def pictures_of(outcome: Outcome) -> dict[str, str]:
    """Return where the figures of an outcome are, by kind, as pages of docs/ name them."""
    paths = {kind: f"results/{outcome.budget}/{outcome.name}-{kind}.svg" for kind in EXPERIMENTS[outcome.name].figures}
    return {kind: path for kind, path in paths.items() if (DOCS / path).exists()}
