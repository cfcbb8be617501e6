import copy
import dataclasses
import io
import itertools
import math
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spcp import SPCPLinear, Truncation, clip_contributions
from spcp.contributions import effective_threshold, mean_support, plain_head

from .kernels import numpy


def make_head(**options: object) -> SPCPLinear:
    defaults = {"rho_norm": 1.0, "beta": 0.9, "initial_threshold": 2.0, "total_steps": 1000}
    return SPCPLinear(12, 6, truncation=Truncation(**{**defaults, **options}))  # type: ignore[arg-type]


def features(*shape: int) -> Tensor:
    return torch.rand(*(shape or (16,)), 12)


def test_is_a_linear_layer() -> None:
    head = make_head()
    assert isinstance(head, nn.Linear)
    assert head.weight.shape == (6, 12)
    described = "in_features=12, out_features=6, bias=True, rho_norm=1, beta=0.9, stages='both'"
    assert repr(head) == f"SPCPLinear({described})"
    assert repr(make_head(subset=7)) == f"SPCPLinear({described}, subset=7)"


def test_a_linear_layer_becomes_a_head_and_back() -> None:
    class Same(nn.Linear):
        pass

    class Rectified(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.relu())

    for linear in (nn.Linear(12, 6), Same(12, 6, bias=False)):
        kind, h = type(linear), features()
        expected = linear(h)
        assert SPCPLinear.convert_(linear, Truncation(1.0)) is linear
        assert isinstance(linear, SPCPLinear)
        assert linear.revert_() is linear
        assert type(linear) is kind
        assert torch.equal(linear(h), expected)
    with pytest.raises(TypeError, match=r"Rectified does more than an nn\.Linear"):
        SPCPLinear.convert_(Rectified(12, 6), Truncation(1.0))


def test_estimates_then_moves_the_threshold_then_truncates() -> None:
    head, expected = make_head(), 2.0
    for _ in range(5):
        h = features()
        z = head(h)
        expected = reference.threshold_step(expected, *numpy(h, head.weight), rho_norm=1.0, beta=0.9)
        assert head.threshold.item() == pytest.approx(expected, rel=1e-6)
        torch.testing.assert_close(z, clip_contributions(h, head.weight, head.bias, head.threshold))
    assert head.updates.item() == 5


def test_evaluation_leaves_the_threshold_and_truncates() -> None:
    head = make_head()
    head(features())
    head.eval()
    before, h = head.threshold.clone(), features()
    torch.testing.assert_close(head(h), clip_contributions(h, head.weight, head.bias, before))
    assert torch.equal(head.threshold, before)


@pytest.mark.parametrize(
    ("stages", "training", "evaluation"),
    [("both", True, True), ("train", True, False), ("infer", False, True), ("neither", False, False)],
)
def test_stages(stages: str, training: bool, evaluation: bool) -> None:
    head = make_head(stages=stages, initial_threshold=0.05)
    for mode, truncates in ((True, training), (False, evaluation)):
        h = features()
        z = head.train(mode)(h)
        plain = nn.functional.linear(h, head.weight, head.bias)
        assert torch.equal(z, plain) != truncates
        assert head.updates.item() == 1  # updated whether it is used or not, in training only


def test_the_effective_threshold_and_the_plain_head() -> None:
    h = features()
    for head in (nn.Linear(12, 6), make_head(stages="train"), make_head(rho_norm=0), nn.Identity()):
        assert effective_threshold(head) is None
    for stages in ("both", "infer"):
        head = make_head(stages=stages, initial_threshold=0.05).eval()
        assert effective_threshold(head) is head.threshold
        plain = plain_head(head)
        assert effective_threshold(plain) is None
        assert plain.weight is head.weight
        assert torch.equal(plain(h), nn.functional.linear(h, head.weight, head.bias))
        assert not torch.equal(head(h), plain(h))
    for head in (nn.Linear(12, 6), make_head(stages="train")):
        assert plain_head(head) is head


def test_the_hyperparameters_can_be_changed_later() -> None:
    head = make_head(beta=None)
    head.truncation = dataclasses.replace(head.truncation, total_steps=391, stages="infer")
    assert head.beta == pytest.approx(0.999**100)
    assert head.threshold.item() == 2.0
    with pytest.raises(ValueError, match="rho_norm is 7"):
        head.truncation = Truncation(7.0)
    assert head.truncation.rho_norm == 1.0


def test_rho_norm_zero_is_the_plain_layer() -> None:
    head, h = make_head(rho_norm=0), features()
    assert torch.equal(head(h), nn.functional.linear(h, head.weight, head.bias))
    assert head.updates.item() == 0


def test_a_fixed_threshold_stays() -> None:
    head, h = make_head(beta=1, initial_threshold=0.05), features()
    assert not head.is_adaptive
    torch.testing.assert_close(head(h), clip_contributions(h, head.weight, head.bias, 0.05))
    assert head.threshold.item() == pytest.approx(0.05)


def test_beta_follows_the_length_of_the_run() -> None:
    assert make_head(beta=None, total_steps=None).beta == pytest.approx(0.999)
    assert make_head(beta=None, total_steps=39100).beta == pytest.approx(0.999)
    assert make_head(beta=None, total_steps=391).beta == pytest.approx(0.999**100)
    assert make_head(beta=0.5, total_steps=391).beta == 0.5


def test_estimates_on_a_subset() -> None:
    h = features(64)
    torch.manual_seed(1)
    part = h[torch.randperm(64)[:4]]
    torch.manual_seed(1)
    head = make_head(subset=4)
    weight = head.weight
    torch.manual_seed(1)
    head(h)
    assert head.threshold.item() == pytest.approx(
        reference.threshold_step(2.0, *numpy(part, weight), 1.0, 0.9), rel=1e-6
    )
    torch.manual_seed(2)
    part = h[torch.randperm(64)[:20]]  # more samples than features
    head.truncation = dataclasses.replace(head.truncation, subset=20)
    expected = reference.threshold_step(head.threshold.item(), *numpy(part, weight), 1.0, 0.9)
    torch.manual_seed(2)
    head(h)
    assert head.threshold.item() == pytest.approx(expected, rel=1e-6)
    before = torch.get_rng_state()
    head(h[:20])  # nothing to draw
    assert torch.equal(torch.get_rng_state(), before)
    small = features(3)  # a subset larger than the batch is the batch
    expected = reference.threshold_step(head.threshold.item(), *numpy(small, weight), 1.0, 0.9)
    head(small)
    assert head.threshold.item() == pytest.approx(expected, rel=1e-6)


def test_leading_dimensions_and_an_empty_batch() -> None:
    head, h = make_head(), features(2, 3)
    twin = copy.deepcopy(head)
    assert head(h).shape == (2, 3, 6)
    twin(h.reshape(6, 12))
    assert torch.equal(head.threshold, twin.threshold)
    before = head.threshold.clone()
    assert head(h[:0]).shape == (0, 3, 6)
    assert torch.equal(head.threshold, before)
    assert head.updates.item() == 1


# ---- warnings and errors


def test_bad_features_raise_and_leave_the_threshold() -> None:
    head = make_head()
    head(features())
    before = head.threshold.clone()
    for bad in (math.nan, math.inf):
        h = features()
        h[3, 4] = bad
        with pytest.raises(ValueError, match=r"not finite.*threshold was left at"):
            head(h)
        assert torch.equal(head.threshold, before)
    for parameter, bad in itertools.product((head.bias, head.weight), (math.nan, math.inf)):
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.flatten()[0] = bad
        with pytest.raises(ValueError, match="not finite"):
            head(features())
        with torch.no_grad():
            parameter.copy_(kept)
    assert torch.equal(head.threshold, before)
    assert head.updates.item() == 1
    head(features())  # what was reported is not reported again
    assert head.updates.item() == 2


class Elsewhere(Tensor):
    """Says that it is on another device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


def test_another_device_is_looked_at_every_100_steps() -> None:
    head = make_head(stages="infer", initial_threshold=0.5)
    head.estimate = lambda h: h.as_subclass(Tensor).mean(1)  # type: ignore[method-assign]
    for _ in range(2):
        before = head.updates.item()
        for step in range(1, 100):
            h = torch.full((4, 12), math.nan if step in (1, 30) else 0.5)
            head(h.as_subclass(Elsewhere))
        assert head.updates.item() == before + 97
        with pytest.raises(ValueError, match=r"not finite; its threshold was left at 0\.5"):
            head(torch.full((4, 12), 0.5).as_subclass(Elsewhere))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
def test_bad_features_are_reported_later_where_each_step_cannot_be_looked_at() -> None:
    """On a GPU, and in a compiled step, which is what can be tested everywhere."""
    head = make_head()
    step = torch.compile(head, fullgraph=True, backend="aot_eager")
    step(features())
    before = head.threshold.clone()
    step(features() * math.nan)
    assert torch.equal(head.threshold, before)
    assert head.updates.item() == 1
    step(features())
    assert head.updates.item() == 2
    with pytest.raises(ValueError, match="not finite"):
        head.eval()


def test_warns_once_that_truncation_never_switched_on() -> None:
    head = make_head(beta=0.999, initial_threshold=1000.0, total_steps=4)
    for _ in range(3):
        head(features())
    assert head.is_warming_up
    head.eval()  # a validation in the middle of the run: nothing to warn of yet
    head.train()(features())
    with pytest.warns(UserWarning, match="SPCP did nothing"):
        head.eval()
    head.train().eval()
    again = make_head(beta=0.999, initial_threshold=1000.0, total_steps=1)
    again(features())
    again.train()  # it goes on
    with pytest.warns(UserWarning, match="SPCP did nothing"):
        again.eval()


def test_warms_up_until_more_is_learned_than_is_left_of_the_initial_threshold() -> None:
    """After one step with beta 0.5, half of the initial 2.0 is left; the rest is half of what was learned."""
    head = make_head(beta=0.5)
    assert not head.is_warming_up  # no step yet
    assert not make_head(initial_threshold=math.inf).is_warming_up
    head.updates.fill_(1)
    for learned, warming_up in ((0.9, True), (1.1, False)):
        head.threshold.fill_(1.0 + 0.5 * learned)
        assert head.is_warming_up is warming_up


def test_warns_when_the_run_ends_a_little_early_or_the_threshold_is_infinite() -> None:
    for options in ({"beta": 0.999, "initial_threshold": 1000.0}, {"initial_threshold": math.inf}):
        head = make_head(total_steps=10, **options)
        for _ in range(9):
            head(features())
        with pytest.warns(UserWarning, match="SPCP did nothing"):
            head.eval()


def test_warns_once_that_it_was_never_trained() -> None:
    head = SPCPLinear(12, 6, truncation=Truncation(1.0)).eval()
    with pytest.warns(UserWarning, match=r"nothing is truncated: .* fit_threshold"):
        head(features())
    head(features())


def test_does_not_warn_of_what_is_not_trained_or_does_not_truncate() -> None:
    for options in ({"beta": 1, "initial_threshold": 1000.0}, {"stages": "train", "initial_threshold": None}):
        make_head(**options).eval()(features())
    make_head(beta=1, initial_threshold=-1.0).eval()  # a fixed threshold is the caller's
    SPCPLinear(12, 6, truncation=Truncation(1.0), device="meta").eval()


def test_does_not_warn_when_it_was() -> None:
    head = make_head(beta=None, total_steps=50, initial_threshold=1000.0)
    for _ in range(50):
        head(features())
    assert not head.is_warming_up
    head.eval()


def test_warns_once_that_the_threshold_is_not_positive() -> None:
    head = make_head(rho_norm=5, initial_threshold=0.0)
    with pytest.warns(UserWarning, match="rho_norm = 5 is large for 6 classes"):
        head(features())
    assert head.threshold < 0
    head(features())
    # Half of the features zero: the quantile is zero, and the threshold decays towards it from above.
    head = make_head(rho_norm=2, beta=0.1, initial_threshold=1.0)
    few = features() * (torch.arange(12) < 3)
    for _ in range(6):
        head(few)
    with pytest.warns(UserWarning, match="rho_norm = 2 is large"):
        head(few)
    assert head.threshold > 0
    with pytest.warns(UserWarning, match="The SPCP threshold is 0, so no contribution"):
        make_head(initial_threshold=0.0)(torch.zeros(4, 12))


def test_a_threshold_that_only_its_initial_value_holds_up_is_not_positive() -> None:
    """After 7 steps with beta 0.1, 5e-6 of the initial 50 are left."""
    head = make_head(beta=0.1, initial_threshold=50.0)
    head.updates.fill_(7)
    head.threshold.fill_(8e-6)  # some of it was learned
    head.eval().train()
    head.threshold.fill_(5.02e-6)
    with pytest.warns(UserWarning, match="no contribution is positive any more"):
        head.eval()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"rho_norm": -0.1}, "rho_norm is -0.1; it must lie between 0 and 6"),
        ({"rho_norm": 6.1}, "rho_norm is 6.1; it must lie between 0 and 6"),
        ({"rho_norm": math.nan}, "rho_norm is nan"),
        ({"beta": 1.1}, "beta is 1.1; it must lie between 0 and 1"),
        ({"total_steps": 0}, "total_steps is 0; it must be at least 1"),
        ({"initial_threshold": math.nan}, "initial_threshold is NaN"),
        ({"stages": "test"}, "stages is 'test'; it must be 'both'"),
        ({"subset": 0}, "subset is 0; it must be at least 1"),
        ({"rho_norm": "a"}, "rho_norm is 'a'; it must be a number"),
        ({"beta": 1, "initial_threshold": None}, "fixed threshold .* needs initial_threshold"),
        ({"total_steps": 1.5}, "total_steps is 1.5; it must be a whole number"),
    ],
)
def test_bad_options_are_named(option: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make_head(**option)


def test_a_wrong_dimension_is_named() -> None:
    with pytest.raises(ValueError, match=r"h has shape \(4, 11\)"):
        make_head()(torch.rand(4, 11))
    with pytest.raises(TypeError, match=r"torch\.int64"):
        make_head()(torch.ones(4, 12, dtype=torch.int64))


# ---- the state dict


def test_state_dict_carries_threshold_and_hyperparameters(tmp_path: Path) -> None:
    head = make_head(rho_norm=np.float32(2.5), stages="train", subset=7, total_steps=11, beta=None)
    head(features())
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    other = SPCPLinear(12, 6, truncation=Truncation(0.1))
    other.load_state_dict(load_file(tmp_path / "head.safetensors"))
    assert other.truncation == head.truncation == Truncation(2.5, None, 11, 2.0, "train", 7)
    assert other.beta == head.beta
    assert torch.equal(other.threshold, head.threshold)
    assert torch.equal(other.updates, head.updates)
    h = features()
    torch.manual_seed(5)
    z = head(h)
    torch.manual_seed(5)
    assert torch.equal(other(h), z)


def test_a_linear_layers_state_dict_loads() -> None:
    linear, head = nn.Linear(12, 6), make_head(rho_norm=2.0)
    head.load_state_dict(linear.state_dict())
    assert torch.equal(head.weight, linear.weight)
    assert head.truncation.rho_norm == 2.0
    model = nn.Sequential(make_head())
    model.load_state_dict(nn.Sequential(linear).state_dict())
    broken = {key: value for key, value in head.state_dict().items() if key != "threshold"}
    with pytest.raises(RuntimeError, match="threshold"):
        head.load_state_dict(broken)


def test_hyperparameters_of_a_damaged_checkpoint_are_refused() -> None:
    head = make_head()
    state = head.state_dict()
    wrong = SPCPLinear(12, 60, truncation=Truncation(30.0)).state_dict()["_extra_state"]
    with pytest.raises(ValueError, match="rho_norm is 30"):
        head.load_state_dict({**state, "_extra_state": wrong})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_moving_to_another_dtype_keeps_the_threshold_precise(dtype: torch.dtype) -> None:
    head = make_head(initial_threshold=0.123456789).to(dtype)
    assert head.threshold.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert head.threshold.item() == pytest.approx(0.123456789, rel=1e-7)
    z = head(features().to(dtype))
    assert z.dtype == dtype
    z.sum().backward()
    assert head.weight.grad is not None


def test_a_half_precision_checkpoint_leaves_the_threshold_precise() -> None:
    head = make_head()
    half = {key: x.bfloat16() if x.is_floating_point() else x for key, x in head.state_dict().items()}
    head.load_state_dict(half, assign=True)
    assert head.threshold.dtype == torch.float32


def test_reset_and_meta_device() -> None:
    head = make_head()
    head(features())
    head.reset_parameters()
    assert head.threshold.item() == 2.0
    assert head.updates.item() == 0
    head.nonfinite.fill_(True)  # by a step that could not be looked at
    head.reset_parameters()
    head.eval()
    lazy = SPCPLinear(12, 6, truncation=Truncation(1.0), device="meta").to_empty(device="cpu")
    lazy.reset_parameters()
    assert lazy.threshold.item() == 1000.0
    lazy(features())


# ---- what it must survive


def test_deepcopy_and_pickle() -> None:
    head, h = make_head(), features()
    head(h)
    saved = io.BytesIO()
    torch.save(head, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(head), pickle.loads(pickle.dumps(head)), torch.load(saved, weights_only=False)):
        assert torch.equal(twin.eval()(h), copy.deepcopy(head).eval()(h))
        twin.train()(h)
    assert head.updates.item() == 1


def train_steps(head: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    outputs = []
    for h in batches:
        z = head(h)
        z.square().sum().backward()
        outputs.append(z.detach())
    return outputs


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
def test_torch_compile() -> None:
    head = make_head()
    compiled = torch.compile(copy.deepcopy(head), fullgraph=True, backend="aot_eager")
    batches = [features() for _ in range(3)]
    for z, expected in zip(train_steps(compiled, batches), train_steps(head, batches), strict=True):
        torch.testing.assert_close(z, expected)
    torch.testing.assert_close(compiled.weight.grad, head.weight.grad)
    torch.testing.assert_close(compiled.threshold, head.threshold)
    torch.testing.assert_close(compiled.eval()(batches[0]), head.eval()(batches[0]))


def test_torch_export() -> None:
    """The program is made of standard operators, takes any batch and gives the same logits."""
    head = make_head(initial_threshold=0.05).eval()
    program = torch.export.export(head, (features(),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert all("spcp" not in str(node.target) for node in program.graph.nodes)
    h = features(5)
    torch.testing.assert_close(program.module()(h), head(h))


def test_an_exported_head_with_many_classes_works_in_parts() -> None:
    head = SPCPLinear(2048, 300, truncation=Truncation(1.0, initial_threshold=0.01)).eval()
    h = torch.rand(64, 2048)
    program = torch.export.export(head, (h,))
    largest = max(node.meta["val"].numel() for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor))
    assert largest <= 64 * 2048 * 300 / 30
    torch.testing.assert_close(program.module()(h), head(h), rtol=1e-4, atol=1e-4)


def test_gradient_accumulation() -> None:
    """Two forward passes before their backward passes: each keeps the threshold of its time."""
    head, (h1, h2) = make_head(beta=0.5, initial_threshold=1.0), (features(), 5 * features())
    z1 = head(h1)
    first = head.threshold.item()
    z2 = head(h2)
    second = head.threshold.item()
    assert first != second
    g = torch.ones_like(z1)
    z1.backward(g)
    z2.backward(g)
    expected = sum(
        reference.clip_gradients(*numpy(g, h, head.weight), lam)[1] for h, lam in ((h1, first), (h2, second))
    )
    np.testing.assert_allclose(head.weight.grad.numpy(), expected, rtol=1e-5)  # type: ignore[union-attr]


def test_a_training_step_between_an_evaluation_and_its_backward_pass() -> None:
    head, h = make_head(), features().requires_grad_()
    z = head.eval()(h)
    head.train()(features())
    z.sum().backward()
    assert h.grad is not None


def test_a_subset_leaves_dropout_alone_when_recomputing() -> None:
    body = nn.Sequential(nn.Dropout(), make_head(subset=3), nn.Dropout())
    h = features().requires_grad_()
    z = checkpoint(body, h, use_reentrant=False, preserve_rng_state=True)
    kept = z != 0
    z.sum().backward()
    assert torch.equal(body[1].bias.grad, 2 * kept.sum(0).float())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_updates_once(use_reentrant: bool) -> None:
    head = make_head(beta=0.5, initial_threshold=0.2)
    plain = copy.deepcopy(head)
    h = features()
    inputs = [h.clone().requires_grad_(), h.clone().requires_grad_()]
    checkpoint(head, inputs[0], use_reentrant=use_reentrant).square().sum().backward()
    plain(inputs[1]).square().sum().backward()
    assert head.updates.item() == 1
    assert torch.equal(head.threshold, plain.threshold)
    torch.testing.assert_close(head.weight.grad, plain.weight.grad)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


def test_autocast() -> None:
    model = nn.Sequential(nn.Linear(12, 12), make_head())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = model(features())
    assert z.dtype == torch.float32
    z.sum().backward()
    assert model[0].weight.grad is not None
    assert model[1].updates.item() == 1


def test_no_warning_in_an_ordinary_step() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_head()(features()).sum().backward()


def test_auto_follows_the_mean_support() -> None:
    head = SPCPLinear(30, 10, truncation=Truncation("auto", 0.5, 100, 2.0))
    h = torch.rand(16, 30)
    expected = 0.5 * 2.0 + 0.5 * mean_support(h, head.weight, head.bias).mean()
    z = head(h)
    torch.testing.assert_close(head.threshold, expected)
    torch.testing.assert_close(z, clip_contributions(h, head.weight, head.bias, head.threshold))
    other = SPCPLinear(30, 10, truncation=Truncation(1.0))
    other.load_state_dict(head.state_dict())
    assert other.truncation.rho_norm == "auto"
    assert "rho_norm=auto" in repr(other)
    assert torch.equal(other.eval()(h), head.eval()(h))


def test_the_mean_is_that_of_the_global_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes, one of which is played here; tests/contributions/test_distributed.py starts real ones."""
    ours, theirs = features(3), features(5)
    one, two = make_head(), make_head()
    two.load_state_dict(one.state_dict())
    one(torch.cat([ours, theirs]))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    estimates = two.estimate(theirs)
    monkeypatch.setattr(
        torch.distributed, "all_reduce", lambda total: total.add_(torch.stack([estimates.sum(), torch.tensor(5.0)]))
    )
    with monkeypatch.context() as alone:
        alone.setattr(torch.distributed, "get_world_size", lambda: 1)
        alone.setattr(torch.distributed, "all_reduce", lambda total: pytest.fail("there is nobody to ask"))
        make_head()(ours)
    two(ours)
    assert two.threshold.item() == pytest.approx(one.threshold.item(), rel=1e-6)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total: None)
    before = two.threshold.item()
    two(features(0))  # nobody has a sample
    assert two.threshold.item() == pytest.approx(before, rel=1e-6)
    two(features(1))  # one has one
    assert abs(two.threshold.item() - before) > 1e-3


def test_without_a_look_at_the_device_the_threshold_moves_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As compiled, or on a GPU: what is not finite is noted, and the error comes at the next look."""
    looking, blind, h = make_head(), make_head(), features()
    blind.load_state_dict(looking.state_dict())
    looking(h)
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        blind(h)
        assert not blind.nonfinite
        blind(torch.full((2, 12), math.nan))
        assert blind.nonfinite
    assert blind.threshold.item() == pytest.approx(looking.threshold.item(), rel=1e-6)
    assert blind.updates.item() == 1
    with pytest.raises(ValueError, match="are not finite; its threshold was left at"):
        blind.eval()


def test_no_positive_support_is_told() -> None:
    head = make_head(rho_norm="auto", beta=0.0)
    with torch.no_grad():
        head.weight.fill_(-1.0)
    with pytest.warns(UserWarning, match=r"has no positive contributions either; look at the features\.$"):
        head(features())


def test_a_head_without_a_bias_learns_its_threshold() -> None:
    head, h = SPCPLinear(12, 6, bias=False, truncation=Truncation(1.0, 0.9, initial_threshold=2.0)), features()
    head(h)
    expected = reference.threshold_step(2.0, *numpy(h, head.weight), rho_norm=1.0, beta=0.9)
    assert head.threshold.item() == pytest.approx(expected, rel=1e-6)
