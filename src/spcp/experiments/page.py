"""The outcome of an experiment as a page, Markdown, CSV, JSON and figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..report import page
from ..report.figures import Drawn
from .outcome import Cell, Gain, Outcome

GROUPS = {"near", "far", "ood", "id"}  # columns of the first table; the rest are single sets


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
        "tables": tables(outcome),
        "pictures": pictures,
        "gain": gain_text,
        "cell": brief_text if brief else cell_text,
        "heading": "#" * level,
    }


def tables(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the paper's columns as one table, then the single sets as another: titles, columns and lines of cells."""
    measures = outcome.measures
    sets = ("AUROC", "norm ratio")  # that the second table shows
    chosen = {
        "Groups": [(name, metric) for name, metric in measures if name in GROUPS or metric not in (*sets, "FPR95")],
        "By set": [(name, metric) for name, metric in measures if name not in GROUPS and metric in sets],
    }
    return [
        {
            "title": title,
            "columns": [" ".join(measure) for measure in columns],
            "lines": [(row, [outcome.cell(row, *measure) for measure in columns]) for row in outcome.rows],
        }
        for title, columns in chosen.items()
        if columns
    ]


def about(outcome: Outcome) -> str:
    """Describe in a paragraph where the numbers come from."""
    facts = outcome.about
    network = f"{facts['network']} of width {facts['width']}" if "width" in facts else facts["network"]
    key = "training loss of the plain network"
    loss = f", {key} {facts[key]:.3f}" if key in facts else ""
    rho_norm = f", rho_norm {facts['rho_norm']:g}" if "rho_norm" in facts else ""
    precision = f", {facts['precision']}" if "precision" in facts else ""
    return (
        f"`{facts['command']}`: {facts['data']}, {facts['images']} training samples, {network}, {facts['epochs']} "
        f"epochs{loss}{rho_norm}; {facts['seeds']} seeds; {facts['machine']}{precision}; {facts['date']}; "
        f"{facts['versions']}."
    )


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
    digits = 2 if abs(cell.mean) >= 1 else 3
    paper = "" if cell.paper is None else f" ({cell.paper[0]:.2f})"
    spread = f"{cell.std:.{digits}f}" if len(cell.by_seed) > 1 else "-"
    return f"{cell.mean:.{digits}f} ±{spread}{paper}"


def gain_text(gain: Gain) -> str:
    """Write a difference between two rows, with its interval, and the paper's."""
    digits = 1 if gain.metric in ("AUROC", "FPR95", "ACC") else 3
    mean, interval = gain.difference.mean, gain.difference.interval
    shown = "one seed" if interval is None else f"{interval[0]:+.{digits}f} to {interval[1]:+.{digits}f}"
    paper = "" if gain.paper is None else f"; paper {gain.paper:+.{digits}f}"
    return f"{gain.column} {gain.metric} over {gain.other}: {mean:+.{digits}f} ({shown}{paper})"
