"""What came out, for people: one HTML file, Markdown, CSV, JSON, and the figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..evaluation import CONVENTION
from ..files import written
from ..report import figures
from ..report.page import asset, template
from .outcome import MOST, Cell, Gain, Outcome


def write(found: Outcome, drawn: Mapping[str, tuple[Any, str]], folder: Path) -> Path:
    """All forms, and return the page."""
    for name, (figure, _) in drawn.items():
        figures.save(figure, folder / "figures", name)
    told = {
        "found": found,
        "tables": tables(found),
        "drawn": drawn,
        "inline": figures.inline,
        "gain": gain_words,
        "cell": cell_words,
        "convention": CONVENTION,
    }
    texts = {
        "outcome.json": found.json(),
        "results.csv": found.csv(),
        "report.md": markdown(found, {name: f"figures/{name}.svg" for name in drawn}),
        "report.html": template("reproduced.html.jinja").render(**told, style=asset("page.css")),
    }
    for name, text in texts.items():
        with written(folder / name) as file:
            file.write(text.encode())
    return folder / "report.html"


def tables(found: Outcome) -> list[dict[str, Any]]:
    """First what the paper's tables have, then the single sets; lines of cells, None where there is none."""
    made = []
    for title, chosen in (
        ("", [own for own in found.measures if own[0] in MOST or own[1] not in ("AUROC", "FPR95", "norm ratio")]),
        ("By set", [own for own in found.measures if own[0] not in MOST and own[1] in ("AUROC", "norm ratio")]),
    ):
        if chosen:
            lines = [(row, [found.cell(row, *own) for own in chosen]) for row in found.rows]
            made.append(
                {"title": title, "columns": [f"{column} {metric}" for column, metric in chosen], "lines": lines}
            )
    return made


def markdown(found: Outcome, pictures: Mapping[str, str]) -> str:
    """Claims, tables and where the numbers come from."""
    lines = [f"# {found.title}", "", about(found), ""]
    if found.verdicts:
        lines += ["| claim | here | numbers |", "|---|---|---|"]
        for own in found.verdicts:
            numbers = "<br>".join(gain_words(gain) for gain in own.gains)
            lines.append(f"| {own.says} | **{own.word}** | {numbers} |")
        lines.append("")
    lines += [f"- {own}" for own in found.findings] + ([""] if found.findings else [])
    for table in tables(found):
        if table["title"]:
            lines += [f"## {table['title']}", ""]
        lines.append("| " + " | ".join(["", *table["columns"]]) + " |")
        lines.append("|---|" + "---:|" * len(table["columns"]))
        for row, cells in table["lines"]:
            lines.append("| " + " | ".join([row, *(cell_words(own) for own in cells)]) + " |")
        lines.append("")
    if any("FPR95" in own for own in found.measures):
        lines += [CONVENTION, ""]
    return "\n".join(lines + [f"![{name}]({path})\n" for name, path in pictures.items()])


def about(found: Outcome) -> str:
    """Where the numbers come from, in a paragraph."""
    own = found.about
    network = f"{own['network']} of width {own['width']}" if "width" in own else own["network"]
    key = "training loss of the plain network"
    loss = f", {key} {own[key]:.3f}" if key in own else ""
    cut = f", rho_norm {own['rho_norm']:g}" if "rho_norm" in own else ""
    precision = f", {own['precision']}" if "precision" in own else ""  # older files do not say
    return (
        f"`{own['command']}`: {own['data']}, {own['images']} training samples, {network}, {own['epochs']} epochs{loss}"
        f"{cut}; {own['seeds']} seeds; {own['machine']}{precision}; {own['date']}; {own['versions']}."
    )


def cell_words(own: Cell | None, brief: bool = False) -> str:
    """Ours, and the paper's in brackets with the difference and its interval; `brief` leaves those out."""
    if own is None:
        return ""
    digits = 2 if abs(own.mean) >= 1 else 3
    text = f"{own.mean:.{digits}f} ±{own.std:.{digits}f}"
    if own.paper is None or own.difference is None:
        return text
    if brief:
        return f"{text} ({own.paper[0]:.2f})"
    points, low, high = own.difference
    interval = "" if low is None or high is None else f", {low:+.1f} to {high:+.1f}"
    return f"{text} ({own.paper[0]:.2f}: {points:+.1f}{interval})"


def gain_words(own: Gain) -> str:
    """A difference between two rows, with its interval, and the paper's."""
    digits = 1 if own.metric in ("AUROC", "FPR95", "ACC") else 3
    interval = "one seed"
    if own.interval is not None:
        interval = f"{own.interval[0]:+.{digits}f} to {own.interval[1]:+.{digits}f}"
    paper = "" if own.paper is None else f"; paper {own.paper:+.{digits}f}"
    return f"{own.column} {own.metric} over {own.other}: {own.points:+.{digits}f} ({interval}{paper})"
