"""Figures, for print and for the page: each is a function from numbers to a matplotlib figure.

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

from ..atomic import written
from ..errors import need
from .study import Arm, Run, Study, has_head, pattern, threshold

KNOWN, NEAR, FAR, OTHER = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
INK = "#010203"  # stands for the page's own colour of text, see `inline`
STYLES = ("-", "--", "-.", ":")


@contextmanager
def axes_of(rows: int, columns: int, width: float, height: float, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Axes without a window, closed afterwards by being forgotten."""
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


def sorted_matrices(arms: Sequence[Arm]) -> Any:
    """The paper's figure 2: mean contributions on the ID test set, each class's sorted, for each arm's first run."""
    found = [(arm.name, pattern(arm.runs[0])) for arm in arms if has_head(arm.runs[0])]
    rows = [own.contributions.sort(1, descending=True).values.numpy() for _, own in found]
    limit = max(float(np.quantile(np.abs(own), 0.999)) for own in rows)
    with axes_of(1, len(found), 3.6 * len(found), 2.7, sharey=True) as (figure, axes):
        for axis, (name, own), matrix in zip(axes[0], found, rows, strict=True):
            image = axis.imshow(matrix, aspect="auto", cmap="cividis", vmin=-limit, vmax=limit, interpolation="nearest")
            share = own.sparsity().top_1_percent
            axis.set_title(f"{name}\ntop 1 % of weights: {100 * share:.0f} %")
            axis.set_xlabel("weights of a class, largest first")
        axes[0][0].set_ylabel("class")
        figure.colorbar(image, ax=list(axes[0]), label="mean contribution")
    return figure


def unit_contributions(study: Study) -> tuple[Any, str] | None:
    """The paper's figure 1: each unit's contribution to one class, for known inputs of it and odd ones taken for it.

    The class and the odd set are those that the reference confuses most. None where there are no contributions.
    """
    arms = [arm for arm in (study.reference, study.subject) if arm is not None]
    arms = [arm for i, arm in enumerate(arms) if arm not in arms[:i] and has_head(arm.runs[0])]
    if not arms:
        return None
    first = arms[0].runs[0]
    sets = [(group, name) for group, name in study.sets if name != "mean"]
    group, name = min(sets, key=lambda own: first.table.get(study.main, *own)["auroc"])
    odd = first.evaluation.features(f"{group}/{name}")
    k = int(odd.k.mode().values)
    label = study.benchmark.class_names[k]
    with axes_of(1, len(arms), 3.6 * len(arms), 2.6, sharey=True) as (figure, axes):
        for axis, arm in zip(axes[0], arms, strict=True):
            own = arm.runs[0]
            known = _class_contributions(own, "test", k, True)
            taken = _class_contributions(own, f"{group}/{name}", k, False)
            if known is None:
                continue
            order = known.argsort(descending=True)
            x = np.arange(len(known))
            axis.fill_between(x, 0, known[order], color=KNOWN, alpha=0.55, lw=0, label=f"known: {label}")
            if taken is not None:
                axis.plot(x, taken[order], color=NEAR, lw=0.9, label=f"odd: {name}, taken for {label}")
            axis.set_title(arm.name)
            axis.set_xlabel("units, in the order of the known inputs")
        axes[0][0].set_ylabel("contribution")
        axes[0][0].legend(frameon=False, fontsize=8)
    return figure, f"Contributions to the class {label}, which {arms[0].name} takes {name} for most often."


def _class_contributions(run: Run, role: str, k: int, labelled: bool) -> Tensor | None:
    """Mean of `min(W[k,d] h[d], threshold)` over samples of class k, or taken for it, (D,); None if there are none."""
    from ..contributions import effective_threshold

    own = run.evaluation
    features = own.features(role)
    chosen = (features.y == k) if labelled else (features.k == k)
    if not chosen.any():
        return None
    c = features.h[chosen].float() * own.head.weight[k].detach().cpu()
    bound = effective_threshold(own.head)
    return (c if bound is None else c.clamp(max=bound.item())).mean(0)


def training_curves(study: Study) -> Any | None:
    """The threshold and the share of contributions that it cuts, epoch by epoch, and the loss; None without a log."""
    bounded = [arm for arm in study.arms if arm.runs[0].log and "threshold" in arm.runs[0].log[0]]
    logged = [arm for arm in study.arms if arm.runs[0].log]
    if not logged:
        return None
    panels = [("loss", "training loss", logged)]
    if bounded:
        panels += [("threshold", "threshold", bounded), ("cut", "contributions cut, %", bounded)]
    with axes_of(1, len(panels), 3.0 * len(panels), 2.4) as (figure, axes):
        for axis, (key, label, arms) in zip(axes[0], panels, strict=True):
            for i, arm in enumerate(arms):
                colour = (OTHER, KNOWN, NEAR, FAR)[(study.arms.index(arm)) % 4]
                for j, run in enumerate(arm.runs):
                    values = [line[key] * (100 if key == "cut" else 1) for line in run.log]
                    label_once = arm.name if j == 0 else None
                    axis.plot(range(1, len(values) + 1), values, STYLES[i % 4], color=colour, lw=1, label=label_once)
            smallest = min(line[key] for arm in arms for run in arm.runs for line in run.log)
            axis.set_yscale("log" if key != "cut" and smallest > 0 else "linear")
            axis.set_xlabel("epoch")
            axis.set_title(label)
        axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def distributions(study: Study, detector: str) -> Any:
    """Scores of known and odd inputs for the first run of each arm, with the threshold of 5 %."""
    with axes_of(1, len(study.arms), 3.4 * len(study.arms), 2.5) as (figure, axes):
        for axis, arm in zip(axes[0], study.arms, strict=True):
            run = arm.runs[0]
            parts = pooled(run, detector)
            together = np.concatenate(list(parts.values()))
            low, high = np.quantile(together, [0.002, 0.998])
            edges = np.linspace(low, high, 60)
            for name, scores in parts.items():
                colour = {"known": KNOWN, "near": NEAR, "far": FAR}[name]
                weights = np.full(len(scores), 100 / len(scores))
                axis.hist(np.clip(scores, low, high), edges, weights=weights, color=colour, alpha=0.45, label=name)
            limit = threshold(run, detector)
            if limit is not None:
                axis.axvline(limit, color=INK, lw=1, ls="--", label="5 % of known below")
            axis.set_title(arm.name)
            axis.set_xlabel(f"{detector} score")
        axes[0][0].set_ylabel("% of the set")
        axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def roc(study: Study, detector: str) -> Any:
    """How many odd inputs are caught against how many known ones are flagged, near and far, for the first runs."""
    groups = [group for group in ("near", "far") if any(own == group for own, _ in study.sets)]
    with axes_of(1, len(groups), 3.2 * len(groups), 3.0, sharey=True) as (figure, axes):
        for axis, group in zip(axes[0], groups, strict=True):
            for i, arm in enumerate(study.arms):
                parts = pooled(arm.runs[0], detector)
                known, odd = np.sort(parts["known"]), np.sort(parts[group])
                at = np.unique(np.concatenate([known, odd]))
                x, y = (100 * np.searchsorted(own, at, "right") / len(own) for own in (known, odd))
                colour = (OTHER, KNOWN, NEAR, FAR)[i % 4]
                axis.plot([0, *x], [0, *y], STYLES[i % 4], color=colour, lw=1.4, label=arm.name)
            axis.plot([0, 100], [0, 100], color=INK, lw=0.5, alpha=0.5)
            axis.set_title(f"{group} sets")
            axis.set_xlabel("known inputs flagged, %")
        axes[0][0].set_ylabel("odd inputs caught, %")
        axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def pooled(run: Run, detector: str) -> dict[str, np.ndarray]:
    """Scores of the test set, of all near sets and of all far sets."""
    parts: dict[str, list[Tensor]] = {}
    for (name, role), scores in run.table.scores.items():
        group = "known" if role == "test" else role.split("/")[0]
        if name == detector and group in ("known", "near", "far"):
            parts.setdefault(group, []).append(scores)
    return {group: torch.cat(parts[group]).double().numpy() for group in ("known", "near", "far") if group in parts}


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """As PNG, SVG and PDF, black on white."""
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
    """The figure as SVG, without a background; drawn once."""
    if not hasattr(figure, "drawn_svg"):
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        figure.drawn_svg = file.getvalue()
    return str(figure.drawn_svg)


def inline(figure: Any, label: str) -> str:
    """As SVG to be put into a page, in its colour of text."""
    text = as_svg(figure)
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    ids = re.sub(r"\W", "", label)[:24]  # two figures on a page must not share names
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{ids}-", text)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
