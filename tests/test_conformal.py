from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spcp.conformal import log_p_value, p_values, samples_needed, split, threshold_rank
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


def test_a_rank_at_the_edge() -> None:
    """Where delta is exactly what the fewest samples can promise, rounding must not take the threshold away."""
    assert threshold_rank(4, 0.5, 0.0625) == 1
    assert threshold_rank(45, 0.05, 0.95**45) == 1


def test_p_values_count_calibration_scores_that_are_not_larger() -> None:
    calibration = torch.tensor([1.0, 2.0, 2.0, 5.0])
    scores = torch.tensor([0.0, 1.0, 2.0, 3.0, 9.0, math.inf, -math.inf, math.nan])
    expected = torch.tensor([1, 2, 4, 4, 5, 5, 1, 0], dtype=torch.float64) / 5
    assert torch.equal(p_values(scores, calibration), expected)


def test_a_split_leaves_enough_for_both() -> None:
    chosen, calibration = split(21)
    assert sorted([*chosen.tolist(), *calibration.tolist()]) == list(range(21))
    assert (len(chosen), len(calibration)) == (2, 19)
    with pytest.raises(InputError, match=r"20 held-out ID samples are too few .* at least 21 are needed"):
        split(20)


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
    for end in (0.0, 1.0, 1 - 1e-12):
        with pytest.raises(InputError, match=r"delta = .* must lie between 0 and 1"):
            threshold_rank(19, 0.5, end)


def test_log_p_values_within_and_beyond_the_id_scores() -> None:
    id_scores = torch.tensor([1.0, 2.0, 2.0, 4.0], dtype=torch.float64)
    scale = id_scores.std(correction=0).item()
    scores = torch.tensor([1.0, 1.5, 4.0, 1.0 - 2 * scale, -1e6], dtype=torch.float64)
    expected = torch.tensor([math.log(0.2), math.log(0.3), math.log(0.8)], dtype=torch.float64)
    p = log_p_value(scores, id_scores)
    torch.testing.assert_close(p[:3], expected)
    assert p[3].item() < p[0].item()
    assert -math.inf < p[4].item() < p[3].item()
