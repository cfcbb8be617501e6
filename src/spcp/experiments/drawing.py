"""The figures of experiments, with their captions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from ..report import figures
from ..report.figures import FAR, ID, NEAR, Drawn, axes_of
from ..report.study import Study, gather
from .catalogue import label, rows_of
from .findings import gains_by_norm
from .lab import Lab
from .outcome import Outcome


def curves(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw AUROC over the values of each hyperparameter: near and far, mean and deviation over seeds."""
    points: dict[str, list[tuple[float, str]]] = {}
    for row in outcome.rows:
        match = re.fullmatch(r"(\w+)=([\d.e+-]+)", row)
        if match:
            points.setdefault(match[1], []).append((float(match[2]), row))
    with axes_of(1, len(points), 3.4 * len(points), 2.6, sharey=True) as (figure, axes):
        for axis, (name, values) in zip(axes[0], points.items(), strict=True):
            for group, colour, style in (("near", NEAR, "-"), ("far", FAR, "--")):
                cells = [outcome.cell(row, group, "AUROC") for _, row in values]
                means = [cell.mean if cell else np.nan for cell in cells]
                deviations = [cell.std if cell else np.nan for cell in cells]
                look = {"fmt": style, "marker": "o", "ms": 3, "capsize": 2, "color": colour}
                axis.errorbar(range(len(values)), means, deviations, label=group, **look)
            axis.set_xticks(range(len(values)), [f"{value:g}" for value, _ in values], fontsize=8)
            axis.set_xlabel(name)
        axes[0][0].set_ylabel("AUROC, %")
        axes[0][0].legend(frameon=False, fontsize=8)
    names = ", ".join(points)
    return figure, f"AUROC of energy over {names}: mean and deviation over {outcome.about['seeds']} seeds."


def patterns(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw sorted mean contributions of plain and SPCP networks, first seed of each row."""
    drawn = figures.sorted_matrices(_study(lab, outcome).arms)
    assert drawn is not None
    return drawn


def scores(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw the distributions of energy on ID and OOD inputs, first seed of each row."""
    return figures.distributions(_study(lab, outcome), "energy")


def _study(lab: Lab | None, outcome: Outcome) -> Study:
    assert lab is not None
    rows = [row for row in rows_of(outcome.name, lab) if label(row) in outcome.rows]
    runs = {run.folder: run for run in (lab.run(row, 0) for row in rows)}
    return gather(
        list(runs.values()),
        scores=["energy"],
        benchmark=lab.benchmark(rows[0].benchmark),
        banks=lab.folder / "banks",
    )


def norms(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw the gain of the truncated view over the plain one, against the length of a set's features."""
    with axes_of(1, 1, 4.2, 3.0) as (figure, axes):
        axis = axes[0][0]
        for kind, colour, marker in (("plain", NEAR, "o"), ("SPCP", ID, "^")):
            if not all(f"{kind} network: {view} view" in outcome.rows for view in ("plain", "truncated")):
                continue
            x, y = gains_by_norm(outcome.values, kind)
            axis.scatter(x, y, s=16, color=colour, marker=marker, label=f"{kind} network")
        axis.axhline(0, lw=0.5, color=figures.INK)
        axis.axvline(1, lw=0.5, color=figures.INK)
        axis.set_xscale("log")
        for ticks in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
            ticks(lambda value, _: f"{value:g}")
        axis.set_xlabel("length of OOD features, ID = 1")
        axis.set_ylabel("truncated less plain, AUROC")
        axis.legend(frameon=False, fontsize=8)
    return (
        figure,
        "Each dot is an OOD set and a seed: the gain of truncated over plain energy of the same network.",
    )


FIGURES: Mapping[str, Callable[[Lab | None, Outcome], Drawn]] = {
    "curves": curves,
    "patterns": patterns,
    "scores": scores,
    "norms": norms,
}
