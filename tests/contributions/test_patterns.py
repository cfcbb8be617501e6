import numpy as np
import pytest
import reference
import torch
from torch import nn

from spcp import apply_spcp, contribution_pattern, explain, fit_threshold, remove_spcp, sparsity
from spcp.contributions import patterns


def make_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))
    return apply_spcp(model, rho_norm=1.0, initial_threshold=0.05)


def features(model: nn.Sequential, x: torch.Tensor) -> np.ndarray:
    return model.eval()[:4](x).detach().double().numpy()


@pytest.mark.parametrize("chunk", [1, 100, 1 << 22])
def test_mean_contributions(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "CHUNK", chunk)
    model, x = make_model(), torch.randn(50, 4)
    batches = [(x[:30], torch.zeros(30)), [x[30:], torch.zeros(20)]]
    pattern = contribution_pattern(model, batches)
    c = reference.contributions(features(model, x), model[4].weight.detach().numpy())
    lam = model[4].threshold.item()
    np.testing.assert_allclose(pattern.contributions, np.minimum(c, lam).mean(0), atol=1e-6)
    np.testing.assert_allclose(pattern.truncated, (c > lam).mean(0), atol=1e-6)
    assert pattern.samples == 50
    assert pattern.truncated.max() > 0
    assert pattern.sparsity() == sparsity(pattern.contributions)


def test_a_plain_head_is_not_truncated() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(10, 4)
    pattern = contribution_pattern(model, [x])
    torch.testing.assert_close(pattern.contributions, model[0].weight * x.mean(0))
    assert pattern.truncated.sum() == 0


def test_the_model_is_left_as_it_was() -> None:
    model = make_model()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    contribution_pattern(model, [torch.randn(9, 4)])
    explain(model, torch.randn(9, 4))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not model[4]._forward_hooks


def test_no_data_is_named() -> None:
    with pytest.raises(ValueError, match="data holds no samples"):
        contribution_pattern(make_model(), [])


def test_fit_threshold() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(50, 4)
    with pytest.raises(ValueError, match="'2' is a plain Linear; call apply_spcp"):
        fit_threshold(model, [x])
    apply_spcp(model, rho_norm=0.5, stages="infer")
    threshold = fit_threshold(model, [x[:20], x[20:]])
    h = model[:2](x).detach().double().numpy()
    expected = reference.quantile(h, model[2].weight.detach().double().numpy(), 1 - 0.5 / 3).mean()
    assert threshold == pytest.approx(expected, rel=1e-5)
    assert model[2].threshold.item() == threshold
    assert model(x).shape == (50, 3)


def test_kinds_of_data() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return self.fc(pixels)

    model, x = Named(), torch.randn(5, 4)
    torch.testing.assert_close(
        contribution_pattern(model, [{"pixels": x}]).contributions, contribution_pattern(model, [(x, 0)]).contributions
    )
    assert len(explain(model, {"pixels": x})) == 5
    with pytest.raises(TypeError, match="data is a tensor; give batches"):
        contribution_pattern(model, x)


@pytest.mark.parametrize("make", [torch.ones, torch.rand, torch.randn])
@pytest.mark.parametrize("size", [(1,), (3, 7), (20, 30)])
def test_sparsity(make, size: tuple[int, ...]) -> None:  # type: ignore[no-untyped-def]
    c = make(*size)
    measured, expected = sparsity(c), reference.sparsity(c.double().numpy())
    for key, value in expected.items():
        assert getattr(measured, key) == pytest.approx(value, abs=1e-12), key


def test_sparsity_of_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="All contributions are zero"):
        sparsity(torch.zeros(3, 4))


def test_explain() -> None:
    model, x = make_model(), torch.randn(5, 4)
    model[4].threshold.fill_(0.1)
    logits = model.eval()(x)
    for h, z, explanation in zip(features(model, x), logits, explain(model, x), strict=True):
        assert explanation.prediction == z.argmax()
        assert explanation.logit == pytest.approx(z.max().item())
        c = h * model[4].weight[explanation.prediction].detach().numpy()
        np.testing.assert_allclose(explanation.contributions, c, atol=1e-6)
        assert explanation.is_truncated.tolist() == (c > explanation.threshold).tolist()
        assert np.all(np.diff(c[explanation.features]) <= 0)
        bias = model[4].bias[explanation.prediction].item()
        assert np.minimum(c, explanation.threshold).sum() + bias == pytest.approx(explanation.logit, abs=1e-5)
        assert f"class {explanation.prediction}, logit" in str(explanation)
    assert any("truncated to 0.1" in str(explanation) for explanation in explain(model, x))


def test_the_classifier_must_run_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.fc(x))

    with pytest.raises(ValueError, match="ran 2 times"):
        explain(Twice(), torch.randn(2, 4))


@pytest.mark.filterwarnings("ignore:The SPCP threshold is -:UserWarning")
def test_a_threshold_that_changes_many_predictions_is_named(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 5))
    x = torch.randn(200, 4)
    plain = network(x).argmax(1)
    apply_spcp(network, rho_norm=0.01, stages="infer")
    fit_threshold(network, [x])
    assert not caplog.messages  # hardly anything is truncated
    apply_spcp(remove_spcp(network), rho_norm=4.0, stages="infer")
    fit_threshold(network, x.split(50))
    changed = 100 * float((network.eval()(x).argmax(1) != plain).double().mean())
    assert changed > 10
    (said,) = caplog.messages
    assert f"changes the predictions of {changed:.0f} % of these samples; compare detection with the plain" in said
