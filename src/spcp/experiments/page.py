"""The outcome of an experiment as a page, Markdown, CSV, JSON and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..report import page
from ..report.figures import Drawn
from .findings import count_seeds
from .measures import GROUPS, Measure
from .outcome import POINTS, Cell, Gain, Outcome

FIRST = ("AUROC", "FPR95", "ACC")  # metrics of which the first table shows the groups, and others the single sets


def write(outcome: Outcome, figures: Mapping[str, Drawn], folder: Path) -> Path:
    """Write all forms, and return the page."""
    files = {"outcome.json": outcome.json(), "results.csv": outcome.csv()}
    pictures = {name: f"figures/{name}.svg" for name in figures}
    return page.write(folder, "experiment", context(outcome, pictures), figures, files)


def context(outcome: Outcome, pictures: Mapping[str, str], *, level: int = 1, brief: bool = False) -> dict[str, Any]:
    """Return what the templates are filled with; `level` is that of the heading, `brief` leaves out intervals."""
    return {
        "outcome": outcome,
        "title": outcome.title,
        "about": about(outcome),
        "tables": tables(outcome, brief=brief),
        "pictures": pictures,
        "gain": gain_text,
        "heading": "#" * level,
    }


def tables(outcome: Outcome, *, brief: bool = False) -> list[dict[str, Any]]:
    """Return the paper's columns as one table, then the single sets: titles, columns and lines of text.

    The paper's numbers stand in brackets where the benchmark is the same, and else in columns of their own.
    """
    write_cell = brief_text if brief else cell_text
    titled = {"Groups": main_measures(outcome)}
    titled |= {
        f"{metric} by set": [(name, kind) for name, kind in outcome.measures if name not in GROUPS and kind == metric]
        for metric in (*FIRST, "norm ratio")
    }
    return [
        {
            "title": title,
            "columns": [heading for heading, _ in columns],
            "lines": [
                (row_text(outcome, row), [texts[i] for _, texts in columns]) for i, row in enumerate(outcome.learnt)
            ],
        }
        for title, measures in titled.items()
        if measures
        for columns in [_columns(outcome, measures, write_cell)]
    ]


def main_measures(outcome: Outcome) -> list[Measure]:
    """List the columns of the paper's table: groups, and what is no measure of single sets."""
    shown = [(name, metric) for name, metric in outcome.measures if name in GROUPS or metric not in FIRST]
    return [(name, metric) for name, metric in shown if metric != "norm ratio"]


def _columns(
    outcome: Outcome, measures: Sequence[Measure], write_cell: Callable[[Cell | None], str]
) -> list[tuple[str, list[str]]]:
    """List the columns of a table: a heading, and what stands in each row."""
    columns = []
    for measure in measures:
        cells = [outcome.cell(row, *measure) for row in outcome.learnt]
        columns.append((" ".join(measure), [write_cell(cell) for cell in cells]))
        if any(cell.elsewhere for cell in cells if cell):
            heading = f"{' '.join(measure)}, the paper's on {outcome.about['paper']}"
            columns.append((heading, [_elsewhere(cell) for cell in cells]))
    return columns


def _elsewhere(cell: Cell | None) -> str:
    return "" if cell is None or cell.elsewhere is None else f"{cell.elsewhere[0]:.2f}"


def row_text(outcome: Outcome, row: str) -> str:
    """Name a row, and say how many seeds it has if that is fewer than others have."""
    count, most = len(outcome.seeds(row)), max(len(cell.seeds) for cell in outcome.cells)
    return row if count == most else f"{row} ({count} of {most} seeds)"


def records(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the paper's table, method by column: ours, its deviation over seeds, and the paper's."""
    lines = []
    for row in outcome.learnt:
        line: dict[str, Any] = {"row": row, "seeds": len(outcome.seeds(row))}
        for measure in main_measures(outcome):
            cell, name = outcome.cell(row, *measure), " ".join(measure)
            line |= {name: cell and cell.mean, f"{name} std": cell and cell.std}
            line[f"{name} paper"] = cell.paper[0] if cell and cell.paper else None
        lines.append(line)
    return lines


def for_people(line: Mapping[str, Any]) -> dict[str, Any]:
    """Write a line of `records` for a terminal: our number with its deviation, and the paper's below it."""
    names = [key.removesuffix(" std") for key in line if key.endswith(" std")]
    written = {}
    for name in names:
        mean, deviation, theirs = (line[name + suffix] for suffix in ("", " std", " paper"))
        ours = "" if mean is None else number_text(mean, deviation if line["seeds"] > 1 else None)
        written[name] = ours + ("" if theirs is None else f"\npaper {theirs:.2f}")
    return {"row": line["row"], "seeds": line["seeds"]} | written


def how_chosen(facts: Mapping[str, Any]) -> str:
    """Say how rho_norm came about, given what is known of an outcome.

    >>> how_chosen({"grid": [0.5, 1, 3], "chosen on seeds": 1}), how_chosen({"grid": [3]})
    ('chosen on validation data of one seed among 0.5, 1, 3', 'the only value trained so far')
    """
    if len(facts["grid"]) == 1:
        return "the only value trained so far"
    seeds = facts.get("chosen on seeds")
    of = "" if seeds is None else f" of {count_seeds(seeds)}"
    return f"chosen on validation data{of} among {', '.join(f'{value:g}' for value in facts['grid'])}"


def about(outcome: Outcome) -> str:
    """Describe in a paragraph where the numbers come from."""
    facts = outcome.about
    network = f"{facts['network']} of width {facts['width']}" if "width" in facts else facts["network"]
    key = "training loss of the plain network"
    loss = f", {key} {facts[key]:.3f}" if key in facts else ""
    rho_norm = f", rho_norm {facts['rho_norm']:g}" if "rho_norm" in facts else ""
    if "grid" in facts:
        rho_norm += f", {how_chosen(facts)}"
    precision = f", {facts['precision']}" if "precision" in facts else ""
    return (
        f"`{facts['command']}`: {facts['data']}, {facts['images']} training samples, {network}, {facts['epochs']} "
        f"epochs{loss}{rho_norm}; {facts['seeds']} seed{'s' if facts['seeds'] > 1 else ''}; "
        f"{facts['machine']}{precision}; {facts['date']}; {facts['versions']}."
        + "".join(f" {text}" for text in lacking(outcome))
    )


def lacking(outcome: Outcome) -> list[str]:
    """Say which rows are missing, and which are not reported."""
    missing = [outcome.about["missing"]] if "missing" in outcome.about else []
    if not outcome.unlearnt:
        return missing
    listed = ", ".join(f"{row} {accuracy:.1f} %" for row, accuracy in outcome.unlearnt.items())
    return [*missing, f"Not reported, because more than {POINTS:g} points of accuracy are missing: {listed}."]


def cell_text(cell: Cell | None) -> str:
    """Write our number, and in brackets the paper's with the difference and its interval."""
    if cell is None or cell.paper is None:
        return brief_text(cell)
    interval = "" if cell.interval is None else ", {:+.1f} to {:+.1f}".format(*cell.interval)
    return f"{brief_text(cell)[:-1]}: {cell.difference:+.1f}{interval})"


def brief_text(cell: Cell | None) -> str:
    """Write our number, and the paper's in brackets."""
    if cell is None:
        return ""
    paper = "" if cell.paper is None else f" ({cell.paper[0]:.2f})"
    return number_text(cell.mean, cell.std if len(cell.seeds) > 1 else None) + paper


def number_text(mean: float, deviation: float | None, digits: int | None = None) -> str:
    """Write a mean with its deviation over seeds; a single seed has none.

    >>> number_text(91.5, 0.25), number_text(0.1234, None)
    ('91.50 ±0.25', '0.123')
    """
    digits = digits or (2 if abs(mean) >= 1 else 3)
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ±{deviation:.{digits}f}")


def gain_text(gain: Gain) -> str:
    """Write a difference between two rows, with its interval and its verdict, and the paper's."""
    digits = 1 if gain.metric in (*FIRST, "tail overlap") else 3
    mean, interval = gain.difference.mean, gain.difference.interval
    shown = "one seed" if interval is None else f"{interval[0]:+.{digits}f} to {interval[1]:+.{digits}f}"
    paper = "" if gain.paper is None else f"; paper {gain.paper:+.{digits}f}"
    return (
        f"{gain.difference.verdict.value}: {gain.row} over {gain.other}, {gain.column} {gain.metric} "
        f"{mean:+.{digits}f} ({shown}{paper})"
    )
