from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spcp import SPCPLinear, apply_spcp, data, training
from spcp.calibration import Detector, needed, p_values, rank_for
from spcp.errors import InputError
from spcp.features import Features
from spcp.scores import Score


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


class Given(nn.Module):
    """A model whose maximum logit is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 2, bias=False)
        self.fc.weight.data = torch.tensor([[1.0], [1.0]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("alpha", "n"), [(0.05, 19), (0.05, 100), (0.1, 37), (0.2, 11), (0.01, 250)])
def test_at_most_alpha_is_flagged(alpha: float, n: int, ties: bool) -> None:
    """In expectation over the calibration draw: 4000 draws of n + 1 exchangeable scores."""
    rng = np.random.default_rng(0)
    flagged = []
    for _ in range(4000):
        scores = rng.normal(size=n + 1)
        scores = torch.tensor(scores.round(0 if ties else 9))
        threshold = scores[:n].sort().values[rank_for(n, alpha) - 1]
        verdict = bool(scores[n] < threshold)
        assert verdict == (p_values(scores[n:], scores[:n].sort().values).item() <= alpha + 1e-12)
        flagged.append(verdict)
    error = 3 * math.sqrt(alpha * (1 - alpha) / 4000)
    assert np.mean(flagged) <= alpha + error
    if not ties:
        exact = math.floor(alpha * (n + 1) + 1e-9) / (n + 1)
        assert abs(np.mean(flagged) - exact) <= error  # and no less than promised


@pytest.mark.parametrize(("alpha", "delta", "n"), [(0.05, 0.1, 45), (0.05, 0.1, 200), (0.1, 0.05, 500), (0.2, 0.3, 30)])
def test_at_most_alpha_with_probability(alpha: float, delta: float, n: int) -> None:
    """For all but a share delta of calibration draws, the share of known samples that is flagged is at most alpha."""
    rng = np.random.default_rng(0)
    k = rank_for(n, alpha, delta)
    rates = np.sort(rng.uniform(size=(20_000, n)), axis=1)[:, k - 1]  # uniform scores: the threshold is the rate
    assert np.mean(rates > alpha) <= delta + 3 * math.sqrt(delta / 20_000)
    following = np.sort(rng.uniform(size=(20_000, n)), axis=1)[:, k]
    assert np.mean(following > alpha) > delta  # the next rank would break the promise


def test_too_few_samples_says_how_many() -> None:
    with pytest.raises(
        InputError, match=r"18 calibration samples are too few for alpha = 0.05; at least 19 are needed"
    ):
        rank_for(18, 0.05)
    with pytest.raises(InputError, match=r"44 .* for alpha = 0.05 and delta = 0.1; at least 45 are needed"):
        rank_for(44, 0.05, 0.1)
    with pytest.raises(InputError, match=r"alpha = 1 must lie between 0 and 1"):
        rank_for(44, 1)
    for alpha in (0.5, 0.3, 0.1, 0.05, 0.01, 0.001):
        assert rank_for(needed(alpha), alpha) == 1
        assert rank_for(needed(alpha, 0.1), alpha, 0.1) >= 1
    with pytest.raises(InputError, match=r"class 0: .* too few"):
        Detector(model()).calibrate(torch.randn(60, 4), alpha=0.01, by_class=True)


def test_a_rank_at_the_edge() -> None:
    """Where delta is exactly what the fewest samples can promise, rounding must not take the threshold away."""
    assert rank_for(4, 0.5, 0.0625) == 1
    assert rank_for(45, 0.05, 0.95**45) == 1


def test_more_alpha_flags_more() -> None:
    detector, x = Detector(model()), torch.randn(500, 4)
    flagged = [detector.calibrate(x, alpha).detect(x).is_ood for alpha in (0.01, 0.05, 0.2, 0.5)]
    for less, more in itertools.pairwise(flagged):
        assert (less <= more).all()
        assert less.sum() < more.sum()


def test_a_score_of_ones_own_is_saved_and_loaded(tmp_path: Path) -> None:
    class Norm(Score):
        def score(self, h: torch.Tensor, z: torch.Tensor, head: nn.Linear) -> torch.Tensor:
            return h.norm(dim=1)

    detector = Detector(model(), Norm()).calibrate(torch.randn(100, 4))
    path = detector.save(tmp_path / "d.safetensors")
    x = torch.randn(9, 4)
    assert torch.equal(Detector.load(path, model(1), Norm()).detect(x).scores, detector.detect(x).scores)
    with pytest.raises(InputError, match=r"its score is Norm, of your own; give it to load as score="):
        Detector.load(path, model(1))
    with pytest.raises(InputError, match="is of a network without SPCP, and this one truncates"):
        Detector.load(path, apply_spcp(model(1), rho_norm=1.0), Norm())


def test_detect() -> None:
    detector = Detector(Given(), "maxlogit").calibrate(torch.arange(1.0, 100.0)[:, None], alpha=0.05)
    found = detector.detect(torch.tensor([[0.0], [4.0], [5.0], [50.0], [1000.0], [float("nan")]]))
    assert found.is_ood.tolist() == [True, True, False, False, False, True]
    torch.testing.assert_close(found.p_values, torch.tensor([0.01, 0.05, 0.06, 0.51, 1.0, 0.0], dtype=torch.float64))
    assert found.scores[:5].tolist() == [0.0, 4.0, 5.0, 50.0, 1000.0]
    assert found.predictions.tolist() == [0] * 6
    _, _, is_ood = detector.eval()(torch.tensor([[4.0], [5.0]]))
    assert is_ood.tolist() == [True, False]
    with pytest.raises(InputError, match="has no threshold yet; call calibrate"):
        Detector(Given()).detect(torch.randn(3, 1))
    with pytest.raises(InputError, match="1 of 2 calibration scores are not a number"):
        Detector(Given()).calibrate(torch.tensor([[1.0], [float("nan")]]))
    with pytest.raises(InputError, match="Mahalanobis is not fitted"):
        Detector(model(), "mds").calibrate(torch.randn(60, 4))


def test_by_class_each_class_has_its_own_threshold() -> None:
    torch.manual_seed(0)
    net = model()
    x = torch.randn(3000, 4)
    detector = Detector(net).calibrate(x, alpha=0.1, by_class=True)
    fresh = detector.detect(torch.randn(20_000, 4))
    for k in range(3):
        own = fresh.predictions == k
        if own.sum() > 500:
            assert fresh.is_ood[own].float().mean() == pytest.approx(0.1, abs=0.03)
    assert detector.thresholds.shape == (3,)
    _, _, is_ood = detector.eval()(x[:50])
    assert torch.equal(is_ood, detector.detect(x[:50]).is_ood)


def test_many_kinds_of_data() -> None:
    detector = Detector(model()).calibrate(torch.randn(100, 4))
    x = torch.randn(10, 4)
    expected = detector.detect(x)
    for form in ([x[:5], x[5:]], [(x, torch.zeros(10))], detector.features(x)):
        assert torch.equal(detector.detect(form).scores, expected.scores)
    odin = Detector(model(), "odin").calibrate(torch.randn(100, 4))
    assert odin.detect(x).scores.shape == (10,)
    with pytest.raises(InputError, match="ODIN needs inputs, not features"):
        odin.detect(Features.of(torch.randn(3, 16), torch.randn(3, 3)))


@pytest.mark.parametrize("score", ["energy", "mds", "knn", "ash-s", "react"])
def test_one_file_holds_everything(tmp_path: Path, score: str) -> None:
    """Also of a truncating head, for which the loading side needs a plain network only."""
    net = apply_spcp(model(), rho_norm=1.0, total_steps=5)
    for _ in range(5):
        net(torch.randn(64, 4))
    x, y = torch.randn(300, 4), torch.randint(3, (300,))
    detector = Detector(net, score).fit([(x, y)]).calibrate(torch.randn(200, 4), alpha=0.1, delta=0.2)
    path = detector.save(tmp_path / "d.safetensors")
    again = Detector.load(path, model(seed=1))
    fresh = torch.randn(50, 4) * 2
    for ours, theirs in zip(detector.detect(fresh), again.detect(fresh), strict=True):
        assert torch.equal(ours, theirs)
    assert isinstance(again.head, SPCPLinear)
    assert (again.alpha, again.delta) == (0.1, 0.2)
    with pytest.raises(InputError, match=r"d.safetensors: is for another network"):
        Detector.load(path, nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)))
    with pytest.raises(InputError, match="there is no such file"):
        Detector.load(tmp_path / "nothing", model())
    (tmp_path / "bad").write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not a detector's file, or damaged"):
        Detector.load(tmp_path / "bad", model())


def test_a_plain_head_by_request() -> None:
    net = apply_spcp(model(), rho_norm=1.0, total_steps=5)
    for _ in range(5):
        net(torch.randn(64, 4))
    x = torch.randn(100, 4)
    _, plain = Detector(net, head="plain").scores(x)
    _, truncated = Detector(net).scores(x)
    truncating = Detector(net).features(x)
    torch.testing.assert_close(Detector(net, head="plain").scores(truncating)[1], plain)
    with torch.no_grad():
        h = net.eval()[:2](x)
        torch.testing.assert_close(plain, torch.logsumexp(nn.functional.linear(h, net[2].weight, net[2].bias), 1))
    assert (plain > truncated).any()
    with pytest.raises(InputError, match="head is 'flat'"):
        Detector(net, head="flat")


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("method", ["t2fnorm+spcp", "cider", "mos", "umap"])
def test_training_methods_with_outputs_of_their_own(tmp_path: Path, method: str) -> None:
    import training_run

    own: data.Benchmark = training_run.benchmark()
    changes: dict[str, Any] = {}
    if method == "umap":
        start = training.train(training_run.config("plain", 1), tmp_path / "plain", benchmark=own)
        changes["start"] = str(start / "last.safetensors")
    folder = training.train(training_run.config(method, 2, warmup=0, **changes), tmp_path / "run", benchmark=own)
    network, method = training.load_network(folder)
    from spcp.calibration import build_score

    score = build_score(method.detector, **method.detector_options)
    detector = Detector(network, score, method=method).fit(own.loader("train", batch_size=60))
    detector.calibrate(own.loader("test", batch_size=40), alpha=0.1)
    x, _ = next(iter(own.loader("val", batch_size=40)))
    found = detector.detect(x)
    with torch.no_grad():
        assert torch.equal(found.predictions, method.predict(network, x))
    path = detector.save(tmp_path / "d.safetensors")
    again = Detector.load(path, training.build_network(training.read_config(folder), own.inputs()))
    for ours, theirs in zip(found, again.detect(x), strict=True):
        assert torch.equal(ours, theirs)
