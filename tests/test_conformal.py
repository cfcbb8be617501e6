from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from spcp.conformal import calibrated, log_p_value, p_values, samples_needed, split, threshold_rank
from spcp.errors import InputError


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("alpha", "n"), [(0.05, 19), (0.05, 100), (0.1, 37), (0.2, 11), (0.01, 250)])
def test_at_most_alpha_is_flagged(alpha: float, n: int, ties: bool) -> None:
    """In expectation over the calibration draw: 4000 draws of n + 1 exchangeable scores."""
    rng = np.random.default_rng(0)
    flagged = []
    for _ in range(4000):
        scores = rng.normal(size=n + 1)
        scores = torch.tensor(scores.round(0 if ties else 9))
        threshold = scores[:n].sort().values[threshold_rank(n, alpha) - 1]
        is_ood = bool(scores[n] < threshold)
        assert is_ood == (p_values(scores[n:], scores[:n].sort().values).item() <= alpha + 1e-12)
        flagged.append(is_ood)
    error = 3 * math.sqrt(alpha * (1 - alpha) / 4000)
    assert np.mean(flagged) <= alpha + error
    if not ties:
        exact = math.floor(alpha * (n + 1) + 1e-9) / (n + 1)
        assert abs(np.mean(flagged) - exact) <= error  # and no less than promised


@pytest.mark.parametrize(("alpha", "delta", "n"), [(0.05, 0.1, 45), (0.05, 0.1, 200), (0.1, 0.05, 500), (0.2, 0.3, 30)])
def test_at_most_alpha_with_probability(alpha: float, delta: float, n: int) -> None:
    """For all but a share delta of calibration draws, the share of ID samples that is flagged is at most alpha."""
    rng = np.random.default_rng(0)
    k = threshold_rank(n, alpha, delta)
    rates = np.sort(rng.uniform(size=(20_000, n)), axis=1)[:, k - 1]  # uniform scores: the threshold is the rate
    assert np.mean(rates > alpha) <= delta + 3 * math.sqrt(delta / 20_000)
    following = np.sort(rng.uniform(size=(20_000, n)), axis=1)[:, k]
    assert np.mean(following > alpha) > delta  # the next rank would break the promise


def test_too_few_samples_says_how_many() -> None:
    with pytest.raises(
        InputError, match=r"18 calibration samples are too few for alpha = 0.05; at least 19 are needed"
    ):
        threshold_rank(18, 0.05)
    with pytest.raises(InputError, match=r"44 .* for alpha = 0.05 and delta = 0.1; at least 45 are needed"):
        threshold_rank(44, 0.05, 0.1)
    for alpha in (0, 1):
        with pytest.raises(InputError, match=rf"alpha = {alpha} must lie between 0 and 1"):
            threshold_rank(44, alpha)
    for delta in (0, 1):
        with pytest.raises(InputError, match=rf"delta = {delta} must lie between 0 and 1"):
            threshold_rank(44, 0.5, delta)
    for alpha in (0.5, 0.3, 0.1, 0.05, 0.01, 0.001):
        assert threshold_rank(samples_needed(alpha), alpha) == 1
        assert threshold_rank(samples_needed(alpha, 0.1), alpha, 0.1) >= 1


@pytest.mark.parametrize("alpha", ["0.01", "0.05", "0.1", "0.3", "0.5", "0.7", "0.9"])
def test_ranks_by_their_definition(alpha: str) -> None:
    """In fractions: the largest rank that keeps the promise, and the least number of samples that have one."""
    share = Fraction(alpha)
    for delta in (None, "0.05", "0.5", "0.8"):
        promise = None if delta is None else Fraction(delta)
        ranks = {n: _rank(n, share, promise) for n in range(1, 121)}
        asked = float(alpha), None if delta is None else float(delta)
        needed = samples_needed(*asked)
        assert needed == next((n for n, rank in ranks.items() if rank), needed)
        for n, rank in ranks.items():
            if n >= needed:
                assert threshold_rank(n, *asked) == rank, (n, delta)


def _rank(n: int, alpha: Fraction, delta: Fraction | None) -> int:
    """Flag below the k-th smallest: with probability k / (n + 1), or Binomial(n, alpha) < k in at most delta."""
    if delta is None:
        return max(k for k in range(n + 1) if Fraction(k, n + 1) <= alpha)
    a, b = alpha.numerator, alpha.denominator  # whole numbers are faster
    below = itertools.accumulate(math.comb(n, i) * a**i * (b - a) ** (n - i) for i in range(n))
    return sum(chance * delta.denominator <= delta.numerator * b**n for chance in below)


def test_a_rank_at_the_edge() -> None:
    """Where delta is exactly what a rank can promise, rounding must not take it away."""
    assert threshold_rank(4, 0.5, 0.0625) == 1
    assert threshold_rank(45, 0.05, 0.95**45) == 1
    assert threshold_rank(2, 0.5, 0.75) == 2
    assert threshold_rank(3, 0.1, 0.999) == 3
    assert threshold_rank(3, 0.1, 0.9989999) == 2


def test_thresholds_of_all_and_of_each_group() -> None:
    scores, groups = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 0.0]), torch.tensor([0, 1, 0, 1, 0, 1])
    (whole,), threshold = calibrated(scores, None, 1, 0.3, None)
    assert (whole.tolist(), threshold.tolist()) == ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [1.0])
    parts, thresholds = calibrated(scores, groups, 2, 0.5, None)
    assert [part.tolist() for part in parts] == [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]
    assert thresholds.tolist() == [4.0, 1.0]
    with pytest.raises(InputError, match=r"^6 calibration samples are too few"):
        calibrated(scores, None, 1, 0.1, None)
    with pytest.raises(InputError, match=r"^class 2: 0 calibration samples are too few"):
        calibrated(scores, groups, 3, 0.5, None)
    with pytest.raises(InputError, match="1 of 2 calibration scores are not a number; check the inputs"):
        calibrated(torch.tensor([1.0, math.nan]), None, 1, 0.5, None)


def test_p_values_count_calibration_scores_that_are_not_larger() -> None:
    calibration = torch.tensor([1.0, 2.0, 2.0, 5.0])
    scores = torch.tensor([0.0, 1.0, 2.0, 3.0, 9.0, math.inf, -math.inf, math.nan])
    expected = torch.tensor([1, 2, 4, 4, 5, 5, 1, 0], dtype=torch.float64) / 5
    assert torch.equal(p_values(scores, calibration), expected)


def test_a_split_leaves_enough_for_both() -> None:
    chosen, calibration = split(21)
    assert sorted([*chosen.tolist(), *calibration.tolist()]) == list(range(21))
    assert (len(chosen), len(calibration)) == (2, 19)
    for part in (chosen, calibration):
        assert torch.equal(part, part.sort().values)
        assert not torch.equal(part, torch.arange(part[0], part[0] + len(part)))  # drawn, not cut off
    assert not torch.equal(split(21, seed=1)[1], calibration)
    with pytest.raises(InputError, match=r"20 held-out ID samples are too few .* at least 21 are needed"):
        split(20)


@pytest.mark.parametrize("alpha", ["0.01", "0.05", "0.1", "0.3", "0.5", "0.7"])
def test_a_split_gives_nothing_of_alpha_away(alpha: str) -> None:
    """The threshold gets a number m of samples with a whole alpha (m + 1), or the least above, next to the half."""
    wholes = [math.ceil(k / Fraction(alpha)) - 1 for k in range(1, 400)]
    for n in range(wholes[0] + 2, 500):
        chosen, rest = split(n, float(alpha), choosing=True)
        assert len(chosen) + len(rest) == n
        half, possible = n - n // 2, [m for m in wholes if m <= n - 2]
        nearest = min(abs(m - half) for m in possible)
        assert len(rest) in possible
        assert abs(len(rest) - half) - nearest < (1 if float(alpha) < 0.3 else 2)  # m is rounded up there
        fitted = len(split(n, float(alpha))[1])
        second = len(rest) == wholes[0] and n - wholes[1] >= 10  # the least varies too much
        assert fitted == (wholes[1] if second else len(rest))


def test_a_split_with_delta_is_a_half() -> None:
    assert [len(part) for part in split(101, 0.05, 0.1)] == [50, 51]
    assert [len(part) for part in split(50, 0.05, 0.1)] == [5, 45]
    assert [len(part) for part in split(50, 0.05, 0.1, choosing=True)] == [5, 45]


@pytest.mark.parametrize("delta", [None, 1e-8, 0.1, 1 - 1e-8])
@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-8, 0.5, 1 - 1e-8, 1 - 1e-12, math.nextafter(1, 0), math.nan])
def test_the_ends_of_alphas_range(alpha: float, delta: float | None) -> None:
    """A rank that is there, or one sentence of a readable length."""
    for n in (1, 2, 19, 1000):
        if 1e-9 < alpha < 1 - 1e-9 and n >= samples_needed(alpha, delta):
            assert 1 <= threshold_rank(n, alpha, delta) <= n
        else:
            with pytest.raises(InputError, match=r"^.{20,200}$"):
                threshold_rank(n, alpha, delta)
    assert threshold_rank(19, 1 - 1e-8) == 19
    for end in (0.0, 1e-9, 1 - 1e-9, 1 - 1e-12, 1.0):
        with pytest.raises(InputError, match=r"alpha = .* must lie between 0 and 1"):
            threshold_rank(19, end)
        with pytest.raises(InputError, match=r"delta = .* must lie between 0 and 1"):
            threshold_rank(19, 0.5, end)


def test_log_p_values_within_and_beyond_the_id_scores() -> None:
    id_scores = torch.tensor([1.0, 2.0, 2.0, 2.5, 4.0], dtype=torch.float64)
    scale = np.std(id_scores.numpy())
    ranks = {1.0: 1, 1.5: 1.5, 2.0: 3, 2.2: 3.4, 2.5: 4, 4.0: 5}  # the larger one of equals, and linear in between
    shares = {score: rank / 6 for score, rank in ranks.items()}
    shares |= {1.0 - far * scale: math.exp(-far) / 6 for far in (0.1, 1.0, 9.0)}
    shares |= {4.0 + far * scale: 1 - math.exp(-far) / 6 for far in (0.1, 1.0, 9.0)}
    p = log_p_value(torch.tensor(list(shares), dtype=torch.float64), id_scores)
    torch.testing.assert_close(p.exp(), torch.tensor(list(shares.values()), dtype=torch.float64))
    far = log_p_value(torch.tensor([-1e300, -1e6, math.inf], dtype=torch.float64), id_scores)
    assert far.isfinite().all()
    assert far[0] < far[1] < p.min()
    assert far[2] == 0


@pytest.mark.parametrize(("same", "rounding"), [(3.0, 3e-6), (-3.0, 3e-6), (0.0, 1e-30)])
def test_log_p_values_beside_id_scores_that_are_all_equal(same: float, rounding: float) -> None:
    """What is further away than their rounding is told from them."""
    scores = torch.tensor([same - 2 * rounding, same, same + rounding], dtype=torch.float64)
    p = log_p_value(scores, torch.full((4,), same, dtype=torch.float64))
    expected = torch.tensor([math.exp(-2) / 5, 4 / 5, 1 - math.exp(-1) / 5], dtype=torch.float64)
    torch.testing.assert_close(p.exp(), expected, rtol=1e-6, atol=0)
