"""Statistics that scores are fitted with: of one stream of rows, in constant memory, and each says how it merges.

`merge` is associative and commutative, up to rounding and to the order of rows. So a statistic of all rows is that of
parts, merged: of one stream, of several processes or of several machines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor


class Statistic(Protocol):
    """Something about rows that can be computed from parts of them."""

    def merge(self, other: Self) -> Self:
        """Return the same of the rows of both, without another look at the rows."""


S = TypeVar("S", bound=Statistic)


def merge(a: S, b: S) -> S:
    """Return `a.merge(b)`, for `functools.reduce`."""
    return a.merge(b)


@dataclass
class Sum:
    """Tensors that add up, such as counts."""

    values: tuple[Tensor, ...]

    @classmethod
    def of(cls, *values: Tensor) -> Sum:
        """Return the tensors as a statistic."""
        return cls(values)

    def merge(self, other: Sum) -> Sum:
        """Return the sums."""
        return Sum(tuple(a + b for a, b in zip(self.values, other.values, strict=True)))


@dataclass
class Rows:
    """Something for each row, such as its score, in order."""

    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, rows: Tensor) -> Rows:
        """Return a tensor as a statistic."""
        return cls((rows,))

    def merge(self, other: Rows) -> Rows:
        """Return the rows of both, one below the other."""
        return Rows(self.parts + other.parts)

    @property
    def tensor(self) -> Tensor:
        """All rows, (N, ...)."""
        return torch.cat(self.parts)


def _places(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the classes of both, ascending, and where those of `a` and of `b` are among them."""
    classes = torch.cat([a, b]).unique()
    return classes, torch.searchsorted(classes, a), torch.searchsorted(classes, b)


def _spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """Return `count` rows: these at their places, and zeros elsewhere."""
    return rows.new_zeros(count, *rows.shape[1:]).index_copy_(0, places, rows)


@dataclass
class ClassSums:
    """Sums of rows by class, in float64, for the classes that occur: those of many classes fit in memory."""

    classes: Tensor  # (C,) ascending
    count: Tensor  # (C,)
    sums: Tensor  # (C, M)

    @classmethod
    def of(cls, rows: Tensor, y: Tensor) -> ClassSums:
        """Return the sums of rows (N, M) with classes (N,)."""
        classes, places, count = y.unique(return_inverse=True, return_counts=True)
        sums = torch.zeros(len(classes), rows.shape[1], dtype=torch.float64).index_add_(0, places, rows.double())
        return cls(classes, count, sums)

    def merge(self, other: ClassSums) -> ClassSums:
        """Return the sums of the rows of both."""
        classes, mine, theirs = _places(self.classes, other.classes)
        count, sums = (_spread(tensor, mine, len(classes)) for tensor in (self.count, self.sums))
        return ClassSums(classes, count.index_add_(0, theirs, other.count), sums.index_add_(0, theirs, other.sums))


@dataclass
class Moments:
    """Counts, means and scatter of features by class, in float64.

    Rows are centred before they are multiplied, and parts are joined as Chan et al. (1983) do it, so a large common
    mean costs no digits. Classes that do not occur have no row, so that a part costs the same whatever their number.
    """

    classes: Tensor  # (C,) ascending
    count: Tensor  # (C,)
    mean: Tensor  # (C, D)
    squares: Tensor  # (C, D) sum over a class of (h - its mean)^2
    scatter: Tensor  # (D, D) sum over all of (h - mean of its class) (h - mean of its class)'

    @classmethod
    def of(cls, h: Tensor, y: Tensor) -> Moments:
        """Return the moments of features (N, D) with labels (N,)."""
        h = h.detach().cpu().double()
        classes, places, count = y.cpu().unique(return_inverse=True, return_counts=True)
        zeros = torch.zeros(len(classes), h.shape[1], dtype=torch.float64)
        mean = zeros.index_add(0, places, h) / count[:, None]
        centred = h - mean[places]
        squares = zeros.index_add_(0, places, centred.square())
        return cls(classes, count.double(), mean, squares, centred.t() @ centred)  # float32 would lose the rank

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the rows of both, without another look at the rows."""
        classes, mine, theirs = _places(self.classes, other.classes)
        count, mean, squares = (_spread(tensor, mine, len(classes)) for tensor in (self.count, self.mean, self.squares))
        before = count[theirs]
        share = other.count / (before + other.count).clamp(min=1)
        step = other.mean - mean[theirs]
        weight = (before * share)[:, None]  # n_a n_b / (n_a + n_b)
        count.index_add_(0, theirs, other.count)
        mean.index_add_(0, theirs, share[:, None] * step)
        squares.index_add_(0, theirs, other.squares + weight * step.square())
        both = before > 0  # of many classes, few have rows in both parts, and the others add nothing
        scatter = self.scatter + other.scatter + step[both].t() @ (weight * step)[both]
        return Moments(classes, count, mean, squares, scatter)

    def over(self, num_classes: int) -> Moments:
        """Return the same with a row for each class: those that do not occur have zeros."""
        count, mean, squares = (
            _spread(tensor, self.classes, num_classes) for tensor in (self.count, self.mean, self.squares)
        )
        return Moments(torch.arange(num_classes), count, mean, squares, self.scatter)

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


def percentiles(
    merged: Callable[[Callable[[Tensor], Sum]], Sum], count: int, percents: Sequence[float], columns: int = 1
) -> np.ndarray:
    """Return percentiles, linearly interpolated, of the numbers in each column: exactly, in constant memory.

    Floats are ordered as their bits are, once those of negative numbers are turned over. So the upper bits are counted,
    then the next ones of those numbers that share the upper bits of an answer, until all are known; counts of parts
    just add up.

    Args:
        merged: returns the merged statistic of all rows, given that of features (n, D) in float32; called a few times.
        count: the number of rows in a column.
        percents: from 0 to 100, P of them.
        columns: D; or 1, for all numbers as one column.
    """
    if not count:
        raise ValueError("a percentile needs at least one number")
    places = np.array([(count - 1) * percent / 100 for percent in percents])
    ranks = np.floor(places), np.ceil(places)
    left = np.repeat(np.concatenate(ranks).astype(np.int64)[:, None], columns, 1)  # (2 P, columns) ranks among those
    prefix = np.zeros_like(left)  # that begin with these bits
    shift = 32
    for bits in (16, 16) if columns == 1 else (11, 11, 10):
        shift -= bits
        asked, which = np.unique(prefix, axis=0, return_inverse=True)
        counts = merged(functools.partial(_digits, prefixes=asked, shift=shift, bits=bits)).values[0].numpy()
        ends = counts.cumsum(2)  # (asked, columns, 2^bits)
        for i, place in enumerate(which.ravel()):
            digit = (ends[place] <= left[i, :, None]).sum(1)  # (columns,)
            left[i] -= np.where(digit, ends[place][np.arange(columns), digit - 1], 0)
            prefix[i] = prefix[i] << bits | digit
    codes = np.where(prefix & 0x8000_0000, prefix ^ 0x8000_0000, ~prefix & 0xFFFF_FFFF)
    low, high = np.split(codes.astype(np.uint32).view(np.float32).astype(np.float64), 2)  # (P, columns)
    return low + (high - low) * (places - ranks[0])[:, None]


def _digits(x: Tensor, prefixes: np.ndarray, shift: int, bits: int) -> Sum:
    """Count the digits of `bits` bits from `shift` on of numbers that begin with a prefix: (prefixes, columns, 2^bits).

    They are taken some at a time: as few as stay in the cache, but not fewer than there are counts.
    """
    columns, size = prefixes.shape[1], prefixes.shape[1] << bits
    counts = np.zeros((len(prefixes), size), dtype=np.int64)
    first = (np.arange(columns, dtype=np.uint32) << np.uint32(bits))[None]
    for piece in x.detach().float().cpu().reshape(-1, columns).split(max(1, max(1 << 18, size) // columns)):
        codes = _ordered(piece.contiguous().numpy())  # (n, columns)
        digits = (codes >> np.uint32(shift) & np.uint32((1 << bits) - 1)) + first
        for prefix, count in zip(prefixes.astype(np.uint32), counts, strict=True):
            chosen = digits if shift + bits == 32 else digits[codes >> np.uint32(shift + bits) == prefix]
            count += np.bincount(chosen.ravel(), minlength=size)
    return Sum.of(torch.from_numpy(counts.reshape(len(prefixes), columns, -1)))


def _ordered(x: np.ndarray) -> np.ndarray:
    """Return numbers from 0 to 2^32 - 1 in the order of the floats."""
    bits = x.view(np.uint32)
    return np.where(bits & 0x8000_0000, ~bits, bits | 0x8000_0000)
