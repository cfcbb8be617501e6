"""The figures of experiments, with their captions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..evaluation import Evaluation, Table
from ..report import figures
from ..report.figures import FAR, ID, NEAR, Drawn, axes_of
from ..report.study import Arm, EvaluatedRun, Study, gather
from ..runs import Run
from .catalogue import label, rows_of
from .findings import AMOUNTS, PREDICTORS, SCALES, cases_of, curves_of, gains_by_length, gains_by_norm
from .lab import Lab, Row
from .measures import GROUPS
from .outcome import Cell, Outcome

ABOVE: Mapping[str, Any] = {"loc": "outside upper left", "ncols": 4, "frameon": False, "fontsize": 7}


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
                deviations = [_deviation(cell) for cell in cells]
                look = {"fmt": style, "marker": "o", "ms": 3, "capsize": 2, "color": colour}
                axis.errorbar(range(len(values)), means, deviations, label=group, **look)
            axis.set_xticks(range(len(values)), [f"{value:g}" for value, _ in values], fontsize=8)
            axis.set_xlabel(name)
        axes[0][0].set_ylabel("AUROC, %")
        axes[0][0].legend(frameon=False, fontsize=8)
    names = ", ".join(points)
    return figure, f"AUROC of energy over {names}: mean and, where there are several seeds, deviation."


def _deviation(cell: Cell | None) -> float:
    """Return the deviation over seeds; a single seed has none."""
    return cell.std if cell and len(cell.seeds) > 1 else np.nan


def patterns(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw sorted mean contributions before truncation, first seed of each row."""
    arms = []
    for row, run in _runs(lab, outcome):
        assert lab is not None
        evaluation = Evaluation(run, lab.benchmark(row.benchmark), truncate=False, folder=lab.folder / "banks")
        evaluated = EvaluatedRun(run, evaluation, Table((), {}), run.history)
        arms.append(Arm(label(row), (evaluated,), row.method != "plain"))
    drawn = figures.sorted_matrices(arms)
    assert drawn is not None
    return drawn


def example(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw what each unit contributes to one class, for ID inputs and for OOD inputs that are taken for it."""
    drawn = figures.unit_contributions(_study(lab, outcome))
    assert drawn is not None
    return drawn


def scores(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw the distributions of energy, scaled to [0, 1], near and far sets apart; first seed of each row."""
    study = _study(lab, outcome)
    colours = {"ID": ID, "near": NEAR, "far": FAR}
    with axes_of(len(study.arms), 2, 6.8, 2.1 * len(study.arms), sharex=True) as (figure, axes):
        for line, arm in zip(axes, study.arms, strict=True):
            parts = figures.pooled(arm.runs[0], "energy")
            for axis, group in zip(line, ("near", "far"), strict=True):
                shown = {"ID": parts["ID"], group: parts.get(group, np.empty(0))}
                low, high = np.quantile(np.concatenate(list(shown.values())), [0.001, 0.999])
                for name, values in shown.items():
                    scaled = np.clip((values - low) / (high - low), 0, 1)
                    weights = np.full(len(scaled), 100 / max(len(scaled), 1))
                    look = {"color": colours[name], "alpha": 0.5, "label": figures.NAMES[name]}
                    axis.hist(scaled, np.linspace(0, 1, 50), weights=weights, **look)
                axis.set_title(f"{arm.name}: {figures.NAMES[group]}")
            line[0].set_ylabel("% of the set")
        for axis in axes[-1]:
            axis.set_xlabel("energy, scaled to [0, 1]")
        for axis in axes[0]:
            axis.legend(frameon=False, fontsize=8)
    return figure, "Energy of ID inputs and of near-OOD and far-OOD inputs, scaled to [0, 1] in each panel. First seed."


def _runs(lab: Lab | None, outcome: Outcome) -> list[tuple[Row, Run]]:
    """Return the rows with the run of their first seed, each run once."""
    assert lab is not None
    rows = [row for row in rows_of(outcome.name, lab) if label(row) in outcome.rows]
    opened = [(row, lab.with_weights(row, lab.seeds_of(row)[0])) for row in rows]
    return list({run.folder: (row, run) for row, run in opened}.values())


def _study(lab: Lab | None, outcome: Outcome) -> Study:
    opened = _runs(lab, outcome)
    assert lab is not None
    return gather(
        [run for _, run in opened],
        scores=["energy"],
        benchmark=lab.benchmark(opened[0][0].benchmark),
        banks=lab.folder / "banks",
    )


def summary(outcome: Outcome, arms: Mapping[str, str], title: str) -> Drawn:
    """Draw AUROC set by set for some rows, named by `arms`: mean and deviation over seeds."""
    sets = sorted((name for name, metric in outcome.measures if metric == "AUROC"), key=lambda name: name in GROUPS)
    with axes_of(1, 1, 7.2, 2.8) as (figure, axes):
        axis = axes[0][0]
        for i, (row, name) in enumerate(arms.items()):
            cells = [outcome.cell(row, column, "AUROC") for column in sets]
            means, deviations = [cell.mean if cell else np.nan for cell in cells], [*map(_deviation, cells)]
            at = np.arange(len(sets)) + 0.16 * (i - (len(arms) - 1) / 2)
            look = {"fmt": "os^Dv"[i % 5], "ms": 4, "capsize": 2, "lw": 1, "color": figures.ARM_COLOURS[i % 4]}
            axis.errorbar(at, means, deviations, label=name, **look)
        axis.axhline(50, lw=0.5, color=figures.INK, ls=":")
        axis.set_xticks(range(len(sets)), [f"{name} (mean)" if name in GROUPS else name for name in sets], rotation=20)
        axis.set_ylabel("AUROC of energy, %")
        low = min(cell.mean for row in arms for name in sets if (cell := outcome.cell(row, name, "AUROC")))
        axis.set_ylim(48 if low > 50 else -2, 102)  # with chance, the dotted line, in sight
        axis.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(arms), title=title)
    return figure, f"AUROC of energy, set by set: mean and, where there are several seeds, deviation. {title}."


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
        _logarithmic(axis)
        axis.xaxis.set_minor_formatter(lambda value, _: f"{value:g}")
        axis.set_xlabel("length of OOD features, ID = 1")
        axis.set_ylabel("truncated less plain, AUROC")
        axis.legend(frameon=False, fontsize=8)
    return (
        figure,
        "Each dot is an OOD set and a seed: the gain of truncated over plain energy of the same network.",
    )


def _logarithmic(axis: Any) -> None:
    """Make the horizontal axis logarithmic, with plain numbers."""
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def scales(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw the gain over plain training against how much is truncated, on each scale; a line a kind of network."""
    found = curves_of(outcome.values)
    with axes_of(1, len(SCALES), 2.6 * len(SCALES), 2.9, sharey=True) as (figure, axes):
        for axis, scale in zip(axes[0], SCALES, strict=True):
            for i, (kind, curve) in enumerate(found.items()):
                order = np.argsort(curve.scales[scale])
                look = {"marker": "os^Dv"[i % 5], "ms": 3, "lw": 1, "color": figures.ARM_COLOURS[i % 4], "label": kind}
                axis.plot(
                    curve.scales[scale][order], curve.auroc[order] - curve.plain, ls=("-", "--")[i // 4 % 2], **look
                )
            axis.axhline(0, lw=0.5, color=figures.INK)
            if all(
                (curve.scales[scale] > 0).all() for curve in found.values()
            ):  # amounts differ by orders of magnitude
                _logarithmic(axis)
            axis.set_xlabel(scale.removeprefix("the "), fontsize=8)
        axes[0][0].set_ylabel("gain of AUROC")
        figure.legend(*axes[0][0].get_legend_handles_labels(), **ABOVE)
    return figure, "Gain of SPCP over plain training (AUROC, mean of near and far sets) against how much is truncated."


def prediction(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw the gain of SPCP against what the plain network tells before."""
    amount, cases = max(
        ((amount, [case for case in cases_of(outcome.values) if amount in case.gains]) for amount in AMOUNTS),
        key=lambda found: len(found[1]),
    )
    kinds = list(dict.fromkeys(case.kind for case in cases))
    with axes_of(1, len(PREDICTORS), 2.9 * len(PREDICTORS), 2.9, sharey=True) as (figure, axes):
        for axis, (name, (measure, bound)) in zip(axes[0], PREDICTORS.items(), strict=True):
            for i, kind in enumerate(kinds):
                known = [case for case in cases if case.kind == kind and name in case.told]
                x, y = [case.told[name] for case in known], [case.gains[amount] for case in known]
                axis.scatter(x, y, s=14, marker="os^Dv"[i % 5], color=figures.ARM_COLOURS[i % 4], label=kind)
            axis.axhline(0, lw=0.5, color=figures.INK)
            if bound is not None:
                axis.axvline(bound, lw=0.5, color=figures.INK)
            axis.set_xlabel(" ".join(measure), fontsize=8)
        axes[0][0].set_ylabel(f"gain of AUROC, rho_norm\n{AMOUNTS[amount]}", fontsize=8)
        figure.legend(*axes[0][0].get_legend_handles_labels(), **ABOVE)
    return figure, f"Each dot is a network and a seed: the gain of SPCP, rho_norm {AMOUNTS[amount]}, and what was told."


def lengths(lab: Lab | None, outcome: Outcome) -> Drawn:
    """Draw the gain over plain training of the same length, against the epochs."""
    styles = {"near": "-", "far": "--"}
    with axes_of(1, 1, 4.6, 3.0) as (figure, axes):
        axis = axes[0][0]
        found = gains_by_length(outcome.values)
        names = list(dict.fromkeys(name for name, _ in found))
        for (name, group), points in found.items():
            look = {"marker": "o", "ms": 3, "color": figures.ARM_COLOURS[names.index(name) % 4], "ls": styles[group]}
            epochs, gains = zip(*sorted(points), strict=True)
            deviations = [np.std(each) if len(each) > 1 else np.nan for each in gains]
            axis.errorbar(epochs, [*map(np.mean, gains)], deviations, capsize=2, label=f"{name}, {group}", **look)
        axis.axhline(0, lw=0.5, color=figures.INK)
        axis.set_xticks(sorted({epochs for points in found.values() for epochs, _ in points}))
        axis.set_xlabel("epochs")
        axis.set_ylabel("gain of AUROC")
        axis.legend(frameon=False, fontsize=8)
    return (
        figure,
        "Gain of SPCP over plain training of the same length (AUROC of energy): mean over the seeds that all lengths "
        "have, and their deviation.",
    )


FIGURES: Mapping[str, Callable[[Lab | None, Outcome], Drawn]] = {
    "curves": curves,
    "patterns": patterns,
    "example": example,
    "scores": scores,
    "norms": norms,
    "scales": scales,
    "prediction": prediction,
    "lengths": lengths,
}
FROM_NUMBERS = ("curves", "norms", "scales", "prediction", "lengths")  # those that need no runs
