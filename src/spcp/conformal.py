"""A threshold with a guarantee, by split conformal calibration.

With n calibration scores of in-distribution samples, flag what scores below the k-th smallest, `k = floor(alpha (n +
1))`: an ID sample that is exchangeable with them is flagged with a probability of at most alpha. That is the false
alarm rate on average over the calibration draw. With `delta`, k is smaller: for all but a share delta of the draws the
false alarm rate is at most alpha. The promise needs calibration samples that nothing else was fitted or chosen on:
where a score needs held-out ID samples too, `split` divides them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .errors import InputError

_ROUNDING = 1e-9  # of ranks: 0.1 * 30 is a bit less than 3
_FITTED = 10  # samples, on which a consensus detects as well as on more


def threshold_rank(n: int, alpha: float, delta: float | None = None) -> int:
    """Return which of n calibration scores, counted from the smallest, is the threshold.

    >>> threshold_rank(99, 0.05), threshold_rank(1000, 0.05), threshold_rank(1000, 0.05, delta=0.1)
    (5, 50, 41)
    """
    if n < samples_needed(alpha, delta):
        raise InputError(
            f"{n} calibration samples are too few for alpha = {alpha:g}"
            + (f" and delta = {delta:g}" if delta else "")
            + f"; at least {samples_needed(alpha, delta)} are needed, {samples_needed(alpha, delta) - n} more"
        )
    if delta is None:
        return min(n, math.floor(alpha * (n + 1) + _ROUNDING))
    # The false alarm rate is Beta(k, n + 1 - k): above alpha with the probability that Binomial(n, alpha) < k.
    count = torch.arange(n + 1, dtype=torch.float64)
    log_ways = math.lgamma(n + 1) - torch.lgamma(count + 1) - torch.lgamma(n - count + 1)
    chance = (log_ways + count * math.log(alpha) + (n - count) * math.log1p(-alpha)).exp()
    return min(n, max(1, int((chance.cumsum(0) <= delta * (1 + _ROUNDING)).sum())))  # P(Binomial <= k - 1) <= delta


def calibrated(
    scores: Tensor, groups: Tensor | None, count: int, alpha: float, delta: float | None
) -> tuple[list[Tensor], Tensor]:
    """Return sorted calibration scores and their thresholds: of all, or of each of `count` groups, such as classes.

    `groups` is the group of each score, (n,), or None.
    """
    if scores.isnan().any():
        raise InputError(
            f"{int(scores.isnan().sum())} of {len(scores)} calibration scores are not a number; check the inputs"
        )
    parts = [scores] if groups is None else [scores[groups == k] for k in range(count)]
    parts = [part.sort().values for part in parts]
    thresholds = []
    for k, part in enumerate(parts):
        try:
            thresholds.append(part[threshold_rank(len(part), alpha, delta) - 1])
        except InputError as error:
            raise InputError(str(error) if groups is None else f"class {k}: {error}") from None
    return parts, torch.stack(thresholds)


def samples_needed(alpha: float, delta: float | None = None) -> int:
    """Return the least number of calibration samples with which anything can be flagged.

    >>> samples_needed(0.05), samples_needed(0.05, 0.1)
    (19, 45)
    """
    if not _ROUNDING < alpha < 1 - _ROUNDING:
        raise InputError(f"alpha = {alpha:.12g} must lie between 0 and 1; 0.05 flags at most 5 % of ID samples")
    if delta is not None and not _ROUNDING < delta < 1 - _ROUNDING:
        raise InputError(f"delta = {delta:.12g} must lie between 0 and 1; 0.1 lets 10 % of calibrations fail")
    if delta is None:
        return _samples_of_rank(1, alpha)
    return max(1, math.ceil(math.log(delta) / math.log1p(-alpha) - _ROUNDING))


def p_values(scores: Tensor, calibration: Tensor) -> Tensor:
    """Return `(1 + calibration scores that are not larger) / (n + 1)`; `calibration` is sorted. NaN gets 0."""
    count = torch.searchsorted(calibration, scores.contiguous(), right=True)
    p = count.to(torch.float64).add_(1).div_(len(calibration) + 1)
    return p.masked_fill_(scores.isnan(), 0.0)


def split(
    n: int, alpha: float = 0.05, delta: float | None = None, *, choosing: bool = False, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Divide n held-out ID samples into those that a score is fitted or chosen on, and those for its threshold.

    Returns sorted indices of both. About one half is for the threshold: the number m of samples next to the half for
    which `alpha (m + 1)` is whole, so that nothing of alpha is given away. Where that is the least number that there
    can be, with which the false alarm rate varies most from draw to draw, and the score is fitted but not chosen
    (`choosing`), it is the next such number, if that leaves 10 samples for the score. Which samples they are is drawn
    at random, whatever the order of the data; so both parts are exchangeable with new ID samples if all n are.

    >>> [len(part) for part in split(40)], [len(part) for part in split(50)], [len(part) for part in split(1000)]
    ([21, 19], [11, 39], [501, 499])
    """
    needed = samples_needed(alpha, delta)
    if n < needed + 2:
        raise InputError(
            f"{n} held-out ID samples are too few for alpha = {alpha:g}; at least {needed + 2} are needed, because the "
            "score is fitted on some of them"
        )
    half = n - n // 2
    rank = min(round(alpha * (half + 1)), math.floor(alpha * (n - 1) + _ROUNDING))  # leaves two for the score
    if rank < 2 and not choosing and n - _samples_of_rank(2, alpha) >= _FITTED:
        rank = 2
    count = max(needed, half if delta is not None else _samples_of_rank(rank, alpha))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[count:].sort().values, order[:count].sort().values


def _samples_of_rank(rank: int, alpha: float) -> int:
    """Return the least m for which `alpha (m + 1)` is the rank."""
    return math.ceil(rank / alpha - _ROUNDING) - 1


def log_p_value(scores: Tensor, id_scores: Tensor) -> Tensor:
    """Return the log of the share of sorted ID scores that are lower, in float64.

    The share is `i / (1 + n)` at the i-th of n ID scores, and linear in between. Beyond them it goes on exponentially,
    to 0 and to 1, by the standard deviation of the ID scores: so samples below all ID scores are still in order, and
    the log stays finite however far they are.

    >>> id_scores = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    >>> log_p_value(torch.tensor([1.0, 2.0, 3.0, 4.0]), id_scores).exp().round(decimals=6).tolist()
    [0.25, 0.5, 0.625, 0.75]
    """
    s, n = scores.double(), len(id_scores)
    count = torch.searchsorted(id_scores, s, right=True)  # (B,), of ID scores that are not larger
    low, high = id_scores[(count - 1).clamp(min=0)], id_scores[count.clamp(max=n - 1)]
    # The deviation of ID scores that are all equal is their rounding.
    scale = id_scores.std(correction=0).maximum(1e-6 * id_scores.mean().abs()).clamp(min=1e-30)
    between = count + (s - low) / (high - low).clamp(min=1e-300)
    above = n + 1 - torch.exp((id_scores[-1] - s).clamp(max=0) / scale)
    inside = torch.where(count == n, above, between).clamp(min=1).log()
    return torch.where(count == 0, (s - id_scores[0]) / scale, inside) - math.log(1 + n)
