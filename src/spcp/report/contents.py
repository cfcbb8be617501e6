"""The contents of the report on some runs: what its templates and its script are filled with."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..environment import described, machine
from ..evaluation import ALPHA, LARGER_IS_BETTER, NAMES
from ..scores import DEFAULT
from .examples import SIDE, examples, surprise
from .study import Study, decisions, shipped
from .summary import summarize

SHOWN = ("energy", DEFAULT, "msp", "maxlogit", "react", "ash", "knn", "vim", "mds")  # can be chosen on the page
MOST = 20_000  # scores of a set on the page; of more, evenly spaced ones


def contents(study: Study) -> dict[str, Any]:
    """Return what both templates are filled with."""
    return {
        "study": study,
        "verdict": summarize(study),
        "decisions": decisions(study),
        "shipped": shipped(study),
        "tables": {measure: table(study, measure) for measure in ("detection_rate", "auroc", "fpr95")},
        "names": NAMES,
        "differences": [(arm, study.differences(arm)) for arm in study.arms if arm is not study.reference],
        "sparsity": sparsity_rows(study),
        "about": about(study),
        "choice": study.choice,
        "examples": examples(study),
        "surprise": surprise(study),
        "side": SIDE,
        "calibrated": _calibrated(study, study.main_score),
        "data": json.dumps(script_data(study), separators=(",", ":")).replace("<", "\\u003c"),
    }


def table(study: Study, measure: str) -> list[dict[str, Any]]:
    """Return rows of cells (mean, deviation, whether it is the column's best) for each score and arm."""
    rows: list[dict[str, Any]] = []
    for score in study.scores:
        for arm in study.arms:
            means = [arm.mean(score, group, name) for group, name in study.sets]
            if all(measure in mean for mean in means):  # there may be too little validation data for a threshold
                rows.append({"score": score, "arm": arm.name, "cells": [mean[measure] for mean in means]})
    best = max if measure in LARGER_IS_BETTER else min
    for i in range(len(study.sets) if rows else 0):
        top = best(round(row["cells"][i][0], 4) for row in rows)
        for row in rows:
            row["cells"][i] = (*row["cells"][i], round(row["cells"][i][0], 4) == top)
    return rows


def sparsity_rows(study: Study) -> list[dict[str, Any]]:
    """Return how few weights carry the mean contributions, for the first run of each arm."""
    rows = []
    for arm in study.arms:
        if arm.runs[0].has_contributions:
            pattern = arm.runs[0].pattern()
            truncated = float(pattern.truncated.mean())
            rows.append({"arm": arm.name, **dataclasses.asdict(pattern.sparsity()), "truncated": truncated})
    return rows


def about(study: Study) -> dict[str, str]:
    """Describe where the numbers come from."""
    config, benchmark = study.subject.runs[0].run.config, study.benchmark
    trained = f", {config.epochs} epochs" if config.epochs else ", trained elsewhere"
    sizes = ", ".join(
        f"{role.split('/')[-1]} {len(data)}" for role, data in benchmark.sets().items() if role != "train"
    )
    training = "" if benchmark.train is None else f"{len(benchmark.train)} for training; "
    network = config.network if config.width is None else f"{config.network} of width {config.width}"
    records = [record for arm in study.arms for run in arm.runs for record in run.run.environment]
    return {
        "data": f"{benchmark.name}: {len(benchmark.class_names)} classes, {training}{sizes}",
        "network": f"{network}{trained}, {config.precision}",
        "trained on": "; ".join(dict.fromkeys(map(described, records))) or "not recorded",
        "seeds": "; ".join(f"{arm.name}: {', '.join(map(str, arm.seeds))}" for arm in study.arms),
        "made": f"{datetime.date.today().isoformat()} by spcp {__version__}, torch {torch.__version__}, {machine()}",
    }


def script_data(study: Study) -> dict[str, Any]:
    """Return what the page's script draws: scores of the first run of each arm, in 32-bit floats."""
    shown = [name for name in SHOWN if name in study.scores] or list(study.scores)
    shown = [study.main_score, *(name for name in shown if name != study.main_score and _calibrated(study, name))][:8]
    roles = ["test", *(f"{group}/{name}" for group, name in study.sets if name != "mean")]
    arms = []
    for arm in study.arms:
        run = arm.runs[0]
        limits = {
            name: run.score_threshold(name)
            if _calibrated(study, name)
            else float(run.table.scores[name, "test"].quantile(ALPHA))
            for name in shown
        }
        scores = {name: [_packed(run.table.scores[name, role]) for role in roles] for name in shown}
        arms.append({"name": arm.name, "seed": run.seed, "thresholds": limits, "scores": scores})
    return {"scores": shown, "roles": roles, "arms": arms}


def _calibrated(study: Study, score: str) -> bool:
    """Tell whether there is a threshold from validation data."""
    return all(arm.runs[0].score_threshold(score) is not None for arm in study.arms)


def _packed(scores: torch.Tensor) -> str:
    """Encode scores: sorted, little-endian, in base 64."""
    values = np.sort(scores.float().numpy())
    if len(values) > MOST:
        values = values[np.linspace(0, len(values) - 1, MOST).round().astype(int)]
    return base64.b64encode(values.astype("<f4").tobytes()).decode()
