"""Differences between arms: their intervals are scipy's, and verdicts need every test at hand to agree."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from spcp.comparison import Verdict, compare_arms, holm, t_interval, t_p_value, welch_interval


def verdict(by_seed: tuple[float, ...], **options: float) -> Verdict:
    reference = np.linspace(50, 60, len(by_seed))
    return compare_arms(reference + by_seed, reference, **options).verdict  # type: ignore[arg-type]


def test_a_difference_is_clear_if_seeds_and_samples_agree() -> None:
    assert verdict((9.0, 10.0, 11.0), p_value=0.001) is Verdict.BETTER
    assert verdict((-9.0, -10.0, -11.0), p_value=0.001) is Verdict.WORSE
    assert verdict((9.0, 10.0, 11.0), p_value=0.2) is Verdict.UNCLEAR
    assert verdict((1.0, 20.0, -3.0), p_value=0.001) is Verdict.UNCLEAR


def test_a_single_seed_is_judged_by_samples_alone() -> None:
    assert verdict((9.0,), p_value=0.001) is Verdict.BETTER
    assert verdict((-9.0,), p_value=0.001) is Verdict.WORSE
    assert verdict((9.0,), p_value=0.2) is Verdict.UNCLEAR
    assert verdict((9.0,)) is Verdict.UNCLEAR


def test_a_margin_forgives_that_much() -> None:
    assert verdict((-0.3, -0.4, -0.2)) is Verdict.WORSE
    assert verdict((-0.3, -0.4, -0.2), margin=1.0) is Verdict.BETTER
    assert verdict((-3.0, -3.1, -3.2), margin=1.0) is Verdict.WORSE
    assert verdict((-0.5, -1.5, -1.0), margin=1.0) is Verdict.UNCLEAR


def test_lower_can_be_better() -> None:
    difference = compare_arms([10.0, 11.0, 10.0], [30.0, 31.0, 30.0], higher_is_better=False)
    assert difference.mean == pytest.approx(20)
    assert difference.verdict is Verdict.BETTER


def test_intervals_are_scipys() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(90, 2, 5), rng.normal(92, 1, 3)
    expected = stats.ttest_1samp(ours, 0).confidence_interval()
    assert t_interval(ours) == pytest.approx((expected.low, expected.high))  # type: ignore[arg-type]
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    interval = welch_interval(ours, float(theirs.mean()), float(theirs.std()), 3)  # type: ignore[arg-type]
    assert interval == pytest.approx((expected.low, expected.high))
    assert t_interval([1.0]) is None
    assert welch_interval([1.0], 2.0, 0.1, 3) is None
    assert welch_interval([1.0, 1.0], 2.0, None, 3) == (-1.0, -1.0)


def test_p_values_are_scipys() -> None:
    values = np.random.default_rng(0).normal(1, 2, 6)
    assert t_p_value(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)  # type: ignore[arg-type]
    assert t_p_value(values, -1.0) == pytest.approx(stats.ttest_1samp(values, -1).pvalue)  # type: ignore[arg-type]
    assert t_p_value([1.0]) is None
    assert t_p_value([2.0, 2.0]) == 0
    assert t_p_value([0.0, 0.0]) == 1


def test_holm() -> None:
    """The smallest of n has to be below level / n, the next below level / (n - 1), and so on, until one is not."""
    assert holm([0.01, 0.02, 0.03, 0.04]) == [True, False, False, False]
    assert holm([0.04, 0.012, 0.02, 0.001]) == [True, True, True, True]
    assert holm([0.013, 0.001]) == [True, True]
    assert holm([0.06, None]) == [False, False]
    assert holm([]) == []
