"""Statistics that scores are fitted with: one stream of rows, constant memory, mergeable across shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass
class Moments:
    """Counts, means and scatter of features by class, in float64.

    Rows are centred before they are multiplied, and parts are joined as Chan et al. (1983) do it, so a large common
    mean costs no digits.
    """

    count: Tensor  # (K,)
    mean: Tensor  # (K, D)
    squares: Tensor  # (K, D) sum over a class of (h - its mean)^2
    scatter: Tensor  # (D, D) sum over all of (h - mean of its class) (h - mean of its class)'

    @classmethod
    def empty(cls, num_classes: int, num_features: int) -> Moments:
        """Return the moments of no rows."""
        zeros = torch.zeros(num_classes, num_features, dtype=torch.float64)
        return cls(
            zeros[:, 0].clone(), zeros, zeros.clone(), torch.zeros(num_features, num_features, dtype=torch.float64)
        )

    @classmethod
    def of(cls, h: Tensor, y: Tensor, num_classes: int) -> Moments:
        """Return the moments of features (N, D) with labels (N,)."""
        part = cls.empty(num_classes, h.shape[1])
        h, y = h.detach().cpu().double(), y.cpu()
        part.count = torch.bincount(y, minlength=num_classes).double()
        part.mean.index_add_(0, y, h)
        part.mean /= part.count.clamp(min=1)[:, None]
        centred = h - part.mean[y]
        part.squares.index_add_(0, y, centred.square())
        part.scatter = centred.t() @ centred  # in float64, or its rank would be lost in rounding
        return part

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the rows of both, without another look at the rows."""
        count = self.count + other.count
        share = (other.count / count.clamp(min=1))[:, None]
        step = other.mean - self.mean
        weight = self.count[:, None] * share  # n_a n_b / (n_a + n_b)
        both = weight[:, 0] > 0  # of many classes, few have rows in both parts, and others add nothing
        return Moments(
            count,
            self.mean + share * step,
            self.squares + other.squares + weight * step.square(),
            self.scatter + other.scatter + step[both].t() @ (weight * step)[both],
        )

    @property
    def rows(self) -> float:
        """The number of rows."""
        return float(self.count.sum())

    @property
    def whole_mean(self) -> Tensor:
        """The mean of all rows, (D,)."""
        return self.count @ self.mean / self.count.sum().clamp(min=1)

    def covariance(self) -> Tensor:
        """Return `scatter / N`: the covariance within classes, (D, D)."""
        return self.scatter / self.count.sum().clamp(min=1)

    def scatter_around(self, point: Tensor) -> Tensor:
        """Return the sum of (h - point) (h - point)' over all rows, (D, D)."""
        away = self.mean - point
        return self.scatter + away.t() @ (self.count[:, None] * away)


def merged_moments(parts: Iterable[tuple[Tensor, Tensor]], num_classes: int, num_features: int) -> Moments:
    """Merge the moments of parts, each features (N, D) and labels (N,)."""
    whole = Moments.empty(num_classes, num_features)
    for h, y in parts:
        whole = whole.merge(Moments.of(h, y, num_classes))
    return whole


def percentile(parts: Callable[[], Iterable[Tensor]], percent: float) -> float:
    """Return the percentile, linearly interpolated, of all numbers in float32 tensors: exactly, in constant memory.

    Floats are ordered as their bits are, once those of negative numbers are turned over. So the upper 16 bits are
    counted, then the lower 16 bits of those numbers that share the upper bits of the answer: two passes, and counts of
    parts just add up.

    Args:
        parts: called for each pass.
        percent: from 0 to 100.
    """
    upper = np.zeros(1 << 16, dtype=np.int64)
    for codes in _ordered(parts()):
        upper += np.bincount(codes >> 16, minlength=1 << 16)
    total = int(upper.sum())
    if not total:
        raise ValueError("a percentile needs at least one number")
    place = (total - 1) * percent / 100
    low, high = int(np.floor(place)), int(np.ceil(place))
    ends = np.cumsum(upper)
    bins = sorted({int(np.searchsorted(ends, rank, "right")) for rank in (low, high)})
    lower = {upper_bits: np.zeros(1 << 16, dtype=np.int64) for upper_bits in bins}
    for codes in _ordered(parts()):
        for upper_bits, counts in lower.items():
            counts += np.bincount(codes[codes >> 16 == upper_bits] & 0xFFFF, minlength=1 << 16)

    def at(rank: int) -> float:
        upper_bits = int(np.searchsorted(ends, rank, "right"))
        inside = rank - (int(ends[upper_bits - 1]) if upper_bits else 0)
        code = upper_bits << 16 | int(np.searchsorted(np.cumsum(lower[upper_bits]), inside, "right"))
        bits = code ^ 0x8000_0000 if code & 0x8000_0000 else ~code & 0xFFFF_FFFF
        return float(np.array(bits, dtype=np.uint32).view(np.float32))

    return at(low) + (at(high) - at(low)) * (place - low)


def _ordered(parts: Iterable[Tensor]) -> Iterator[np.ndarray]:
    """Yield numbers from 0 to 2^32 - 1 in the order of the floats, some at a time."""
    for part in parts:
        for piece in part.detach().float().cpu().contiguous().flatten().split(1 << 18):
            bits = piece.numpy().view(np.uint32)
            yield np.where(bits & 0x8000_0000, ~bits, bits | 0x8000_0000)
