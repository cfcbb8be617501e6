"""How well scores tell in-distribution (ID) from OOD samples: all measures from one shared sort, exact with ties.

A score is larger for ID. `fpr95` is OpenOOD's: OOD is the positive class, so it is the share of ID that is flagged at
the threshold that flags at least 95 % of OOD. `fpr95_id` is the other convention, of older work: the share of OOD
that is accepted at the threshold that accepts at least 95 % of ID. Everything is a share in [0, 1].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError

Floats = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Metrics:
    """All measures of one pair of sets, see `metrics`."""

    fpr95: float  # OOD positive, OpenOOD's
    fpr95_id: float  # ID positive
    auroc: float
    aupr_in: float  # ID positive
    aupr_out: float  # OOD positive
    auroc_interval: Interval  # DeLong
    fpr95_interval: Interval  # bootstrap
    n_id: int
    n_ood: int


@dataclass(frozen=True)
class Counts:
    """ID and OOD samples at each distinct score, from the lowest to the highest."""

    id: NDArray[np.int64]
    ood: NDArray[np.int64]

    @classmethod
    def of(cls, id_scores: ArrayLike, ood_scores: ArrayLike) -> Counts:
        """Count in one sort."""
        of_id, of_ood = _scores(id_scores, "ID"), _scores(ood_scores, "OOD")
        scores = np.concatenate([of_id, of_ood])
        order = np.argsort(scores)
        ordered = scores[order]
        last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # of each distinct score
        below = np.cumsum(order < len(of_id))[last]  # ID samples up to and with it
        return cls(np.diff(below, prepend=0), np.diff(last + 1 - below, prepend=0))


def _scores(scores: ArrayLike, what: str) -> Floats:
    """Return scores as a flat array of numbers."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu().numpy()
    array = np.asarray(scores, dtype=np.float64).ravel()
    if not len(array):
        raise InputError(f"there are no {what} scores; give at least one")
    if np.isnan(array).any():
        raise InputError(f"{int(np.isnan(array).sum())} of {len(array)} {what} scores are NaN; check the features")
    return array


def metrics(
    id_scores: ArrayLike, ood_scores: ArrayLike, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Metrics:
    """Compute all measures, with intervals for the AUROC (DeLong) and the FPR95 (bootstrap).

    >>> result = metrics([3.0, 2.0, 1.0], [0.5, 1.5])
    >>> round(result.auroc, 4), round(result.fpr95, 4)
    (0.8333, 0.3333)
    """
    counts = Counts.of(id_scores, ood_scores)
    area, variance = auroc_and_variance(counts)
    return Metrics(
        fpr95=_fpr(counts.ood, counts.id),
        fpr95_id=_fpr(counts.id[::-1], counts.ood[::-1]),
        auroc=area,
        aupr_in=_aupr(counts.id[::-1], counts.ood[::-1]),
        aupr_out=_aupr(counts.ood, counts.id),
        auroc_interval=_auroc_interval(area, variance, confidence, min(int(counts.id.sum()), int(counts.ood.sum()))),
        fpr95_interval=_fpr_interval(counts, confidence, resamples, seed),
        n_id=int(counts.id.sum()),
        n_ood=int(counts.ood.sum()),
    )


def _needed(n: int) -> int:
    """Return the least count with `count / n >= 0.95`, in floating point too (tried for n up to a million)."""
    return math.ceil(0.95 * n)


def _fpr(positive: NDArray[np.int64], negative: NDArray[np.int64]) -> float:
    """Return the share of negatives flagged when 95 % of positives are; both ordered from the most suspicious on."""
    at = np.searchsorted(np.cumsum(positive), _needed(int(positive.sum())))
    return float(negative[: at + 1].sum() / negative.sum())


def _aupr(positive: NDArray[np.int64], negative: NDArray[np.int64]) -> float:
    """Return the trapezoid area under precision over recall, which starts at (0, 1)."""
    tp, fp = np.cumsum(positive), np.cumsum(negative)
    precision = np.append(1.0, tp / (tp + fp))
    recall = np.append(0.0, tp / tp[-1])
    return float(np.sum(np.diff(recall) * (precision[1:] + precision[:-1])) / 2)


def _placements(counts: Counts) -> tuple[Floats, Floats]:
    """Return, at each distinct score, the share of OOD below it and the share of ID above it; ties count half."""
    n, m = counts.id.sum(), counts.ood.sum()
    ood_below = (np.cumsum(counts.ood) - counts.ood / 2) / m
    id_above = (n - np.cumsum(counts.id) + counts.id / 2) / n
    return ood_below, id_above


def auroc_and_variance(counts: Counts) -> tuple[float, float]:
    """Return the share of pairs in the right order, and its variance by DeLong et al. (1988); NaN for one sample."""
    n, m = int(counts.id.sum()), int(counts.ood.sum())
    ood_below, id_above = _placements(counts)
    area = float(np.dot(counts.id, ood_below) / n)
    if n < 2 or m < 2:
        return area, math.nan
    of_id = np.dot(counts.id, (ood_below - area) ** 2) / (n - 1) / n
    of_ood = np.dot(counts.ood, (id_above - area) ** 2) / (m - 1) / m
    return area, float(of_id + of_ood)


def rate_interval(count: int, n: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's interval of a rate of which `count` of n samples were seen.

    >>> [round(end, 3) for end in rate_interval(0, 100)]
    [0.0, 0.037]
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle, half = count + z * z / 2, z * math.sqrt(count * (n - count) / n + z * z / 4)
    return max(0.0, (middle - half) / (n + z * z)), min(1.0, (middle + half) / (n + z * z))


@functools.lru_cache(maxsize=65536)
def exact_interval(count: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the exact interval of a rate of which `count` of n samples were seen, by Clopper and Pearson (1934).

    >>> [round(end, 4) for end in exact_interval(5, 100)], exact_interval(0, 0)
    ([0.0164, 0.1128], (0.0, 1.0))
    """
    tail = (1 - confidence) / 2
    low = _beta_quantile(tail, count, n - count + 1) if count else 0.0
    return low, _beta_quantile(1 - tail, count + 1, n - count) if count < n else 1.0


def _beta_quantile(p: float, a: float, b: float) -> float:
    """Return where the distribution function of Beta(a, b) is p, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _beta_share(middle, a, b) < p else (low, middle)
    return (low + high) / 2


def _beta_share(x: float, a: float, b: float) -> float:
    """Return P(Beta(a, b) <= x), for 0 < x < 1, from its continued fraction (Numerical Recipes, 6.4)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for i in range(1, 100_000):
        for step in (
            i * (b - i) * x / ((a + 2 * i - 1) * (a + 2 * i)),
            -(a + i) * (a + b + i) * x / ((a + 2 * i) * (a + 2 * i + 1)),
        ):
            d, c = 1 / (1 + step * d), 1 + step / c
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return math.exp(log_front) * value / a


def _auroc_interval(area: float, variance: float, confidence: float, pairs: int) -> Interval:
    """Return DeLong's interval on the logit scale, which stays within [0, 1] and covers for areas close to 1 too.

    Where nothing is in the wrong order, the variance is 0; then the interval is that of as many independent pairs.
    """
    if not variance > 0:
        limit = ((1 - confidence) / 2) ** (1 / pairs)
        return (limit, 1.0) if area == 1 else (0.0, 1 - limit) if area == 0 else (0.0, 1.0)
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(variance) / (area * (1 - area))
    middle = math.log(area / (1 - area))
    low, high = (1 / (1 + math.exp(-max(-700.0, min(700.0, middle + step)))) for step in (-half, half))
    return low, high


def _fpr_interval(counts: Counts, confidence: float, resamples: int, seed: int) -> Interval:
    """Return the percentile bootstrap interval of the FPR95, drawn without resampling a single score.

    The k-th smallest of m draws from the OOD scores is their quantile at a Beta(k, m - k + 1) variable; how many of n
    ID draws lie up to there is then binomial.
    """
    n, m = int(counts.id.sum()), int(counts.ood.sum())
    rng = np.random.default_rng(seed)
    k = _needed(m)
    level = rng.beta(k, m - k + 1, resamples)
    at = np.searchsorted(np.cumsum(counts.ood) / m, level)
    share = np.cumsum(counts.id)[at] / n
    drawn = rng.binomial(n, share) / n
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Comparison:
    """Whether one score has a larger AUROC than another on the same samples."""

    difference: float  # first minus second
    interval: Interval
    p_value: float  # two-sided


def compare(
    id_first: ArrayLike, ood_first: ArrayLike, id_second: ArrayLike, ood_second: ArrayLike, *, confidence: float = 0.95
) -> Comparison:
    """Test by DeLong et al. (1988) in pairs: both scores on the same ID and the same OOD samples, in the same order.

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=200) + 1, rng.normal(size=200)
    >>> noisy = [part + rng.normal(size=200) for part in truth]
    >>> compare(*truth, *noisy).p_value < 0.05
    True
    """
    first = [_scores(id_first, "ID"), _scores(ood_first, "OOD")]
    second = [_scores(id_second, "ID"), _scores(ood_second, "OOD")]
    n, m = map(len, first)
    if (n, m) != tuple(map(len, second)):
        raise InputError(
            f"the first score has {n} ID and {m} OOD samples, the second {len(second[0])} and {len(second[1])}; a "
            "paired test needs the same samples"
        )
    if n < 2 or m < 2:
        raise InputError(f"{n} ID and {m} OOD samples are too few for a test; give at least 2 of each")
    (of_id, of_ood), (of_id_2, of_ood_2) = _sample_placements(*first), _sample_placements(*second)
    difference = float(of_id.mean() - of_id_2.mean())
    variance = np.var(of_id - of_id_2, ddof=1) / n + np.var(of_ood - of_ood_2, ddof=1) / m
    return _tested(difference, math.sqrt(variance), min(n, m), confidence)


def compare_means(
    first: Sequence[tuple[ArrayLike, Sequence[ArrayLike]]],
    second: Sequence[tuple[ArrayLike, Sequence[ArrayLike]]],
    *,
    confidence: float = 0.95,
) -> Comparison:
    """Test as `compare` does, for the mean AUROC over runs and OOD sets: each run is (ID scores, [OOD scores by set]).

    All are on the same samples. The interval covers other images for the same networks, not other seeds.
    """
    if not first or len(first) != len(second):
        raise InputError(f"{len(first)} and {len(second)} runs cannot be paired; give as many of each, at least one")
    runs = [(_scores(of_id, "ID"), [_scores(ood, "OOD") for ood in of_ood]) for of_id, of_ood in (*first, *second)]
    sizes = [[len(values) for values in (of_id, *of_ood)] for of_id, of_ood in runs]
    if any(size != sizes[0] for size in sizes) or min(sizes[0]) < 2:
        raise InputError(f"samples {sizes} cannot be paired; all runs need the same, 2 or more of each set")
    (of_id, of_ood), (of_id_2, of_ood_2) = map(_mean_placements, (runs[: len(first)], runs[len(first) :]))
    difference = float(of_id.mean() - of_id_2.mean())
    variance = np.var(of_id - of_id_2, ddof=1) / len(of_id)
    for one, other in zip(of_ood, of_ood_2, strict=True):
        variance += np.var(one - other, ddof=1) / len(one) / len(of_ood) ** 2
    return _tested(difference, math.sqrt(variance), min(sizes[0]), confidence)


def _mean_placements(runs: Sequence[tuple[Floats, Sequence[Floats]]]) -> tuple[Floats, list[Floats]]:
    """Return the mean over runs and sets for each ID sample, and over runs for each OOD sample of each set."""
    of_id, of_ood = [], []
    for id_scores, sets in runs:
        placed = [_sample_placements(id_scores, ood) for ood in sets]
        of_id.append(np.mean([by_id for by_id, _ in placed], axis=0))
        of_ood.append([by_ood for _, by_ood in placed])
    return np.mean(of_id, axis=0), [np.mean(by_run, axis=0) for by_run in zip(*of_ood, strict=True)]


def _tested(difference: float, deviation: float, pairs: int, confidence: float) -> Comparison:
    """Return the interval and the two-sided test of a difference."""
    half = NormalDist().inv_cdf((1 + confidence) / 2) * deviation
    if deviation:
        p_value = math.erfc(abs(difference) / deviation / math.sqrt(2))
    else:  # all samples agree: a sign test on as many pairs
        p_value = 1.0 if difference == 0 else 2 * 0.5**pairs
    return Comparison(difference, (difference - half, difference + half), p_value)


def _sample_placements(id_scores: Floats, ood_scores: Floats) -> tuple[Floats, Floats]:
    """Return the share of OOD below each ID sample and of ID below each OOD sample; ties count half."""
    id_sorted, ood_sorted = np.sort(id_scores), np.sort(ood_scores)
    below = np.searchsorted(ood_sorted, id_scores, "left") + np.searchsorted(ood_sorted, id_scores, "right")
    up_to = np.searchsorted(id_sorted, ood_scores, "left") + np.searchsorted(id_sorted, ood_scores, "right")
    return below / 2 / len(ood_scores), up_to / 2 / len(id_scores)


def is_guessing(accuracy: float, labels: ArrayLike) -> bool:
    """Return whether an accuracy may be that of guessing the most frequent class, at a level of 5 %.

    >>> is_guessing(0.30, [0, 1, 2, 3, 4] * 5), is_guessing(0.30, [0, 1, 2, 3, 4] * 50)
    (True, False)
    """
    y: Any = np.asarray(labels)
    y = y[y >= 0]
    if not len(y):
        return False
    chance = float(np.bincount(y).max()) / len(y)
    return accuracy <= chance + 1.645 * float(np.sqrt(chance * (1 - chance) / len(y)))


def mean_and_deviation(values: ArrayLike) -> tuple[float, float]:
    """Return mean and deviation over seeds, as OpenOOD reports them: the deviation divides by n, not n - 1.

    >>> mean_and_deviation([1.0, 3.0])
    (2.0, 1.0)
    """
    array: Any = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std())
