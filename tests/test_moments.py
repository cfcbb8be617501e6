from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spcp.moments import Moments, Sum, merge, percentiles


def rows(seed: int, n: int = 200, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=rng)
    return torch.randn(n, 5, generator=rng) * torch.arange(1.0, 6.0) + y[:, None] + offset, y


def slow(h: np.ndarray, y: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    means = np.stack([h[y == k].mean(0) if (y == k).any() else np.zeros(h.shape[1]) for k in range(classes)])
    squares = np.stack([((h[y == k] - means[k]) ** 2).sum(0) for k in range(classes)])
    scatter = sum((np.outer(a, a) for a in h - means[y]), np.zeros((h.shape[1],) * 2))
    return means, squares, scatter


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("cuts", [(), (1,), (50, 51, 130)])
def test_moments_in_parts_are_those_of_all_rows(offset: float, cuts: tuple[int, ...]) -> None:
    """A class (5 of 6) without rows included."""
    h, y = rows(0, offset=offset)
    parts = zip(h.tensor_split(cuts), y.tensor_split(cuts), strict=True)
    result = functools.reduce(merge, [Moments.of(*part) for part in parts]).over(6)
    means, squares, scatter = slow(h.double().numpy(), y.numpy(), 6)
    np.testing.assert_array_equal(result.count, np.bincount(y, minlength=6))
    np.testing.assert_allclose(result.mean, means, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(result.squares, squares, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(result.scatter, scatter, rtol=1e-4, atol=2e-2)
    whole = h.double().numpy()
    np.testing.assert_allclose(result.whole_mean, whole.mean(0), rtol=1e-6)
    around = result.scatter_around(torch.full((5,), 2.0, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(around, (whole - 2).T @ (whole - 2), rtol=1e-4, atol=2e-2)
    np.testing.assert_allclose(result.covariance(), result.scatter / 200)


def test_merging_is_symmetric_and_knows_nothing() -> None:
    a, b, nothing = Moments.of(*rows(1)), Moments.of(*rows(2)), Moments.of(*rows(3, 0))
    for name in ("classes", "count", "mean", "squares", "scatter"):
        torch.testing.assert_close(getattr(a.merge(b), name), getattr(b.merge(a), name))
        torch.testing.assert_close(getattr(a.merge(nothing), name), getattr(a, name))
        torch.testing.assert_close(getattr(nothing.merge(a), name), getattr(a, name))


def of(parts: list[torch.Tensor]) -> Callable[[Callable[[torch.Tensor], Sum]], Sum]:
    """Statistics of some parts, merged."""
    return lambda statistic: functools.reduce(merge, map(statistic, parts))


@given(
    st.lists(
        st.lists(st.one_of(st.integers(-2, 2).map(float), st.floats(width=32, allow_nan=False, allow_infinity=False))),
        min_size=1,
        max_size=4,
    ).filter(lambda parts: any(parts)),
    st.floats(0, 100),
)
def test_percentiles_are_numpys(parts: list[list[float]], percent: float) -> None:
    """Exact order statistics, whatever the parts; huge values overflow in neither."""
    tensors = [torch.tensor(part, dtype=torch.float32) for part in parts]
    values = np.sort(np.concatenate([part.numpy() for part in tensors]).astype(np.float64))
    place = (len(values) - 1) * percent / 100
    low, high = values[int(np.floor(place))], values[int(np.ceil(place))]
    found = percentiles(of(tensors), len(values), [percent, 50.0])
    assert found.shape == (2, 1)
    assert found[0, 0] == pytest.approx(low + (high - low) * (place - np.floor(place)), rel=1e-12)
    with pytest.raises(ValueError, match="at least one number"):
        percentiles(of(tensors[:0]), 0, [50.0])


@pytest.mark.parametrize("cuts", [(), (0, 7, 7, 60)])
def test_percentiles_of_each_column_are_numpys(cuts: tuple[int, ...]) -> None:
    h = rows(3, 61)[0] * torch.tensor([1.0, -1e30, 1e-38, 1.0, 3.0])
    h[:, 3] = h[:, 3].round()  # ties
    h[:50, 4] = 0
    percents = (0.0, 10.0, 37.5, 50.0, 99.9, 100.0)
    found = percentiles(of(list(h.tensor_split(cuts))), 61, percents, 5)
    np.testing.assert_allclose(found, np.percentile(h.double().numpy(), percents, axis=0), rtol=1e-12)
