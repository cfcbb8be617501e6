"""Differences between arms: their intervals are scipy's, and verdicts need every test at hand to agree."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from spcp.comparison import Verdict, compare_arms, t_interval, welch_interval


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
