"""The kernels to test, each a module with `clip`, `clip_grad` and `quantile`, and inputs to test them on."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from spcp.contributions import eager, native, triton_kernels

needs_compiler = pytest.mark.skipif(not native.available(), reason="no C compiler when spcp was installed")
needs_triton = pytest.mark.skipif(not triton_kernels.available(), reason="Triton is not installed")
KERNELS = [pytest.param(eager, id="eager"), pytest.param(native, id="native", marks=needs_compiler)]
ALL_KERNELS = [*KERNELS, pytest.param(triton_kernels, id="triton", marks=needs_triton)]

# What a threshold is measured by: below, inside and above the range of contributions, on one of them, on zero.
SEEDS = st.integers(0, 2**32 - 1)
VALUES = ("signed", "relu", "ties")
THRESHOLDS = ("below", "inside", "above", "tie", "zero", "infinite")


def sizes(max_samples: int, max_features: int, max_classes: int) -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(
        st.integers(1, max_samples),
        st.integers(1, max_features),
        st.integers(1, max_classes),
    )


def make(size: tuple[int, int, int], values: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, weights, bias and a gradient: of both signs, after a ReLU, or small integers full of ties."""
    B, D, K = size
    rng = np.random.default_rng(seed)
    h, W = rng.normal(size=(B, D)), rng.normal(size=(K, D))
    if values == "relu":
        h = h.clip(min=0)
    if values == "ties":
        h, W = rng.integers(-2, 3, size=(B, D)), rng.integers(-2, 3, size=(K, D))
    arrays = (h, W, rng.normal(size=K), rng.normal(size=(B, K)))
    return tuple(torch.tensor(x, dtype=torch.float32) for x in arrays)  # type: ignore[return-value]


def threshold_for(kind: str, h: Tensor, W: Tensor, seed: int) -> Tensor:
    c = (h[:, None, :] * W).flatten()
    some = c[seed % len(c)]
    return {
        "below": c.min() - 1,
        "inside": c.median() + 0.1,
        "above": c.max() + 1,
        "tie": some,
        "zero": torch.tensor(0.0),
        "infinite": torch.tensor(torch.inf),
    }[kind]


def numpy(*tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(None if x is None else x.detach().numpy() for x in tensors)


def close(ours: Tensor, reference: np.ndarray, magnitude: np.ndarray | float) -> None:
    """Equal to float32 accuracy, where `magnitude` is the size of what was added up to get there."""
    error = np.abs(ours.detach().double().numpy() - reference)
    assert ours.shape == reference.shape
    assert np.all(error <= 2e-6 * np.asarray(magnitude) + 1e-30), error.max()
