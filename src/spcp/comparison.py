"""Differences between arms over seeds, with intervals and verdicts: the one place where a comparison is judged."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import need
from .metrics import Interval, mean_and_deviation


class Verdict(enum.Enum):
    """The result of a comparison."""

    BETTER = "better"
    WORSE = "worse"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Difference:
    """One arm less another, paired by seed, with the sign that makes positive better."""

    by_seed: tuple[float, ...]
    interval: Interval | None  # of the mean over seeds, 95 %; None for a single seed
    p_value: float | None  # of a paired test, over the same samples or over seeds, where there is one
    verdict: Verdict

    @property
    def mean(self) -> float:
        """Return the mean over seeds."""
        return sum(self.by_seed) / len(self.by_seed)


def compare_arms(
    arm: Sequence[float],
    reference: Sequence[float],
    *,
    higher_is_better: bool = True,
    margin: float = 0.0,
    p_value: float | None = None,
) -> Difference:
    """Compare two arms that have a number for each seed.

    The arm is better if the interval over seeds lies above `-margin`, worse if it lies below, and otherwise the result
    is unclear. A `p_value` has to be below 0.05 as well; for a single seed, which has no interval, it decides alone.

    >>> compare_arms([91.0, 92.0, 93.0], [81.0, 83.0, 82.0]).verdict
    <Verdict.BETTER: 'better'>
    """
    sign = 1 if higher_is_better else -1
    by_seed = tuple(sign * (a - b) for a, b in zip(arm, reference, strict=True))
    interval = t_interval(by_seed)
    return Difference(by_seed, interval, p_value, _judge(by_seed, interval, margin, p_value))


def _judge(by_seed: Sequence[float], interval: Interval | None, margin: float, p_value: float | None) -> Verdict:
    if p_value is None:
        low, high = interval or (-math.inf, math.inf)
    else:
        low, high = interval or (by_seed[0], by_seed[0])
        if not p_value < 0.05:
            return Verdict.UNCLEAR
    return Verdict.BETTER if low > -margin else Verdict.WORSE if high < -margin else Verdict.UNCLEAR


def t_p_value(values: Sequence[float], mean: float = 0.0) -> float | None:
    """Return the two-sided p-value of Student's test that `values` have this mean; None for a single value.

    >>> round(t_p_value([1.0, 2.0, 3.0]), 3)
    0.074
    """
    n = len(values)
    if n < 2:
        return None
    ours, deviation = mean_and_deviation(values)
    if deviation == 0:
        return float(ours == mean)
    t = (ours - mean) * math.sqrt(n - 1) / deviation
    return float(2 * need("scipy.stats", "scipy").t.sf(abs(t), n - 1))


def holm(p_values: Sequence[float | None], level: float = 0.05) -> list[bool]:
    """Tell which of several tests reject, such that all rejections together are wrong with at most this probability.

    The i-th smallest of n p-values, counted from 0, has to be below `level / (n - i)`, and all before it too (Holm,
    1979). None is no test.

    >>> holm([0.04, 0.01, None, 0.03])
    [False, True, False, False]
    """
    tests = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    rejected = [False] * len(p_values)
    for rank, (p, i) in enumerate(tests):
        if not p < level / (len(tests) - rank):
            break
        rejected[i] = True
    return rejected


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return Student's interval for a mean, `mean ± t[n - 1] * s / sqrt(n)`; None for a single value.

    >>> low, high = t_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    n = len(values)
    if n < 2:
        return None
    mean, deviation = mean_and_deviation(values)
    half = _t_quantile(confidence, n - 1) * deviation / math.sqrt(n - 1)
    return mean - half, mean + half


def welch_interval(
    values: Sequence[float], mean: float, deviation: float | None, count: int, confidence: float = 0.95
) -> Interval | None:
    """Return Welch's interval for the mean of `values` less another mean; None for a single value.

    The other mean is of `count` values with that deviation (ddof 0); without a deviation it counts as exact.
    """
    n = len(values)
    if n < 2:
        return None
    first, spread = mean_and_deviation(values)
    ours = spread**2 / (n - 1)  # the variance of a mean
    theirs = 0.0 if deviation is None else deviation**2 / (count - 1)
    if ours + theirs == 0:
        return first - mean, first - mean
    freedom = (ours + theirs) ** 2 / (ours**2 / (n - 1) + theirs**2 / (count - 1))
    half = _t_quantile(confidence, freedom) * math.sqrt(ours + theirs)
    return first - mean - half, first - mean + half


def _t_quantile(confidence: float, freedom: float) -> float:
    return float(need("scipy.stats", "scipy").t.ppf((1 + confidence) / 2, freedom))
