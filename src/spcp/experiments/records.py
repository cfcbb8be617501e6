"""What is kept of a run: settings, history, and all that was measured of it, in a file that needs no weights."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..config import Config
from ..contributions import effective_threshold, mean_support, pattern_of, plain_head, positive_share
from ..environment import version
from ..errors import InputError
from ..evaluation import NOISE, Evaluation
from ..files import read_json, written

FILE = "record.json"
DIGITS = 6
MEASURED = ("auroc", "fpr95", "aupr_in", "aupr_out", "fpr95_id", "detection_rate", "false_alarm_rate")
Measurement = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """All that experiments ask of a run. `measured` is by name, such as "energy trained": a measure and a head."""

    config: Config
    weights: str  # checksum of those that were measured
    sizes: Mapping[str, int]  # how many samples each set has
    history: Sequence[Mapping[str, Any]]
    environment: Sequence[Mapping[str, Any]]  # of the training
    measured: dict[str, Measurement] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a record."""
        kept = read_json(path, "delete it")
        try:
            config, rest = Config.from_json(kept["settings"]), {key: kept[key] for key in KEYS}
            if not all(isinstance(value, dict) and "values" in value for value in rest["measured"].values()):
                raise ValueError("what was measured has no values")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: is no record of a run ({error}); delete it") from error
        return cls(config, **rest)

    def write(self, path: Path) -> None:
        """Write the record, a line for each measurement."""
        settings = {**self.config.as_json(), "root": None, "start": None}  # those are of one machine
        kept: dict[str, Any] = {"settings": settings} | {key: getattr(self, key) for key in KEYS}
        measured = kept.pop("measured")
        lines = [f" {json.dumps(name)}: {_dense(measured[name])}" for name in sorted(measured)]
        parts = [f"{json.dumps(key)}: {_dense(value)}" for key, value in kept.items()]
        parts.append('"measured": {\n' + ",\n".join(lines) + "\n}")
        with written(path) as file:
            file.write(("{\n" + ",\n".join(parts) + "\n}\n").encode())

    def add(self, name: str, values: Mapping[str, Any]) -> None:
        """Take a measurement, as the file will hold it, with the version that measured it and the date."""
        today = datetime.date.today().isoformat()
        self.measured[name] = {"values": json.loads(_dense(_rounded(values))), "version": version(), "date": today}


KEYS = ("weights", "sizes", "history", "environment", "measured")


def _dense(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def measure(evaluation: Evaluation, what: str) -> dict[str, Any]:
    """Measure something of a run: one of `MEASURES`, or how the score of this name detects."""
    return MEASURES[what](evaluation) if what in MEASURES else _detection(evaluation, what)


def _detection(evaluation: Evaluation, score: str) -> dict[str, Any]:
    """Measure a score on every near and far set, and the accuracy."""
    rows = evaluation.table([score], search=evaluation.benchmark.val is not None).records()
    sets = {
        f"{row['group']}/{row['dataset']}": {name: row[name] for name in MEASURED}
        for row in rows
        if row["dataset"] != "mean"
    }
    return {"accuracy": rows[0]["accuracy"], "options": rows[0]["options"], "sets": sets}


def _validation(evaluation: Evaluation, ood: str | None = None) -> dict[str, Any]:
    """Measure the AUROC of the method's score, by which rho_norm is chosen."""
    method = evaluation.model.method
    return {"auroc": evaluation.validation_auroc("energy" if method is None else method.score, ood)}


def _tails(evaluation: Evaluation) -> dict[str, Any]:
    """Measure the share of OOD inputs whose energy is above the median of ID inputs, a mean over sets."""
    score = evaluation.fitted("energy")
    middle = evaluation.scores(score, "test").median()
    shares: dict[str, list[float]] = {}
    for role in evaluation.benchmark.sets():
        if role.startswith(("near/", "far/")):
            above = (evaluation.scores(score, role) > middle).float().mean()
            shares.setdefault(role.partition("/")[0], []).append(float(above))
    return {group: sum(values) / len(values) for group, values in shares.items()}


def _lengths(evaluation: Evaluation) -> dict[str, Any]:
    """Measure the mean norm of the features of each set but the training set."""
    roles = [role for role in evaluation.benchmark.sets() if role != "train"]
    return {role: float(evaluation.bank(role).features.norm(dim=1).mean()) for role in roles}


def _contributions(evaluation: Evaluation) -> dict[str, Any]:
    """Measure how few weights carry the mean contributions on ID test inputs, before any truncation, and what is cut.

    `support` is the mean of `mean_support`, what "auto" truncates at; `threshold` is None where nothing is truncated.
    """
    bank, head = evaluation.bank("test"), evaluation.model.head
    shares = pattern_of((part.features for part in bank.parts()), plain_head(head)).sparsity()
    cut = pattern_of((part.features for part in bank.parts()), head).truncated
    W, b = head.weight.detach(), None if head.bias is None else head.bias.detach()
    support = torch.cat([mean_support(part.features, W, b) for part in bank.parts()])
    threshold = effective_threshold(head)
    return {
        "top_1_percent": shares.top_1_percent,
        "top_10_percent": shares.top_10_percent,
        "participation_ratio": shares.participation_ratio,
        "positive": positive_share(bank.features, W),
        "truncated": float(cut.mean()),
        "support": float(support.mean()),
        "threshold": None if threshold is None else float(threshold),
    }


MEASURES: Mapping[str, Callable[[Evaluation], dict[str, Any]]] = {
    "validation": _validation,
    "noise-validation": functools.partial(_validation, ood=NOISE),
    "tails": _tails,
    "lengths": _lengths,
    "contributions": _contributions,
}
