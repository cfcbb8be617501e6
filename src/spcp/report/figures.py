"""Figures, for print and for the page: each function makes a matplotlib figure and its caption.

Colours are those of Okabe and Ito, which the colour-blind tell apart; line styles differ as well.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contributions import effective_threshold
from ..errors import need
from ..files import written
from .study import Arm, EvaluatedRun, Study

ID, NEAR, FAR, OTHER = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
INK = "#010203"  # stands for the page's colour of text, see `inline`
STYLES = ("-", "--", "-.", ":")
NAMES = {"ID": "ID", "near": "near-OOD", "far": "far-OOD"}
ARM_COLOURS = (OTHER, ID, NEAR, FAR)

Drawn = tuple[Any, str]  # a figure and its caption


def draw(study: Study) -> dict[str, Drawn]:
    """Draw the figures of a report, by name."""
    drawn = {
        "scores": distributions(study, study.main_score),
        "roc": roc(study, study.main_score),
        "patterns": sorted_matrices(study.arms),
        "units": unit_contributions(study),
        "training": training_curves(study),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


@contextmanager
def axes_of(rows: int, columns: int, width: float, height: float, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Make axes without a window."""
    matplotlib = need("matplotlib", "matplotlib", "report")
    figure_module = need("matplotlib.figure", "matplotlib", "report")
    style = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "font.family": "sans-serif"}
    style |= {"axes.titlesize": 10, "figure.constrained_layout.use": True}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), INK)
    with matplotlib.rc_context(style):
        figure = figure_module.Figure(figsize=(width, height))
        axes = figure.subplots(rows, columns, squeeze=False, **options)
        yield figure, axes
        for axis in axes.flat:
            legend = axis.get_legend()
            for text in (axis.title, axis.xaxis.label, *(legend.get_texts() if legend else ())):
                text.set_parse_math(False)  # a dollar in a name is a dollar
        figure.draw_without_rendering()  # lays it out,
        figure.set_layout_engine("none")  # once


def sorted_matrices(arms: Sequence[Arm]) -> Drawn | None:
    """Draw the paper's figure 2: mean contributions on the ID test set, each class's sorted, for each arm's first run.

    None where there are no contributions.
    """
    patterns = [(arm.name, arm.runs[0].pattern()) for arm in arms if arm.runs[0].has_contributions]
    if not patterns:
        return None
    matrices = [pattern.contributions.sort(1, descending=True).values.numpy() for _, pattern in patterns]
    limit = max(float(np.quantile(np.abs(matrix), 0.999)) for matrix in matrices)
    with axes_of(1, len(patterns), 3.6 * len(patterns), 2.7, sharey=True) as (figure, axes):
        for axis, (name, pattern), matrix in zip(axes[0], patterns, matrices, strict=True):
            image = axis.imshow(matrix, aspect="auto", cmap="cividis", vmin=-limit, vmax=limit, interpolation="nearest")
            share = pattern.sparsity().top_1_percent
            axis.set_title(f"{name}\ntop 1 % of weights: {100 * share:.1f} %")
            axis.set_xlabel("weights of a class, largest first")
        axes[0][0].set_ylabel("class")
        figure.colorbar(image, ax=list(axes[0]), label="mean contribution")
    return (
        figure,
        "Mean contribution of each classifier weight on ID test inputs, sorted within each class; first seed.",
    )


def unit_contributions(study: Study) -> Drawn | None:
    """Draw the paper's figure 1: each unit's contribution to a class, for ID inputs of it and OOD inputs taken for it.

    The class and the OOD set are those that the reference confuses most. None where there are no contributions.
    """
    arms = list(dict.fromkeys(arm for arm in (study.reference, study.subject) if arm is not None))
    arms = [arm for arm in arms if arm.runs[0].has_contributions]
    if not arms:
        return None
    first = arms[0].runs[0]
    sets = [(group, name) for group, name in study.sets if name != "mean"]
    group, name = min(sets, key=lambda key: first.table.get(study.main_score, *key).auroc)
    k = int(first.evaluation.bank(f"{group}/{name}").predictions.mode().values)
    label = study.benchmark.class_names[k]
    with axes_of(1, len(arms), 3.6 * len(arms), 2.6, sharey=True) as (figure, axes):
        for axis, arm in zip(axes[0], arms, strict=True):
            id_mean = _class_contributions(arm.runs[0], "test", k, True)
            ood_mean = _class_contributions(arm.runs[0], f"{group}/{name}", k, False)
            if id_mean is None:
                continue
            order = id_mean.argsort(descending=True)
            x = np.arange(len(id_mean))
            axis.fill_between(x, 0, id_mean[order], color=ID, alpha=0.55, lw=0, label=f"ID: {label}")
            if ood_mean is not None:
                axis.plot(x, ood_mean[order], color=NEAR, lw=0.9, label=f"OOD: {name}, taken for {label}")
            axis.set_title(arm.name)
            axis.set_xlabel("units, in the order of the ID inputs")
        axes[0][0].set_ylabel("contribution")
        axes[0][0].legend(loc="upper right", frameon=False, fontsize=8)
    return figure, f"Contributions to the class {label}, which {arms[0].name} takes {name} for most often."


def _class_contributions(run: EvaluatedRun, role: str, k: int, labelled: bool) -> Tensor | None:
    """Average `min(W[k,d] h[d], threshold)` over samples of class k, or taken for it: (D,); None if there are none."""
    bank, head = run.evaluation.bank(role), run.evaluation.model.head
    chosen = (bank.labels if labelled else bank.predictions) == k
    if not chosen.any():
        return None
    c = bank.features[chosen] * head.weight[k].detach().cpu()
    threshold = effective_threshold(head)
    return (c if threshold is None else c.clamp(max=threshold.item())).mean(0)


def training_curves(study: Study) -> Drawn | None:
    """Draw the loss, the truncation threshold, and the share of contributions that it truncates, epoch by epoch.

    None without a history.
    """
    trained = [arm for arm in study.arms if arm.runs[0].history]
    truncating = [arm for arm in trained if "threshold" in arm.runs[0].history[0]]
    if not trained:
        return None
    panels = [("loss", "training loss", trained)]
    if truncating:
        panels += [
            ("threshold", "truncation threshold", truncating),
            ("truncated", "contributions truncated, %", truncating),
        ]
    with axes_of(1, len(panels), 3.0 * len(panels), 2.4) as (figure, axes):
        for axis, (key, label, arms) in zip(axes[0], panels, strict=True):
            for i, arm in enumerate(arms):
                colour = ARM_COLOURS[study.arms.index(arm) % 4]
                for j, run in enumerate(arm.runs):
                    values = [line[key] * (100 if key == "truncated" else 1) for line in run.history]
                    label_once = arm.name if j == 0 else None
                    axis.plot(range(1, len(values) + 1), values, STYLES[i % 4], color=colour, lw=1, label=label_once)
            smallest = min(line[key] for arm in arms for run in arm.runs for line in run.history)
            axis.set_yscale("log" if key != "truncated" and smallest > 0 else "linear")
            axis.set_xlabel("epoch")
            axis.set_title(label)
        axes[0][0].legend(loc="upper right", frameon=False, fontsize=8)
    return figure, "Training: the loss, the truncation threshold, and the share of contributions that it truncates."


def distributions(study: Study, score: str) -> Drawn:
    """Draw the scores of ID and OOD inputs for the first run of each arm, with the threshold of 5 %."""
    with axes_of(1, len(study.arms), 3.4 * len(study.arms), 2.5) as (figure, axes):
        for axis, arm in zip(axes[0], study.arms, strict=True):
            run = arm.runs[0]
            parts = pooled(run, score)
            together = np.concatenate(list(parts.values()))
            low, high = np.quantile(together, [0.002, 0.998])
            edges = np.linspace(low, high, 60)
            for name, scores in parts.items():
                colour = {"ID": ID, "near": NEAR, "far": FAR}[name]
                weights = np.full(len(scores), 100 / len(scores))
                axis.hist(
                    np.clip(scores, low, high), edges, weights=weights, color=colour, alpha=0.45, label=NAMES[name]
                )
            limit = run.score_threshold(score)
            if limit is not None:
                axis.axvline(limit, color=INK, lw=1, ls="--", label="5 % of ID below")
            axis.set_title(arm.name)
            axis.set_xlabel(f"{score} score")
        axes[0][0].set_ylabel("% of the set")
        axes[0][0].legend(frameon=False, fontsize=8)
    return figure, f"Scores of ID and OOD inputs by {score}; a detector flags what lies left of the line. First seed."


def roc(study: Study, score: str) -> Drawn:
    """Draw the detection rate over the false alarm rate, on near and far sets, for the first run of each arm."""
    with axes_of(1, len(study.groups), 3.2 * len(study.groups), 3.0, sharey=True) as (figure, axes):
        for axis, group in zip(axes[0], study.groups, strict=True):
            for i, arm in enumerate(study.arms):
                parts = pooled(arm.runs[0], score)
                sets = np.sort(parts["ID"]), np.sort(parts[group])
                at = np.unique(np.concatenate(sets))
                x, y = (100 * np.searchsorted(scores, at, "right") / len(scores) for scores in sets)
                axis.plot([0, *x], [0, *y], STYLES[i % 4], color=ARM_COLOURS[i % 4], lw=1.4, label=arm.name)
            axis.plot([0, 100], [0, 100], color=INK, lw=0.5, alpha=0.5)
            axis.set_title(NAMES[group])
            axis.set_xlabel("false alarm rate, %")
        axes[0][0].set_ylabel("detection rate, %")
        axes[0][0].legend(loc="lower right", frameon=False, fontsize=8)
    return figure, f"ROC of {score}: higher is better, the diagonal is guessing. First seed."


def pooled(run: EvaluatedRun, score: str) -> dict[str, np.ndarray]:
    """Return the scores of the ID test set, of all near sets and of all far sets."""
    parts: dict[str, list[Tensor]] = {}
    for (name, role), scores in run.table.scores.items():
        group = "ID" if role == "test" else role.split("/")[0]
        if name == score and group in NAMES:
            parts.setdefault(group, []).append(scores)
    return {group: torch.cat(parts[group]).double().numpy() for group in NAMES if group in parts}


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Save a figure as PNG, SVG and PDF, black on white."""
    files = []
    for kind in ("png", "svg", "pdf"):
        path = folder / f"{name}.{kind}"
        with written(path) as file:
            if kind == "svg":
                file.write(as_svg(figure).encode())
            else:
                figure.savefig(file, format=kind, dpi=200, facecolor="white")
        files.append(path)
    return files


def as_svg(figure: Any) -> str:
    """Return the figure as SVG, without a background; it is drawn once."""
    if not hasattr(figure, "drawn_svg"):
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        figure.drawn_svg = file.getvalue()
    return str(figure.drawn_svg)


def for_both_schemes(svg: str) -> str:
    """Let the text of a picture be dark on a light page and light on a dark one."""
    style = "<style>svg{color:#1a1a1a}@media(prefers-color-scheme:dark){svg{color:#e6e6e6}}</style>"
    head, tag, rest = svg.partition("<defs>")
    return (head + style + tag + rest).replace(INK, "currentColor")


def inline(figure: Any, label: str) -> str:
    """Return the figure as SVG to be put into a page, in its colour of text."""
    text = as_svg(figure)
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    ids = re.sub(r"\W", "", label)[:24]  # two figures on a page must not share names
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{ids}-", text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
