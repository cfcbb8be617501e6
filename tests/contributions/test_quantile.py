from types import ModuleType

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spcp import contribution_quantile
from spcp.contributions import mean_support, native, threshold_estimate, triton_kernels

from .kernels import ALL_KERNELS, KERNELS, SEEDS, VALUES, close, make, needs_compiler, needs_triton, numpy, sizes

LEVELS = st.one_of(st.sampled_from([0.0, 0.5, 0.7, 0.99, 0.9996, 1.0]), st.floats(0, 1))


def check_against_reference(kernels: ModuleType, h: Tensor, W: Tensor, level: float) -> None:
    expected = reference.quantile(*numpy(h, W), level)
    close(kernels.quantile(h, W, level), expected, np.abs(expected) + 1e-3)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("values", VALUES)
@given(size=sizes(9, 20, 19), level=LEVELS, seed=SEEDS)
def test_kernels_match_the_sorted_matrix(
    kernels: ModuleType, values: str, size: tuple[int, int, int], level: float, seed: int
) -> None:
    check_against_reference(kernels, *make(size, values, seed)[:2], level)


@needs_triton
@settings(max_examples=20)  # the interpreter is slow
@given(size=sizes(2, 9, 5), values=st.sampled_from(VALUES), level=LEVELS, seed=SEEDS)
def test_triton_matches_the_sorted_matrix(size: tuple[int, int, int], values: str, level: float, seed: int) -> None:
    check_against_reference(triton_kernels, *make(size, values, seed)[:2], level)


@needs_compiler
@pytest.mark.parametrize("values", VALUES)
@given(
    size=st.tuples(st.integers(1, 70), st.integers(60, 140), st.integers(300, 400)),
    rho_norm=st.one_of(st.sampled_from([0.1, 0.4, 1.0, 5.0, 100.0]), st.floats(0, 299)),
    seed=SEEDS,
)
def test_native_with_many_classes_matches_the_sorted_matrix(
    values: str, size: tuple[int, int, int], rho_norm: float, seed: int
) -> None:
    """Enough contributions for the sparse strategy, and for each of its ways to fail."""
    h, W, *_ = make(size, values, seed)
    h[seed % len(h)] *= 0  # a sample whose contributions all tie
    some = np.unique(np.random.default_rng(seed).integers(0, len(h), 4))
    level = 1 - rho_norm / size[2]
    expected = reference.quantile(*numpy(h[some], W), level)
    close(native.quantile(h, W, level)[some], expected, np.abs(expected) + 1e-3)


def test_equals_torch_quantile() -> None:
    h, W, *_ = make((16, 40, 30), "signed", 0)
    dense = (h[:, None, :] * W).flatten(1)
    for level in (0.0, 0.25, 0.9, 0.985, 1.0):
        torch.testing.assert_close(contribution_quantile(h, W, level), torch.quantile(dense, level, dim=1))
        torch.testing.assert_close(
            contribution_quantile(h.double(), W.double(), level), torch.quantile(dense.double(), level, dim=1)
        )


def test_more_contributions_than_torch_quantile_takes() -> None:
    h, W, *_ = make((2, 1100, 16000), "relu", 0)  # 17.6 million of each sample
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(torch.empty(2**24 + 1), 0.5)
    for row, q in zip(h, contribution_quantile(h, W, 1 - 0.4 / 16000), strict=True):
        dense = (row * W).flatten()
        position = (1 - 0.4 / 16000) * (dense.numel() - 1)
        largest = dense.topk(dense.numel() - int(position)).values
        expected = torch.lerp(largest[-1], largest[-2], position - int(position))
        torch.testing.assert_close(q, expected)


@needs_compiler
@pytest.mark.parametrize("rows", ["alike", "of all sizes", "sorted by size", "few", "tied"])
@pytest.mark.parametrize("rho_norm", [0.02, 0.4, 50.0])
def test_native_with_more_classes_than_are_looked_at_first(rows: str, rho_norm: float) -> None:
    """A first look at a few rows sets a floor for more, and those for all: exact, however little the rows are alike."""
    torch.manual_seed(0)
    h, W = torch.randn(6, 32).relu(), torch.randn(10_000, 32)
    sizes = torch.randn(len(W)).mul(2).exp()
    W *= {
        "alike": torch.ones(len(W)),
        "of all sizes": sizes,
        "sorted by size": sizes.sort().values,
        "few": (torch.arange(len(W)) % 1009 == 5).float(),
        "tied": torch.ones(len(W)),
    }[rows][:, None]
    W = W.round() if rows == "tied" else W
    h[3] = 0
    h[4] *= 1e-3  # the floor of the sample before is far too high
    level = 1 - rho_norm / len(W)
    position = level * (W.numel() - 1)
    dense = torch.stack([(row * W).flatten().sort().values for row in h]).double()
    lower, upper = dense[:, int(position)], dense[:, min(int(position) + 1, W.numel() - 1)]
    expected = torch.lerp(lower, upper, position - int(position)).float()
    torch.testing.assert_close(native.quantile(h, W, level), expected)


def test_shapes_dtypes_and_gradient() -> None:
    h, W, *_ = make((24, 8, 5), "signed", 0)
    q = contribution_quantile(h, W.requires_grad_(), 0.8)
    assert q.shape == (24,)
    assert not q.requires_grad
    assert torch.equal(contribution_quantile(h.reshape(2, 3, 4, 8), W, 0.8), q.reshape(2, 3, 4))
    assert torch.equal(contribution_quantile(h.reshape(2, 12, 8), W, 0.8), q.reshape(2, 12))
    assert torch.equal(contribution_quantile(h[0], W, 0.8), q[0])
    assert contribution_quantile(h[:0], W, 0.8).shape == (0,)
    half = contribution_quantile(h.bfloat16(), W.bfloat16(), 0.8)
    assert torch.equal(half, contribution_quantile(h.bfloat16().float(), W.bfloat16().float(), 0.8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(contribution_quantile(h, W, 0.8), q)


@pytest.mark.parametrize("kernels", ALL_KERNELS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_where_not_finite(kernels: ModuleType, bad: float) -> None:
    h, W, *_ = make((3, 8, 5), "signed", 0)
    h[1, 2] = bad
    assert kernels.quantile(h, W, 0.9).isnan().tolist() == [False, True, False]
    W[4, 7] = bad
    assert kernels.quantile(h, W, 0.9).isnan().all()


@pytest.mark.parametrize("kernels", KERNELS)
def test_products_that_overflow_are_never_made_up(kernels: ModuleType) -> None:
    for h, W, level in (
        (torch.full((3, 4), 1e30), torch.full((2, 4), -1e30), 0.5),
        (torch.tensor([[1e30, 1.0]]), torch.tensor([[-1e30, 1.0], [1.0, 2.0]]), 0.0),
        (torch.full((1, 100), 1e30), torch.full((4, 100), -1e30), 0.5),
    ):
        assert not kernels.quantile(h, W, level).isfinite().any()


@pytest.mark.parametrize("level", [-0.1, 1.1, float("nan")])
def test_a_level_out_of_range_is_named(level: float) -> None:
    with pytest.raises(ValueError, match=r"level is .*between 0 and 1"):
        contribution_quantile(torch.ones(2, 3), torch.ones(4, 3), level)


@given(size=sizes(9, 20, 19), bias=st.booleans(), seed=SEEDS)
def test_mean_support_matches_the_formula(size: tuple[int, int, int], bias: bool, seed: int) -> None:
    h, W, b, *_ = make(size, "signed", seed)
    used = b if bias else None
    expected = reference.mean_support(*numpy(h, W), None if used is None else used.detach().numpy())
    np.testing.assert_allclose(mean_support(h, W, used), expected, rtol=1e-4, atol=1e-6)


def test_mean_support_of_nothing_positive_and_of_zeros() -> None:
    W = torch.tensor([[-1.0, -2.0, 4.0], [-3.0, -1.0, 2.0]])
    h = torch.tensor([[1.0, 1.0, 0.0], [1.0, -2.0, 0.0]])
    assert mean_support(h, W).tolist() == [0.0, 4.0]  # a contribution of 0 is no support


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_mean_support_is_nan_where_not_finite(bad: float) -> None:
    """Even where it would not count: in a contribution that is not positive, or in the weights of another class."""
    h, W = torch.tensor([[1.0, 1.0], [1.0, bad]]), torch.tensor([[3.0, 0.0], [1.0, 0.0]])
    assert mean_support(h, W).isnan().tolist() == [False, True]
    assert mean_support(h, W * torch.tensor([1.0, -1.0])).isnan().tolist() == [False, True]
    W[1, 0] = -bad
    assert mean_support(h, W).isnan().all()


def test_where_to_cut() -> None:
    h, W, b, *_ = make((8, 30, 10), "signed", 0)
    torch.testing.assert_close(threshold_estimate(h, W, b, 2.0), contribution_quantile(h, W, 0.8))
    torch.testing.assert_close(threshold_estimate(h, W, b, "auto"), mean_support(h, W, b))
