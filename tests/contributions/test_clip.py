import subprocess
import sys
import textwrap
import types
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spcp import clip_contributions
from spcp.contributions import as_operator, class_parts, eager, native, ops, triton_kernels

from .kernels import (
    ALL_KERNELS,
    KERNELS,
    SEEDS,
    THRESHOLDS,
    VALUES,
    close,
    make,
    needs_compiler,
    needs_triton,
    numpy,
    sizes,
    threshold_for,
)


def check_against_reference(
    kernels: ModuleType, h: Tensor, W: Tensor, b: Tensor | None, g: Tensor, lam: Tensor
) -> None:
    arrays = numpy(h, W, b)
    size = np.abs(arrays[0])[:, None, :] * np.abs(arrays[1])  # (B, K, D)
    largest = (
        size.sum(-1) + (0 if b is None else np.abs(arrays[2])) + (h.shape[1] * abs(lam.item()) if lam.isfinite() else 0)
    )
    close(kernels.clip(h, W, b, lam), reference.clip_logits(*arrays, lam.item()), largest)
    grad_h, grad_W = kernels.clip_grad(g, h, W, lam, True, True)
    expected_h, expected_W, _ = reference.clip_gradients(*numpy(g, h, W), lam.item())
    close(grad_h, expected_h, (g.abs() @ W.abs()).numpy())
    close(grad_W, expected_W, (g.abs().T @ h.abs()).numpy())


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("threshold", THRESHOLDS)
@given(size=sizes(9, 20, 19), seed=SEEDS, has_bias=st.booleans())
def test_kernels_match_the_dense_reference(
    kernels: ModuleType, values: str, threshold: str, size: tuple[int, int, int], seed: int, has_bias: bool
) -> None:
    h, W, b, g = make(size, values, seed)
    check_against_reference(kernels, h, W, b if has_bias else None, g, threshold_for(threshold, h, W, seed))


@needs_triton
@pytest.mark.parametrize("threshold", THRESHOLDS)
@settings(max_examples=10)  # the interpreter is slow
@given(size=sizes(18, 18, 18), values=st.sampled_from(VALUES), seed=SEEDS)
def test_triton_matches_the_dense_reference(threshold: str, size: tuple[int, int, int], values: str, seed: int) -> None:
    h, W, b, g = make(size, values, seed)
    check_against_reference(triton_kernels, h, W, b, g, threshold_for(threshold, h, W, seed))


@needs_compiler
@pytest.mark.parametrize("many_classes", [0, 10**9], ids=["sparse", "dense"])
@pytest.mark.parametrize("threshold", THRESHOLDS)
@given(size=sizes(150, 150, 20), values=st.sampled_from(VALUES), seed=SEEDS)
def test_both_native_strategies_match_the_dense_reference(
    many_classes: int, threshold: str, size: tuple[int, int, int], values: str, seed: int
) -> None:
    h, W, b, g = make(size, values, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "MANY_SAMPLES", 0)
        patch.setattr(native, "MANY_CLASSES", many_classes)
        check_against_reference(native, h, W, b, g, threshold_for(threshold, h, W, seed))


@pytest.mark.parametrize("kernels", ALL_KERNELS)
def test_only_the_wanted_gradient_is_computed(kernels: ModuleType) -> None:
    h, W, _, g = make((5, 7, 3), "signed", 0)
    lam = torch.tensor(0.1)
    both = kernels.clip_grad(g, h, W, lam, True, True)
    for wanted in ((True, False), (False, True)):
        grads = kernels.clip_grad(g, h, W, lam, *wanted)
        for grad, full, want in zip(grads, both, wanted, strict=True):
            assert torch.equal(grad, full) if want else grad.numel() == 0


def test_the_closed_form_is_the_papers_definition() -> None:
    """A contribution is what the logit loses when the weight is set to zero; no other class's logit changes."""
    h, W, b, _ = make((3, 5, 4), "signed", 0)
    by_definition = reference.contributions_by_definition(*numpy(h.double(), W.double(), b.double()))  # (B, K, K, D)
    lam = 0.3
    dense = np.stack([by_definition[:, k, k] for k in range(4)], 1)  # (B, K, D)
    others = by_definition.copy()
    for k in range(4):
        others[:, k, k] = 0
    assert np.abs(others).max() < 1e-12
    expected = np.minimum(dense, lam).sum(-1) + b.double().numpy()
    np.testing.assert_allclose(
        clip_contributions(h.double(), W.double(), b.double(), lam).numpy(), expected, atol=1e-12
    )


def test_gradients_through_the_public_interface() -> None:
    h, W, b, g = make((6, 8, 5), "signed", 0)
    inputs = [x.double().requires_grad_() for x in (h, W, b)]
    torch.autograd.gradcheck(lambda *x: clip_contributions(*x, 0.2), inputs)
    clip_contributions(*(inputs32 := [x.requires_grad_() for x in (h, W, b)]), 0.2).backward(g)
    for x, expected in zip(inputs32, reference.clip_gradients(*numpy(g, h, W), float(np.float32(0.2))), strict=True):
        np.testing.assert_allclose(x.grad.numpy(), expected, atol=1e-5)


def test_no_gradient_reaches_the_threshold_and_a_tie_passes_it() -> None:
    threshold = torch.tensor(2.0, requires_grad=True)
    h, W = torch.tensor([[1.0, 2.0]], requires_grad=True), torch.tensor([[2.0, 3.0]], requires_grad=True)
    clip_contributions(h, W, None, threshold).sum().backward()  # contributions 2, a tie, and 6, truncated
    assert threshold.grad is None
    assert h.grad is not None
    assert W.grad is not None
    assert h.grad.tolist() == [[2.0, 0.0]]
    assert W.grad.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    h, W, b, g = (x.to(dtype) for x in make((6, 8, 5), "signed", 0))
    leaves = [x.requires_grad_() for x in (h, W, b)]
    z = clip_contributions(*leaves, 0.25)
    assert z.dtype == dtype
    # Half-precision inputs are computed in float32, so only the result is rounded.
    exact = reference.clip_logits(*numpy(h.float(), W.float(), b.float()), 0.25)
    np.testing.assert_allclose(z.float().detach().numpy(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    z.backward(g)
    assert all(x.grad is not None and x.grad.dtype == dtype for x in leaves)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_logits_are_float32(
    dtype: torch.dtype, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "kernels_for", lambda _: kernels)
    h, W, b, _ = make((6, 8, 5), "signed", 0)
    W.requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        z = clip_contributions(h.to(dtype), W, b, 0.25)
    assert z.dtype == torch.float32
    assert torch.equal(z, clip_contributions(h.to(dtype).float(), W, b, 0.25))
    z.sum().backward()
    assert W.grad is not None
    assert W.grad.dtype == torch.float32


def test_leading_dimensions_strides_and_empty_batches() -> None:
    h, W, b, _ = make((24, 8, 5), "signed", 0)
    z = clip_contributions(h, W, b, 0.1)
    torch.testing.assert_close(clip_contributions(h.reshape(2, 3, 4, 8), W, b, 0.1), z.reshape(2, 3, 4, 5))
    torch.testing.assert_close(clip_contributions(h[0], W, b, 0.1), z[0])
    assert torch.equal(clip_contributions(h, W, b, torch.tensor([[0.1]])), z)  # a threshold of one element
    strided = torch.empty(8, 48).T[::2].copy_(h)
    assert not strided.is_contiguous()
    z_strided = clip_contributions(strided, torch.empty(8, 5).T.copy_(W), b.repeat(2, 1).T[:, 0], 0.1)
    torch.testing.assert_close(z_strided, z)
    empty = torch.empty(3, 0, 8, requires_grad=True)
    W.requires_grad_()
    z = clip_contributions(empty, W, b, 0.1)
    assert z.shape == (3, 0, 5)
    z.sum().backward()
    assert torch.equal(W.grad, torch.zeros_like(W))  # type: ignore[arg-type]


def test_infinite_threshold_is_the_linear_layer_and_nan_stays_nan() -> None:
    h, W, b, _ = make((6, 8, 5), "signed", 0)
    torch.testing.assert_close(clip_contributions(h, W, b, torch.inf), torch.nn.functional.linear(h, W, b))
    h[2, 3] = torch.nan
    assert clip_contributions(h, W, b, 0.1).isnan().all(1).tolist() == [False, False, True, False, False, False]


class Largest(TorchDispatchMode):
    """Watches how large tensors get."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            self.elements = max(self.elements, x.numel() if isinstance(x, Tensor) else 0)
        return out


def test_the_plain_kernels_work_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "CHUNK", 5000)
    h, W, b, g = make((60, 20, 30), "relu", 0)
    for work in (
        lambda: eager.clip(h, W, b, torch.tensor(0.5)),
        lambda: eager.clip_grad(g, h, W, torch.tensor(0.5), True, True),
        lambda: eager.quantile(h, W, 0.9),
    ):
        with Largest() as largest:
            work()
        assert 1000 < largest.elements <= 5000 < 60 * 20 * 30


@needs_compiler
def test_the_compiled_kernels_need_no_dense_matrix() -> None:
    """Peak memory of a separate process: the dense matrix would take 1.6 GB."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux's /proc")
    code = """
        import torch
        from spcp import clip_contributions, contribution_quantile
        h, W = torch.rand(256, 1024).requires_grad_(), torch.randn(1500, 1024).requires_grad_()
        def peak():
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024
        clip_contributions(h[:1], W, None, 0.5)
        before = peak()
        contribution_quantile(h, W, 1 - 0.4 / 1500)
        clip_contributions(h, W, None, 1.0).sum().backward()
        print(peak() - before)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert 0 < int(run.stdout) < 150  # megabytes


@needs_compiler
@pytest.mark.parametrize("outlier", [1e6, torch.inf])
def test_logits_do_not_depend_on_the_batch(outlier: float) -> None:
    """A sample with huge features is what this library is for: beside others it gets the logits it gets alone."""
    h, W, b, _ = make((200, 64, 600), "relu", 0)
    h, W = h + 0.01, W.abs() + 0.01
    h[7] *= outlier
    lam = torch.tensor(0.1)
    together, alone = native.clip(h, W, b, lam), native.clip(h[7:8], W, b, lam)
    torch.testing.assert_close(together[7:8], alone)
    torch.testing.assert_close(alone, (64 * lam + b)[None])


@pytest.mark.parametrize(
    ("kernels", "size"),
    [
        pytest.param(eager, (8, 24, 9), id="eager"),
        pytest.param(native, (8, 24, 9), id="native-dense", marks=needs_compiler),
        pytest.param(native, (128, 24, 512), id="native-sparse", marks=needs_compiler),
    ],
)
@pytest.mark.parametrize("scales", [(1.0, 1.0), (1e19, 1e18), (1e37, 1.0), (1.0, 3e37), (1e38, 1.0)], ids=str)
@pytest.mark.parametrize("values", ["signed", "relu"])
def test_large_magnitudes(
    kernels: ModuleType, size: tuple[int, int, int], scales: tuple[float, float], values: str
) -> None:
    """Sums of contributions near the largest float: as exact as elsewhere, and finite where the truncated sum is."""
    h, W, b, g = make(size, values, 0)
    h, W, g = h * scales[0], W * scales[1], g * 1e-3
    c = h[:, None, :] * W  # (B, K, D), rounded and overflowed as the kernels' are
    for lam in (c[c.isfinite()].median(), torch.tensor(1.0), torch.tensor(0.0), c.abs().quantile(0.01)):
        kept = torch.minimum(c.double(), lam.double())
        expected, largest = kept.sum(-1) + b, kept.abs().sum(-1) + b.abs()
        fits = largest < 3.4e38
        z = kernels.clip(h, W, b, lam).double()
        assert fits.any()
        assert z[fits].isfinite().all()
        assert ((z - expected).abs() <= 2e-6 * largest)[fits].all()
        passed = (c <= lam).double()
        for ours, terms in zip(
            kernels.clip_grad(g, h, W, lam, True, True),
            ("bk,kd,bkd->bd", "bk,bd,bkd->kd"),
            strict=True,
        ):
            other = W if terms.endswith("bd") else h
            exact = torch.einsum(terms, g.double(), other.double(), passed)
            size_ = torch.einsum(terms, g.double().abs(), other.double().abs(), torch.ones_like(passed))
            fits = torch.einsum(terms, g.double().abs(), other.double().abs(), passed) < 3.4e38
            assert ours[fits].isfinite().all()
            assert ((ours.double() - exact).abs() <= 2e-6 * size_)[fits].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("samples", [0, 6])
def test_operators_keep_their_promises(dtype: torch.dtype, transposed: bool, samples: int) -> None:
    """To torch.compile: shapes and strides as declared, nothing aliased or changed."""
    h, W, b, g = (x.to(dtype) for x in make((6, 8, 5), "signed", 0))
    h, g = h[:samples], g[:samples]
    if transposed:
        h, W = (x.T.contiguous().T for x in (h, W))
    lam = torch.tensor(0.1, dtype=dtype)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.spcp.clip, (h, W, b, lam), test_utils=tests)
    torch.library.opcheck(torch.ops.spcp.contribution_quantile, (h, W, 0.9), test_utils=tests)
    for wanted in ((True, True), (True, False), (False, True)):
        torch.library.opcheck(torch.ops.spcp.clip_grad, (g, h, W, lam, *wanted), test_utils=tests)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda h, W, b: (h.long(), W, b, 1.0), TypeError, "h is of dtype torch.int64"),
        (lambda h, W, b: (h, W.long(), b, 1.0), TypeError, "W is of dtype torch.int64"),
        (lambda h, W, b: (h, W, b.long(), 1.0), TypeError, "b is of dtype torch.int64"),
        (lambda h, W, b: (h, W[0], b, 1.0), ValueError, r"W has shape \(8,\)"),
        (lambda h, W, b: (h[:, :7], W, b, 1.0), ValueError, r"h has shape \(6, 7\); its last dimension must be D = 8"),
        (lambda h, W, b: (h, W, b[:2], 1.0), ValueError, r"b has shape \(2,\)"),
        (lambda h, W, b: (h.double(), W, b, 1.0), TypeError, "features are of dtype torch.float64, the weights"),
        (lambda h, W, b: (h, W, b, torch.ones(3)), ValueError, r"threshold has shape \(3,\)"),
        (lambda h, W, b: (h, W, b, torch.ones(2)), ValueError, r"threshold has shape \(2,\)"),
        (lambda h, W, b: (h, W, b, float("nan")), ValueError, "threshold is NaN"),
        (lambda h, W, b: (h[:0], W, b, float("nan")), ValueError, "threshold is NaN"),
        (lambda h, W, b: (h, W.to("meta"), b, 1.0), ValueError, "features are on cpu, the weights on meta"),
        (lambda h, W, b: (h, W, b.to("meta"), 1.0), ValueError, "features are on cpu, the bias on meta"),
        (lambda h, W, b: (h, W, b, torch.tensor(torch.nan)), ValueError, "threshold is NaN"),
        (lambda h, W, b: (h.double(), W.double(), b.double(), torch.tensor(torch.nan)), ValueError, "threshold is NaN"),
    ],
)
def test_bad_input_is_named(change, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        clip_contributions(*change(*make((6, 8, 5), "signed", 0)[:3]))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_classes", [1, 31, 32, 33, 70])
def test_the_formula_in_standard_operators(num_classes: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.export sees: a few classes at a time."""
    monkeypatch.setattr("spcp.contributions.clip._is_exporting", lambda: True)
    h, W, b = torch.randn(5, 9), torch.randn(num_classes, 9), torch.randn(num_classes) if bias else None
    expected = reference.clip_logits(*numpy(h, W, b), 0.5)
    np.testing.assert_allclose(clip_contributions(h, W, b, 0.5), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(clip_contributions(h[0], W, b, 0.5), expected[0], rtol=1e-5, atol=1e-5)


def test_which_kernels_serve_what() -> None:
    def on(device: str, dtype: torch.dtype = torch.float32) -> object:
        return types.SimpleNamespace(device=types.SimpleNamespace(type=device), dtype=dtype)

    assert ops.kernels_for(on("mps")) is eager  # type: ignore[arg-type]
    assert ops.kernels_for(on("cpu", torch.float64)) is eager  # type: ignore[arg-type]
    assert ops.kernels_for(on("cuda")) is (triton_kernels if triton_kernels.available() else eager)  # type: ignore[arg-type]


def test_a_bias_learns_alone() -> None:
    h, W, b, g = make((6, 8, 5), "signed", 0)
    clip_contributions(h, W, b.requires_grad_(), 0.1).backward(g)
    torch.testing.assert_close(b.grad, g.sum(0))


def test_an_exported_program_keeps_the_operator_only_where_asked() -> None:
    class Clip(torch.nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return clip_contributions(h, torch.ones(3, 4), None, 0.5)

    def operators() -> set[str]:
        program = torch.export.export(Clip(), (torch.ones(2, 4),))
        return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}

    with as_operator():
        assert "spcp.clip.default" in operators()
    assert "spcp.clip.default" not in operators()


@pytest.mark.parametrize("switch", ["spcp.contributions.clip._is_exporting", "torch.compiler.is_compiling"])
def test_a_graph_takes_a_few_classes_at_a_time(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    """At most 32 parts of one size, but for the last; without a graph, which takes a batch in parts, all at once."""
    assert class_parts(torch.ones(1000, 3)) == [slice(0, 1000)]
    monkeypatch.setattr(switch, lambda: True)
    for classes, size in ((1000, 32), (64, 2), (65, 3), (7, 1)):
        expected = [slice(k, k + size) for k in range(0, classes, size)]
        assert class_parts(torch.ones(classes, 3)) == expected
        assert len(expected) <= 32
