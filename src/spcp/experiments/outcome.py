"""The outcome of an experiment: our numbers beside the paper's, and whether they bear out each claim."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..comparison import Difference, Verdict, compare_arms, holm, t_p_value, welch_interval
from ..metrics import Interval, mean_and_deviation
from ..tables import to_csv
from .catalogue import Claim
from .measures import GROUPS, HIGHER, Measure, Values

PAPER_SEEDS = 3
ENOUGH = 3  # seeds for a test; two that happen to agree would pass for certainty
POINTS = 2.0  # of accuracy that LogitNorm, which learns slowly, may lose to plain training and still count as trained


@dataclass(frozen=True)
class Cell:
    """One number of a table: ours by seed, and the paper's."""

    row: str
    column: str
    metric: str
    by_seed: tuple[float, ...]
    seeds: tuple[int, ...]
    paper: tuple[float, float | None] | None = None  # mean and deviation, on the same benchmark
    elsewhere: tuple[float, float | None] | None = None  # the paper's on another benchmark: nothing to compare with

    @property
    def mean(self) -> float:
        """Return the mean over seeds."""
        return mean_and_deviation(self.by_seed)[0]

    @property
    def std(self) -> float:
        """Return the deviation over seeds, as OpenOOD has it (ddof 0)."""
        return mean_and_deviation(self.by_seed)[1]

    @property
    def difference(self) -> float | None:
        """Return ours less the paper's."""
        return None if self.paper is None else self.mean - self.paper[0]

    @property
    def interval(self) -> Interval | None:
        """Return the 95 % interval of the difference (Welch); None for a single seed."""
        return None if self.paper is None else welch_interval(self.by_seed, *self.paper, PAPER_SEEDS)


@dataclass(frozen=True)
class Gain:
    """One row against another in one measure, and the paper's difference."""

    row: str
    other: str
    column: str
    metric: str
    difference: Difference
    paper: float | None


class Support(enum.Enum):
    """How far the comparisons bear out a claim."""

    HOLDS = "holds"
    PARTLY = "holds in part"
    MIXED = "mixed"
    FAILS = "does not hold"
    UNCLEAR = "unclear"
    COUNTED = "counted"
    UNTESTED = "not tested"
    SAME = "the same networks"


@dataclass(frozen=True)
class ClaimResult:
    """A claim with the comparisons that it makes."""

    text: str
    gains: tuple[Gain, ...]
    test: bool = True
    margin: float = 0.0
    missing: int = 0  # comparisons that cannot be made, because a row or a measure of it is not there

    @property
    def support(self) -> Support:
        """Judge the claim.

        It holds if every comparison is better, and holds in part if some are and the others are unclear or missing. It
        is mixed if some are better and some are worse, does not hold if some are worse and none is better, and is
        otherwise unclear. Too few seeds, and networks that are compared with themselves, say nothing.
        """
        counts = self.counts
        better, worse = counts[Verdict.BETTER], counts[Verdict.WORSE]
        if self.gains and not any(any(gain.difference.by_seed) for gain in self.gains):
            return Support.SAME
        if not self.test:
            return Support.COUNTED
        if not self.tested:
            return Support.UNTESTED
        if better and worse:
            return Support.MIXED
        if better:
            return Support.HOLDS if better == len(self.gains) and not self.missing else Support.PARTLY
        return Support.FAILS if worse else Support.UNCLEAR

    @property
    def tested(self) -> tuple[Gain, ...]:
        """List the comparisons over enough seeds."""
        return tuple(gain for gain in self.gains if len(gain.difference.by_seed) >= ENOUGH)

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """Count the comparisons that are tested, by verdict."""
        verdicts = [gain.difference.verdict for gain in self.tested]
        return {verdict: verdicts.count(verdict) for verdict in Verdict}

    @property
    def tally(self) -> str:
        """Write the counts out: "2 better, 0 worse, 3 unclear (1 against)"; without a test "4 of 5 as claimed"."""
        as_claimed = sum(gain.difference.mean > -self.margin for gain in self.gains)
        missing = f", {self.missing} missing" if self.missing else ""
        if not self.is_tested:
            return f"{as_claimed} of {len(self.gains)} as claimed{missing}"
        unclear = (gain.difference.mean for gain in self.tested if gain.difference.verdict is Verdict.UNCLEAR)
        against = sum(mean < -self.margin for mean in unclear)
        few = len(self.gains) - len(self.tested)
        return (
            ", ".join(f"{count} {verdict.value}" for verdict, count in self.counts.items())
            + (f" ({against} against)" if against else "")
            + (f", {few} with too few seeds" if few else "")
            + missing
        )

    @property
    def is_tested(self) -> bool:
        """Tell whether there are verdicts, and not just counts."""
        return self.test and bool(self.tested)


@dataclass(frozen=True)
class Outcome:
    """All that is kept of an experiment."""

    name: str
    title: str
    budget: str
    about: Mapping[str, Any]  # command, machine, date, settings, ...
    cells: tuple[Cell, ...]
    claims: tuple[ClaimResult, ...]
    findings: tuple[str, ...] = ()  # sentences

    def cell(self, row: str, column: str, metric: str) -> Cell | None:
        """Return one number; None if there is none."""
        wanted = (row, column, metric)
        return next((cell for cell in self.cells if (cell.row, cell.column, cell.metric) == wanted), None)

    @property
    def rows(self) -> tuple[str, ...]:
        """List the rows, in order."""
        return tuple(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def unlearnt(self) -> Mapping[str, float]:
        """Return the rows of LogitNorm that are far below plain accuracy, with theirs: they are not reported."""
        accuracy = {cell.row: cell.mean for cell in self.cells if (cell.column, cell.metric) == ("id", "ACC")}
        plain = max((accuracy[row] for row in ("Energy", "Vanilla") if row in accuracy), default=0.0)
        return {row: share for row, share in accuracy.items() if "LogitNorm" in row and share < plain - POINTS}

    @property
    def learnt(self) -> tuple[str, ...]:
        """List the rows that are reported, in order."""
        unlearnt = self.unlearnt
        return tuple(row for row in self.rows if row not in unlearnt)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """List columns with their metrics, in order."""
        return tuple(dict.fromkeys((cell.column, cell.metric) for cell in self.cells))

    @property
    def values(self) -> Values:
        """Return the numbers by row and measure, as they were measured."""
        values: Values = {}
        for cell in self.cells:
            values.setdefault(cell.row, {})[cell.column, cell.metric] = dict(zip(cell.seeds, cell.by_seed, strict=True))
        return values

    def seeds(self, row: str) -> tuple[int, ...]:
        """List the seeds of a row's networks."""
        return next(cell.seeds for cell in self.cells if cell.row == row)

    def records(self) -> list[dict[str, Any]]:
        """Return a record for each number."""
        records = []
        for cell in self.cells:
            paper, interval = cell.paper or (None, None), cell.interval or (None, None)
            elsewhere = cell.elsewhere or (None, None)
            records.append(
                {"row": cell.row, "column": cell.column, "metric": cell.metric, "mean": cell.mean, "std": cell.std}
                | {"seeds": len(cell.by_seed), "paper_mean": paper[0], "paper_std": paper[1]}
                | {"difference": cell.difference, "low": interval[0], "high": interval[1]}
                | {"paper_elsewhere_mean": elsewhere[0], "paper_elsewhere_std": elsewhere[1]}
            )
        return records

    def csv(self) -> str:
        """Write the records as CSV."""
        return to_csv(self.records())

    def json(self) -> str:
        """Write everything as JSON, in a few kilobytes."""
        return json.dumps(_rounded(dataclasses.asdict(self)), separators=(",", ":")) + "\n"

    @classmethod
    def read(cls, text: str) -> Outcome:
        """Read the numbers that `json` wrote; `judged` judges them."""
        kept = json.loads(text)
        return cls(**{**kept, "cells": tuple(map(_read_cell, kept["cells"])), "claims": (), "findings": ()})


def _read_cell(kept: Mapping[str, Any]) -> Cell:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items()}
    return Cell(**fields)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def judge(claim: Claim, values: Values, paper: Mapping[tuple[str, str, str], float]) -> ClaimResult:
    """Compare the rows that a claim is about, over the seeds that both have.

    A comparison is better or worse if its interval says so, and if its p-value still does after Holm's correction for
    all comparisons of the claim.
    """
    gains: list[Gain] = []
    missing = 0
    for row, other in claim.pairs:
        for column, metric in _measures(claim, values.get(row) or values.get(other, {})):
            ours, theirs = (values.get(name, {}).get((column, metric), {}) for name in (row, other))
            seeds = [seed for seed in ours if seed in theirs]
            if not seeds:
                missing += 1
                continue
            higher = metric in HIGHER
            arms = [[arm[seed] for seed in seeds] for arm in (ours, theirs)]
            difference = compare_arms(*arms, higher_is_better=higher, margin=claim.margin)
            p_value = t_p_value(difference.by_seed, -claim.margin) if len(seeds) >= ENOUGH else None
            difference = dataclasses.replace(difference, p_value=p_value)
            means = [paper.get((name, column, metric)) for name in (row, other)]
            published = None if None in means else (1 if higher else -1) * (means[0] - means[1])  # type: ignore[operator]
            gains.append(Gain(row, other, column, metric, difference, published))
    significant = holm([gain.difference.p_value for gain in gains])
    corrected = [
        gain
        if clear
        else dataclasses.replace(gain, difference=dataclasses.replace(gain.difference, verdict=Verdict.UNCLEAR))
        for gain, clear in zip(gains, significant, strict=True)
    ]
    return ClaimResult(claim.text, tuple(corrected), claim.test, claim.margin, missing)


def _measures(claim: Claim, row: Mapping[Measure, Any]) -> list[Measure]:
    """List the measures of a claim; "every set" stands for all columns that are no groups."""
    return [
        (column, metric)
        for wanted, metric in claim.measures
        for column in ([c for c, m in row if m == metric and c not in GROUPS] if wanted == "every set" else [wanted])
    ]
