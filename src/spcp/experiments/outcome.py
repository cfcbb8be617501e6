"""What came out of an experiment: ours beside the paper's, and what that says of each claim."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import need
from ..metrics import mean_and_deviation
from ..report.study import t_interval
from .catalogue import Claim
from .measures import HIGHER, Measure, Values

PAPER_SEEDS = 3
MOST = {"near", "far", "ood", "id"}  # columns of the first table; the rest are single sets


@dataclass(frozen=True)
class Cell:
    """One figure: by seed, and the paper's."""

    row: str
    column: str
    metric: str
    by_seed: tuple[float, ...]
    paper: tuple[float, float | None] | None = None  # mean and deviation

    @property
    def mean(self) -> float:
        """Over seeds."""
        return mean_and_deviation(self.by_seed)[0]

    @property
    def std(self) -> float:
        """Over seeds, as OpenOOD has it (ddof 0)."""
        return mean_and_deviation(self.by_seed)[1]

    @property
    def difference(self) -> tuple[float, float | None, float | None] | None:
        """Ours less the paper's, with its 95 % interval (Welch), which a single seed does not have.

        Where the paper gives no deviation its figure counts as exact.
        """
        if self.paper is None:
            return None
        n, (mean, std) = len(self.by_seed), self.paper
        points = self.mean - mean
        if n < 2:
            return points, None, None
        own = self.std**2 / (n - 1)  # the variance of our mean
        theirs = 0.0 if std is None else std**2 / (PAPER_SEEDS - 1)
        if own + theirs == 0:
            return points, points, points
        freedom = (own + theirs) ** 2 / (own**2 / (n - 1) + theirs**2 / (PAPER_SEEDS - 1))
        half = float(need("scipy.stats", "scipy").t.ppf(0.975, freedom)) * math.sqrt(own + theirs)
        return points, points - half, points + half


@dataclass(frozen=True)
class Gain:
    """One row against another, paired by seed, such that positive is better; and the paper's."""

    better: str
    other: str
    column: str
    metric: str
    by_seed: tuple[float, ...]
    interval: tuple[float, float] | None
    paper: float | None
    margin: float | None = None

    @property
    def points(self) -> float:
        """The mean."""
        return sum(self.by_seed) / len(self.by_seed)

    @property
    def word(self) -> str:
        """ "yes", "no" or "unclear": whether the interval lies above 0 (above the margin), below, or holds it."""
        low, high = self.interval or (-math.inf, math.inf)
        bound = 0.0 if self.margin is None else -self.margin
        return "yes" if low > bound else "no" if high < bound else "unclear"


@dataclass(frozen=True)
class Verdict:
    """What the gains say of a claim."""

    says: str
    gains: tuple[Gain, ...]

    @property
    def word(self) -> str:
        """ "holds", "holds in part", "does not hold" or "unclear"."""
        words = [gain.word for gain in self.gains]
        if words and all(word == "yes" for word in words):
            return "holds"
        if "yes" in words:
            return "holds in part"
        return "does not hold" if "no" in words else "unclear"


@dataclass(frozen=True)
class Outcome:
    """All that is kept of an experiment."""

    name: str
    title: str
    budget: str
    about: Mapping[str, Any]  # command, machine, date, settings, ...
    cells: tuple[Cell, ...]
    verdicts: tuple[Verdict, ...]
    findings: tuple[str, ...] = ()  # in words

    def cell(self, row: str, column: str, metric: str) -> Cell | None:
        """One figure."""
        wanted = (row, column, metric)
        return next((own for own in self.cells if (own.row, own.column, own.metric) == wanted), None)

    @property
    def rows(self) -> tuple[str, ...]:
        """In order."""
        return tuple(dict.fromkeys(own.row for own in self.cells))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Columns and metrics, in order."""
        return tuple(dict.fromkeys((own.column, own.metric) for own in self.cells))

    def csv(self) -> str:
        """A line for each figure."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["row", "column", "metric", "mean", "std", "seeds", "paper_mean", "paper_std", "difference", "low", "high"]
        )
        for own in self.cells:
            mean, std = own.paper or (None, None)
            difference = own.difference or (None, None, None)
            writer.writerow(
                [own.row, own.column, own.metric, own.mean, own.std, len(own.by_seed), mean, std, *difference]
            )
        return file.getvalue()

    def json(self) -> str:
        """Everything, in a few kilobytes."""
        return json.dumps(_rounded(dataclasses.asdict(self)), indent=None, separators=(",", ":")) + "\n"

    @classmethod
    def read(cls, text: str) -> Outcome:
        """What `json` wrote."""
        told = json.loads(text)
        cells = [
            Cell(**{**own, "by_seed": tuple(own["by_seed"]), "paper": _pair(own["paper"])}) for own in told["cells"]
        ]
        verdicts = [
            Verdict(
                own["says"],
                tuple(
                    Gain(**{**gain, "by_seed": tuple(gain["by_seed"]), "interval": _pair(gain["interval"])})
                    for gain in own["gains"]
                ),
            )
            for own in told["verdicts"]
        ]
        changed = {"cells": tuple(cells), "verdicts": tuple(verdicts), "findings": tuple(told["findings"])}
        return cls(**{**told, **changed})


def _pair(value: Any) -> Any:
    return None if value is None else tuple(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: _rounded(own) for key, own in value.items()}
    return [_rounded(own) for own in value] if isinstance(value, list | tuple) else value


def verdict(claim: Claim, values: Values, paper: Mapping[tuple[str, str, str], float]) -> Verdict:
    """Compare the rows that a claim is about."""
    gains = []
    for better, other in claim.pairs:
        for column, metric in claim.measures:
            first, second = (values.get(row, {}).get((column, metric)) for row in (better, other))
            if not first or not second:
                continue
            sign = 1 if metric in HIGHER else -1
            by_seed = tuple(sign * (a - b) for a, b in zip(first, second, strict=True))
            theirs = [paper.get((row, column, metric)) for row in (better, other)]
            gain = None if theirs[0] is None or theirs[1] is None else sign * (theirs[0] - theirs[1])
            gains.append(Gain(better, other, column, metric, by_seed, t_interval(by_seed), gain, claim.margin))
    return Verdict(claim.says, tuple(gains))
