"""A threshold with a guarantee, by split conformal calibration.

With n calibration scores of in-distribution samples, flag what scores below the k-th smallest, `k = floor(alpha (n +
1))`: an ID sample that is exchangeable with them is flagged with a probability of at most alpha. That is the false
alarm rate on average over the calibration draw. With `delta`, k is smaller: for all but a share delta of the draws the
false alarm rate is at most alpha.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .errors import InputError

_ROUNDING = 1e-9  # of ranks: 0.1 * 30 is a bit less than 3


def threshold_rank(n: int, alpha: float, delta: float | None = None) -> int:
    """Return which of n calibration scores, counted from the smallest, is the threshold.

    >>> threshold_rank(99, 0.05), threshold_rank(1000, 0.05), threshold_rank(1000, 0.05, delta=0.1)
    (5, 50, 41)
    """
    if not _ROUNDING < alpha < 1 - _ROUNDING:
        raise InputError(f"alpha = {alpha:.12g} must lie between 0 and 1; 0.05 flags at most 5 % of ID samples")
    if delta is not None and not _ROUNDING < delta < 1 - _ROUNDING:
        raise InputError(f"delta = {delta:.12g} must lie between 0 and 1; 0.1 lets 10 % of calibrations fail")
    if n < samples_needed(alpha, delta):
        raise InputError(
            f"{n} calibration samples are too few for alpha = {alpha:g}"
            + (f" and delta = {delta:g}" if delta else "")
            + f"; at least {samples_needed(alpha, delta)} are needed"
        )
    if delta is None:
        return min(n, math.floor(alpha * (n + 1) + _ROUNDING))
    # The false alarm rate is Beta(k, n + 1 - k): above alpha with the probability that Binomial(n, alpha) < k.
    count = torch.arange(n + 1, dtype=torch.float64)
    log_ways = math.lgamma(n + 1) - torch.lgamma(count + 1) - torch.lgamma(n - count + 1)
    chance = (log_ways + count * math.log(alpha) + (n - count) * math.log1p(-alpha)).exp()
    return min(n, max(1, int((chance.cumsum(0) <= delta * (1 + _ROUNDING)).sum())))  # P(Binomial <= k - 1) <= delta


def samples_needed(alpha: float, delta: float | None = None) -> int:
    """Return the least number of calibration samples with which anything can be flagged.

    >>> samples_needed(0.05), samples_needed(0.05, 0.1)
    (19, 45)
    """
    if delta is None:
        return max(1, math.ceil(1 / alpha - _ROUNDING) - 1)
    return max(1, math.ceil(math.log(delta) / math.log1p(-alpha) - _ROUNDING))


def p_values(scores: Tensor, calibration: Tensor) -> Tensor:
    """Return `(1 + calibration scores that are not larger) / (n + 1)`; `calibration` is sorted. NaN gets 0."""
    count = torch.searchsorted(calibration, scores.contiguous(), right=True)
    p = (1 + count).to(torch.float64) / (len(calibration) + 1)
    return torch.where(scores.isnan(), 0.0, p)
