"""The report as one HTML file without anything from outside, and as Markdown."""

from __future__ import annotations

import base64
import datetime
import json
from importlib import resources
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..environment import described, machine
from ..errors import need
from ..evaluation import CONVENTION, NAMES
from ..training import read_environment
from . import figures
from .examples import SIDE, examples, surprise
from .study import ALPHA, Study, has_head, pattern, threshold
from .words import verdict

SHOWN = ("energy", "msp", "maxlogit", "react", "ash", "knn", "vim", "mds")  # can be chosen on the page
MOST = 20_000  # scores of a set on the page; of more, evenly spaced ones


def context(study: Study, drawn: dict[str, tuple[Any, str]]) -> dict[str, Any]:
    """What both templates are filled with."""
    return {
        "study": study,
        "verdict": verdict(study),
        "drawn": drawn,
        "inline": figures.inline,
        "tables": {measure: table(study, measure) for measure in ("auroc", "fpr95")},
        "names": NAMES,
        "convention": CONVENTION,
        "differences": [(arm, study.differences(arm)) for arm in study.arms if arm is not study.reference],
        "sparsity": sparsity_rows(study),
        "about": about(study),
        "choice": study.choice,
    }


def html(study: Study, told: dict[str, Any]) -> str:
    """The page."""
    more = {
        "examples": examples(study),
        "surprise": surprise(study),
        "side": SIDE,
        "calibrated": calibrated(study, study.main),
        "data": json.dumps(data(study), separators=(",", ":")).replace("<", "\\u003c"),
        "style": asset("page.css"),
        "script": asset("page.js"),
    }
    return str(template("page.html.jinja").render(**told, **more))


def markdown(told: dict[str, Any]) -> str:
    """The same for reading in an editor or on a forge."""
    return str(template("page.md.jinja").render(**told))


def asset(name: str) -> str:
    """A file beside this one."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def template(name: str) -> Any:
    """One of the templates beside this file."""
    jinja = need("jinja2", "jinja2", "report")
    loader = jinja.FunctionLoader(asset)
    page = "html" in name
    environment = jinja.Environment(
        loader=loader,
        autoescape=page,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja.StrictUndefined,
        finalize=None if page else _plain_markdown,
    )
    return environment.get_template(name)


def _plain_markdown(value: Any) -> Any:
    """Names must not become tables or HTML."""
    return value.replace("|", "\\|").replace("<", "&lt;") if isinstance(value, str) else value


def table(study: Study, measure: str) -> list[dict[str, Any]]:
    """Rows of cells (mean, deviation, whether it is the column's best) for each detector and arm."""
    rows: list[dict[str, Any]] = []
    for detector in study.detectors:
        for arm in study.arms:
            cells = [arm.mean(detector, group, name)[measure] for group, name in study.sets]
            rows.append({"detector": detector, "arm": arm.name, "cells": cells})
    best = max if "au" in measure else min
    for i in range(len(study.sets)):
        top = best(round(row["cells"][i][0], 2) for row in rows)
        for row in rows:
            row["cells"][i] = (*row["cells"][i], round(row["cells"][i][0], 2) == top)
    return rows


def sparsity_rows(study: Study) -> list[dict[str, Any]]:
    """How few weights carry the mean contributions, arm by arm (first run)."""
    rows = []
    for arm in study.arms:
        if has_head(arm.runs[0]):
            own = pattern(arm.runs[0])
            found = own.sparsity()
            rows.append(
                {
                    "arm": arm.name,
                    "top_1_percent": 100 * found.top_1_percent,
                    "top_10_percent": 100 * found.top_10_percent,
                    "participation_ratio": found.participation_ratio,
                    "gini": found.gini,
                    "cut_percent": 100 * float(own.truncated.mean()),
                }
            )
    return rows


def about(study: Study) -> dict[str, str]:
    """Where the numbers come from."""
    config = study.subject.runs[0].config
    trained = f", {config.epochs} epochs" if config.epochs else ", trained elsewhere"
    sets = study.benchmark.sets()
    sizes = ", ".join(f"{role.split('/')[-1]} {len(own)}" for role, own in sets.items() if role != "train")
    known = "" if study.benchmark.train is None else f"{len(study.benchmark.train)} for training; "
    network = config.network if config.width is None else f"{config.network} of width {config.width}"
    return {
        "data": f"{study.benchmark.name}: {len(study.benchmark.class_names)} classes, {known}{sizes}",
        "network": f"{network}{trained}, {config.precision}",
        "trained on": "; ".join(_trained_on(study)) or "not recorded",
        "seeds": "; ".join(f"{arm.name}: {', '.join(map(str, arm.seeds))}" for arm in study.arms),
        "made": f"{datetime.date.today().isoformat()} by spcp {__version__}, torch {torch.__version__}, {machine()}",
    }


def _trained_on(study: Study) -> list[str]:
    """The machines that the runs were trained on, each once."""
    records = [record for arm in study.arms for run in arm.runs for record in read_environment(run.folder)]
    return list(dict.fromkeys(described(record) for record in records))


def data(study: Study) -> dict[str, Any]:
    """What the page's script draws: scores of the first run of each arm, in 32-bit floats."""
    shown = [name for name in SHOWN if name in study.detectors] or list(study.detectors)
    shown = [study.main, *(name for name in shown if name != study.main and calibrated(study, name))][:8]
    roles = ["test", *(f"{group}/{name}" for group, name in study.sets if name != "mean")]
    arms = []
    for arm in study.arms:
        run = arm.runs[0]
        limits = {}
        for name in shown:
            known = run.table.scores[name, "test"]
            limits[name] = threshold(run, name) if calibrated(study, name) else float(known.quantile(ALPHA))
        scores = {name: [_packed(run.table.scores[name, role]) for role in roles] for name in shown}
        arms.append({"name": arm.name, "seed": run.seed, "thresholds": limits, "scores": scores})
    return {"detectors": shown, "roles": roles, "arms": arms}


def calibrated(study: Study, detector: str) -> bool:
    """Whether there is a threshold from validation data."""
    return all(threshold(arm.runs[0], detector) is not None for arm in study.arms)


def _packed(scores: torch.Tensor) -> str:
    """Sorted, little-endian, in base 64."""
    values = np.sort(scores.float().numpy())
    if len(values) > MOST:
        values = values[np.linspace(0, len(values) - 1, MOST).round().astype(int)]
    return base64.b64encode(values.astype("<f4").tobytes()).decode()
