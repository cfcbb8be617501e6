"""The figures of experiments, and what they say in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..report import figures
from ..report.figures import FAR, KNOWN, NEAR, axes_of
from ..report.study import Study, gather
from .catalogue import label, rows_of
from .findings import gains_by_norm
from .lab import Lab
from .outcome import Outcome

Drawn = tuple[Any, str]  # a figure and its caption


def curves(lab: Lab | None, found: Outcome) -> Drawn:
    """AUROC over the values of each hyperparameter: near and far, mean and deviation over seeds."""
    points: dict[str, list[tuple[float, str]]] = {}
    for row in found.rows:
        match = re.fullmatch(r"(\w+)=([\d.e+-]+)", row)
        if match:
            points.setdefault(match[1], []).append((float(match[2]), row))
    with axes_of(1, len(points), 3.4 * len(points), 2.6, sharey=True) as (figure, axes):
        for axis, (name, own) in zip(axes[0], points.items(), strict=True):
            for group, colour, style in (("near", NEAR, "-"), ("far", FAR, "--")):
                cells = [found.cell(row, group, "AUROC") for _, row in own]
                means = [cell.mean if cell else np.nan for cell in cells]
                deviations = [cell.std if cell else np.nan for cell in cells]
                axis.errorbar(
                    range(len(own)),
                    means,
                    deviations,
                    fmt=style,
                    marker="o",
                    ms=3,
                    capsize=2,
                    color=colour,
                    label=group,
                )
            axis.set_xticks(range(len(own)), [f"{value:g}" for value, _ in own], fontsize=8)
            axis.set_xlabel(name)
        axes[0][0].set_ylabel("AUROC, %")
        axes[0][0].legend(frameon=False, fontsize=8)
    names = ", ".join(points)
    return figure, f"AUROC of energy over {names}: mean and deviation over {found.about['seeds']} seeds."


def patterns(lab: Lab | None, found: Outcome) -> Drawn:
    """Sorted mean contributions of plain and SPCP networks, first seed of each row."""
    study = _study(lab, found)
    return figures.sorted_matrices(study.arms), (
        "Mean contribution of each classifier weight on known test inputs, sorted within each class; seed 0."
    )


def scores(lab: Lab | None, found: Outcome) -> Drawn:
    """Distributions of energy on known and odd inputs, first seed of each row."""
    return figures.distributions(_study(lab, found), "energy"), (
        "How energy scores known and odd inputs; what lies left of the line is flagged; seed 0."
    )


def _study(lab: Lab | None, found: Outcome) -> Study:
    assert lab is not None
    rows = [row for row in rows_of(found.name, lab) if label(row) in found.rows]
    folders = dict.fromkeys(lab.run(row, 0) for row in rows)
    return gather(
        list(folders),
        detectors=["energy"],
        benchmark=lab.benchmark(rows[0].benchmark),
        banks=lab.folder / "banks",
    )


def norms(lab: Lab | None, found: Outcome) -> Drawn:
    """What the bounded view gains over the plain one, against how long the features of a set are."""
    with axes_of(1, 1, 4.2, 3.0) as (figure, axes):
        axis = axes[0][0]
        for kind, colour, marker in (("plain", NEAR, "o"), ("SPCP", KNOWN, "^")):
            if not all(f"{kind} network: {view} view" in found.rows for view in ("plain", "bounded")):
                continue
            x, y = gains_by_norm({own.row: _measures(found, own.row) for own in found.cells}, kind)
            axis.scatter(x, y, s=16, color=colour, marker=marker, label=f"{kind} network")
        axis.axhline(0, lw=0.5, color=figures.INK)
        axis.axvline(1, lw=0.5, color=figures.INK)
        axis.set_xscale("log")
        for ticks in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
            ticks(lambda value, _: f"{value:g}")
        axis.set_xlabel("length of odd features, known = 1")
        axis.set_ylabel("truncated less plain, AUROC")
        axis.legend(frameon=False, fontsize=8)
    return (
        figure,
        "Each dot is an odd set and a seed: what truncated energy gains over plain energy of the same network.",
    )


def _measures(found: Outcome, row: str) -> dict[tuple[str, str], list[float]]:
    return {(own.column, own.metric): list(own.by_seed) for own in found.cells if own.row == row}


FIGURES: Mapping[str, Callable[[Lab | None, Outcome], Drawn]] = {
    "curves": curves,
    "patterns": patterns,
    "scores": scores,
    "norms": norms,
}
