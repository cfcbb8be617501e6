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
        return Moments(
            count,
            self.mean + share * step,
            self.squares + other.squares + weight * step.square(),
            self.scatter + other.scatter + step.t() @ (weight * step),
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
        for i, own in enumerate(which.ravel()):
            digit = (ends[own] <= left[i, :, None]).sum(1)  # (columns,)
            left[i] -= np.where(digit, ends[own][np.arange(columns), digit - 1], 0)
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
        for prefix, own in zip(prefixes.astype(np.uint32), counts, strict=True):
            chosen = digits if shift + bits == 32 else digits[codes >> np.uint32(shift + bits) == prefix]
            own += np.bincount(chosen.ravel(), minlength=size)
    return Sum.of(torch.from_numpy(counts.reshape(len(prefixes), columns, -1)))


def _ordered(x: np.ndarray) -> np.ndarray:
    """Return numbers from 0 to 2^32 - 1 in the order of the floats."""
    bits = x.view(np.uint32)
    return np.where(bits & 0x8000_0000, ~bits, bits | 0x8000_0000)
