from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scores import slow
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

from spcp.errors import InputError
from spcp.metrics import (
    Counts,
    auroc_and_variance,
    compare,
    compare_means,
    exact_interval,
    is_guessing,
    mean_and_deviation,
    metrics,
    rate_interval,
)

scores = st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-5, 5)), min_size=1, max_size=40)


@given(scores, scores)
def test_all_measures_equal_scikit_learns(id_scores: list[float], ood_scores: list[float]) -> None:
    """With few distinct values, so that ties abound."""
    result = metrics(id_scores, ood_scores)
    values = np.array(id_scores + ood_scores)
    is_id = np.array([1] * len(id_scores) + [0] * len(ood_scores))
    assert result.auroc == pytest.approx(roc_auc_score(is_id, values), abs=1e-12)
    for flagged, sign, fpr in ((1 - is_id, -1, result.fpr95), (is_id, 1, result.fpr95_id)):
        false, true, _ = roc_curve(flagged, sign * values, drop_intermediate=False)
        assert fpr == pytest.approx(false[np.argmax(true >= 0.95)], abs=1e-12)
    for positive, sign, area in ((is_id, 1, result.aupr_in), (1 - is_id, -1, result.aupr_out)):
        precision, recall, _ = precision_recall_curve(positive, sign * values)
        assert area == pytest.approx(auc(recall, precision), abs=1e-12)
    assert (result.n_id, result.n_ood) == (len(id_scores), len(ood_scores))


@given(scores, scores)
def test_all_measures_equal_the_slow_reference(id_scores: list[float], ood_scores: list[float]) -> None:
    result = metrics(id_scores, ood_scores)
    a, b = np.array(id_scores), np.array(ood_scores)
    for name in ("auroc", "fpr95", "fpr95_id", "aupr_in", "aupr_out"):
        assert getattr(result, name) == pytest.approx(getattr(slow, name)(a, b), abs=1e-12), name
    if min(len(a), len(b)) > 1:
        _, variance = auroc_and_variance(Counts.of(a, b))
        assert variance == pytest.approx(slow.delong_variance(a, b), abs=1e-12)


def test_all_ties() -> None:
    result = metrics(np.zeros(30), np.zeros(20))
    assert (result.auroc, result.fpr95, result.fpr95_id) == (0.5, 1.0, 1.0)


def test_large_samples_equal_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(1, 1, 60_000).round(3), rng.normal(0, 1, 40_000).round(3)
    result = metrics(id_scores, ood_scores)
    is_id = np.repeat([1, 0], [60_000, 40_000])
    assert result.auroc == pytest.approx(roc_auc_score(is_id, np.concatenate([id_scores, ood_scores])), abs=1e-12)
    precision, recall, _ = precision_recall_curve(is_id, np.concatenate([id_scores, ood_scores]))
    assert result.aupr_in == pytest.approx(auc(recall, precision), abs=1e-12)


def test_intervals_cover() -> None:
    """In 400 draws, the intervals hold the true values about as often as they say."""
    rng = np.random.default_rng(0)
    truth = metrics(rng.normal(1, 1, 400_000), rng.normal(0, 1, 400_000))
    hits = np.zeros(2)
    for _ in range(400):
        result = metrics(rng.normal(1, 1, 300), rng.normal(0, 1, 300), confidence=0.9, resamples=300)
        hits += (
            result.auroc_interval[0] <= truth.auroc <= result.auroc_interval[1],
            (result.fpr95_interval[0] <= truth.fpr95 <= result.fpr95_interval[1]),
        )
    assert (hits / 400 > 0.85).all()
    assert (hits / 400 < 0.95).all()


def test_intervals_cover_near_the_end_of_the_scale() -> None:
    """AUROC .98 and 40 samples of each: a plain Wald interval covers 83 % of 95 there."""
    rng = np.random.default_rng(0)
    gap = 2.06 * 2**0.5
    truth = metrics(rng.normal(gap, 1, 400_000), rng.normal(0, 1, 400_000)).auroc
    result = [metrics(rng.normal(gap, 1, 40), rng.normal(0, 1, 40), resamples=1).auroc_interval for _ in range(1000)]
    covered = np.mean([low <= truth <= high for low, high in result])
    assert 0.93 < covered < 0.985
    low, high = metrics([3.0, 4.0], [1.0, 2.0]).auroc_interval
    assert low < 0.5
    assert high == 1.0
    assert compare([3.0, 4.0], [1.0, 2.0], [1.0, 2.0], [3.0, 4.0]).p_value > 0.1


def test_the_bootstrap_is_a_bootstrap() -> None:
    """The same distribution as that of resampled scores."""
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(1, 1, 50).round(1), rng.normal(0, 1, 40).round(1)
    low, high = metrics(id_scores, ood_scores, resamples=20_000).fpr95_interval
    drawn = [slow.fpr95(rng.choice(id_scores, 50), rng.choice(ood_scores, 40)) for _ in range(4000)]
    assert low == pytest.approx(np.quantile(drawn, 0.025), abs=0.021)
    assert high == pytest.approx(np.quantile(drawn, 0.975), abs=0.021)


@pytest.mark.parametrize("confidence", [0.5, 0.8])
def test_the_bootstraps_quantiles_are_those_asked_for(confidence: float) -> None:
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(1, 1, 300), rng.normal(0, 1, 200)
    interval = metrics(id_scores, ood_scores, resamples=20_000, confidence=confidence).fpr95_interval
    thresholds = np.sort(rng.choice(ood_scores, (20_000, 200)), axis=1)[:, 189]  # which flag 190 of 200
    drawn = (rng.choice(id_scores, (20_000, 300)) <= thresholds[:, None]).mean(1)
    assert interval == pytest.approx(np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]), abs=0.01)


def test_the_interval_of_an_area_without_variance_is_that_of_independent_pairs() -> None:
    """With no pair of n in the wrong order, the share that may be is at most p with (1 - p)^n = 0.025."""
    high, low = [4.0, 5.0, 6.0], [1.0, 2.0]
    limit = 0.025**0.5
    assert metrics(high, low).auroc_interval == pytest.approx((limit, 1.0))
    assert metrics(low, high).auroc_interval == pytest.approx((0.0, 1 - limit))
    assert metrics(high, low, confidence=0.8).auroc_interval == pytest.approx((0.1**0.5, 1.0))
    assert metrics([1.0], low).auroc_interval == (0.0, 1.0)
    assert metrics([1.0, 1.0], [1.0, 1.0]).auroc_interval == (0.0, 1.0)


@pytest.mark.parametrize(("confidence", "z"), [(0.95, 1.959964), (0.8, 1.281552)])
def test_wilsons_interval_is_where_the_rate_is_z_deviations_away(confidence: float, z: float) -> None:
    for count, n in ((0, 7), (1, 7), (3, 7), (7, 7), (5, 100), (50, 100), (999, 1000)):
        ends = rate_interval(count, n, confidence)
        for end, sign in zip(ends, (1, -1), strict=True):
            assert count / n - end == pytest.approx(sign * z * (end * (1 - end) / n) ** 0.5, rel=1e-5, abs=1e-7)
    for n in range(1, 300):
        assert 0 <= rate_interval(0, n, confidence)[0] < 1e-12
        assert 1 - 1e-12 < rate_interval(n, n, confidence)[1] <= 1


@pytest.mark.parametrize("confidence", [0.95, 0.5])
@pytest.mark.parametrize("n", [1, 2, 19, 100, 3000])
def test_the_exact_interval_is_clopper_and_pearsons(n: int, confidence: float) -> None:
    """Against scipy's, and at its ends by their definition: n samples of which none, or all, were seen."""
    tail = (1 - confidence) / 2
    for count in sorted({0, 1, n // 20, n // 2, n - 1, n}):
        expected = stats.binomtest(count, n).proportion_ci(confidence, "exact")
        assert exact_interval(count, n, confidence) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-11)
    assert exact_interval(0, n, confidence) == pytest.approx((0.0, 1 - tail ** (1 / n)), rel=1e-9)
    assert exact_interval(n, n, confidence) == pytest.approx((tail ** (1 / n), 1.0), rel=1e-9)


def test_guessing_is_an_accuracy_within_the_chance_of_the_most_frequent_class() -> None:
    """Of 100 samples in two classes: one half, and 1.645 standard deviations of 5 %."""
    y = np.repeat([0, 1], 50)
    assert is_guessing(0.582, y)
    assert not is_guessing(0.583, y)
    assert is_guessing(1.0, [3, 3, 3])  # one class: nothing else can be guessed
    assert is_guessing(0.70, [0, 0, 0, 1, -1, -1])
    assert is_guessing(0.0, [-1, -1]) is False  # no sample has a class


def test_the_paired_test_keeps_its_level_and_finds_differences() -> None:
    rng = np.random.default_rng(0)
    rejected, detected = 0, 0
    for _ in range(400):
        parts = [rng.normal(1, 1, 100), rng.normal(0, 1, 100)]
        twins = [[part + rng.normal(0, 0.7, 100) for part in parts] for _ in range(2)]
        rejected += compare(*twins[0], *twins[1]).p_value < 0.1
        better = compare(*parts, *twins[0])
        detected += better.p_value < 0.1 and better.difference > 0
    assert 20 <= rejected <= 62  # 40 of 400 expected
    assert detected > 180


def test_the_paired_test_by_hand() -> None:
    result = compare([1.0, 2.0, 3.0], [0.0, 1.5], [3.0, 2.0, 1.0], [2.5, 0.0])
    first = np.array([0.5, 1, 1]), np.array([1, 2 / 3])
    second = np.array([1, 0.5, 0.5]), np.array([1 / 3, 1])
    variance = np.var(first[0] - second[0], ddof=1) / 3 + np.var(first[1] - second[1], ddof=1) / 2
    assert result.difference == pytest.approx(first[0].mean() - second[0].mean())
    assert result.interval[1] - result.interval[0] == pytest.approx(2 * 1.959964 * variance**0.5, rel=1e-6)
    same = compare([1.0, 2.0], [0.0, 1.5], [1.0, 2.0], [0.0, 1.5])
    assert (same.difference, same.p_value) == (0.0, 1.0)
    for n in (2, 3):  # no sample disagrees: a sign test on n pairs
        high, low = np.arange(4.0) + 9, np.arange(n)
        apart = compare(high, low, low[0] - high, low)
        assert (apart.difference, apart.p_value) == (1.0, 2 * 0.5**n)
        assert compare_means([(high, [low, low])], [(low[0] - high, [low, low])]).p_value == 2 * 0.5**n


def test_bad_scores() -> None:
    with pytest.raises(InputError, match="there are no OOD scores"):
        metrics([1.0], [])
    with pytest.raises(InputError, match="1 of 2 ID scores are NaN"):
        metrics([1.0, float("nan")], [0.0])
    with pytest.raises(InputError, match="a paired test needs the same samples"):
        compare([1.0, 2.0], [0.0, 1.0], [1.0], [0.0, 1.0])
    for which, what in enumerate(("ID", "OOD", "ID", "OOD")):
        parts = [[1.0, 2.0], [0.0, 1.0], [1.0, 2.0], [0.0, 1.0]]
        parts[which] = [1.0, float("nan")]
        with pytest.raises(InputError, match=f"1 of 2 {what} scores are NaN"):
            compare(*parts)
        with pytest.raises(InputError, match=f"1 of 2 {what} scores are NaN"):
            compare_means([(parts[0], [parts[1]])], [(parts[2], [parts[3]])])
    assert metrics([1.0, float("inf")], [0.0, -float("inf")]).auroc == 1.0
    assert mean_and_deviation([1.0, 3.0]) == (2.0, 1.0)


def slow_compare_means(first: list[Any], second: list[Any]) -> tuple[float, float]:
    """Mean AUROC over runs and sets, first less second, and its variance by DeLong's structural components."""

    def wins(id_scores: np.ndarray, ood_scores: np.ndarray) -> np.ndarray:  # (n, m)
        return (id_scores[:, None] > ood_scores[None, :]) + 0.5 * (id_scores[:, None] == ood_scores[None, :])

    sets = len(first[0][1])
    kernels = [
        np.mean(
            [wins(a, odd_a[s]) - wins(b, odd_b[s]) for (a, odd_a), (b, odd_b) in zip(first, second, strict=True)], 0
        )
        for s in range(sets)
    ]
    difference = float(np.mean([kernel.mean() for kernel in kernels]))
    by_id = np.mean([kernel.mean(1) for kernel in kernels], 0)
    variance = by_id.var(ddof=1) / len(by_id)
    variance += sum(kernel.mean(0).var(ddof=1) / kernel.shape[1] for kernel in kernels) / sets**2
    return difference, float(variance)


def test_means_over_runs_and_sets_compare_as_the_formula_says() -> None:
    rng = np.random.default_rng(0)

    def runs(shift: float) -> list[Any]:
        return [
            (np.round(rng.normal(shift, 1, 30), 1), [np.round(rng.normal(0, 1, m), 1) for m in (20, 25)])
            for _ in range(3)
        ]

    first, second = runs(1.0), runs(0.4)
    result = compare_means(first, second)
    difference, variance = slow_compare_means(first, second)
    assert result.difference == pytest.approx(difference)
    assert result.interval[1] - result.difference == pytest.approx(1.959964 * np.sqrt(variance), rel=1e-5)
    tensors = [[(torch.tensor(a), [torch.tensor(b) for b in sets]) for a, sets in part] for part in (first, second)]
    assert compare_means(*tensors) == result
    alone = compare_means(first[:1], second[:1])
    (id_scores, (ood_scores, _)), (other_id, (other_ood, _)) = first[0], second[0]
    single = compare_means([(id_scores, [ood_scores])], [(other_id, [other_ood])])
    assert single == compare(id_scores, ood_scores, other_id, other_ood)
    assert alone != single
    with pytest.raises(InputError, match="cannot be paired"):
        compare_means(first, second[:2])
    with pytest.raises(InputError, match="cannot be paired"):
        compare_means([(id_scores, [ood_scores])], [(other_id[:-1], [other_ood])])
    with pytest.raises(InputError, match="cannot be paired"):  # a run that lacks a set
        compare_means([*first[:2], (first[2][0], first[2][1][:1])], second)
    with pytest.raises(InputError, match="cannot be paired; all runs need the same, 2 or more of each set"):
        compare_means([([1.0, 2.0], [[0.0]])], [([1.0, 2.0], [[0.0]])])
    assert compare_means([([1.0, 2.0], [[0.0, 3.0]])], [([1.0, 2.0], [[0.0, 3.0]])]).difference == 0


def test_one_sample_has_an_area_but_no_variance() -> None:
    area, variance = auroc_and_variance(Counts.of([1.0], [0.0, 2.0]))
    assert (area, np.isnan(variance)) == (0.5, True)
    two, three = [1.0, 3.0], [0.0, 2.0, 4.0]  # are enough
    for a, b in ((two, three), (three, two)):
        assert auroc_and_variance(Counts.of(a, b))[1] == pytest.approx(slow.delong_variance(a, b), abs=1e-12)
    for id_scores, ood_scores in (([1.0], [0.0, 2.0]), ([1.0, 2.0], [0.0])):
        with pytest.raises(InputError, match="samples are too few for a test; give at least 2 of each"):
            compare(id_scores, ood_scores, id_scores, ood_scores)


def test_95_percent_of_a_count_is_exact_in_floating_point() -> None:
    n = np.arange(1, 1_000_001)
    least = np.ceil(0.95 * n)
    assert (least / n >= 0.95).all()
    assert ((least - 1) / n < 0.95).all()


def test_exact_intervals_are_those_of_clopper_and_pearson() -> None:
    beta = pytest.importorskip("scipy.stats").beta
    for n in (1, 7, 100, 5000, 10**6):
        for count in sorted({0, 1, n // 20, n // 2, n}):
            low, high = exact_interval(count, n, 0.9)
            assert low == pytest.approx(beta.ppf(0.05, count, n - count + 1) if count else 0.0, rel=1e-9)
            assert high == pytest.approx(beta.ppf(0.95, count + 1, n - count) if count < n else 1.0, rel=1e-9)
