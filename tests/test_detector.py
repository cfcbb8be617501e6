from __future__ import annotations

import itertools
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spcp import SPCPLinear, apply_spcp, config, data, training
from spcp.bank import FeatureBank
from spcp.conformal import split
from spcp.detector import Detector, read_notes
from spcp.errors import InputError
from spcp.scores import MEMBERS, Consensus, Score, build_score


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


def test_too_few_samples_of_a_class() -> None:
    with pytest.raises(InputError, match=r"class 0: .* too few"):
        Detector(model(), "energy").calibrate(torch.randn(60, 4), alpha=0.01, by_class=True)


def test_more_alpha_flags_more() -> None:
    detector, x = Detector(model(), "energy"), torch.randn(500, 4)
    flagged = [detector.calibrate(x, alpha).detect(x).is_ood for alpha in (0.01, 0.05, 0.2, 0.5)]
    for less, more in itertools.pairwise(flagged):
        assert (less <= more).all()
        assert less.sum() < more.sum()


def test_a_custom_score_is_saved_and_loaded(tmp_path: Path) -> None:
    class Norm(Score):
        def score(self, h: torch.Tensor, z: torch.Tensor, head: nn.Linear) -> torch.Tensor:
            return h.norm(dim=1)

    detector = Detector(model(), Norm()).calibrate(torch.randn(100, 4))
    path = detector.save(tmp_path / "d.safetensors")
    x = torch.randn(9, 4)
    assert torch.equal(Detector.load(path, model(1), Norm()).detect(x).scores, detector.detect(x).scores)
    with pytest.raises(InputError, match=r"Norm is not a score of this library; give it as score="):
        Detector.load(path, model(1))
    with pytest.raises(InputError, match="is of a network without SPCP, but this one truncates"):
        Detector.load(path, apply_spcp(model(1), rho_norm=1.0), Norm())


def test_detect() -> None:
    detector = Detector(Given(), "maxlogit").calibrate(torch.arange(1.0, 100.0)[:, None], alpha=0.05)
    result = detector.detect(torch.tensor([[0.0], [4.0], [5.0], [50.0], [1000.0], [float("nan")]]))
    assert result.is_ood.tolist() == [True, True, False, False, False, True]
    torch.testing.assert_close(result.p_values, torch.tensor([0.01, 0.05, 0.06, 0.51, 1.0, 0.0], dtype=torch.float64))
    assert result.scores[:5].tolist() == [0.0, 4.0, 5.0, 50.0, 1000.0]
    assert result.predictions.tolist() == [0] * 6
    _, _, is_ood = detector.eval()(torch.tensor([[4.0], [5.0]]))
    assert is_ood.tolist() == [True, False]
    with pytest.raises(InputError, match="has no threshold yet; call calibrate"):
        Detector(Given()).detect(torch.randn(3, 1))
    with pytest.raises(InputError, match="1 of 2 calibration scores are not a number"):
        Detector(Given(), "energy").calibrate(torch.tensor([[1.0], [float("nan")]]))
    with pytest.raises(InputError, match="Mahalanobis is not fitted"):
        Detector(model(), "mds").calibrate(torch.randn(60, 4))


def test_by_class_each_class_has_a_threshold() -> None:
    torch.manual_seed(0)
    net = model()
    x = torch.randn(3000, 4)
    detector = Detector(net, "energy").calibrate(x, alpha=0.1, by_class=True)
    fresh = detector.detect(torch.randn(20_000, 4))
    for k in range(3):
        rows = fresh.predictions == k
        if rows.sum() > 500:
            assert fresh.is_ood[rows].float().mean() == pytest.approx(0.1, abs=0.03)
    assert detector.score_thresholds.shape == (3,)
    _, _, is_ood = detector.eval()(x[:50])
    assert torch.equal(is_ood, detector.detect(x[:50]).is_ood)


def test_many_kinds_of_data() -> None:
    detector = Detector(model()).calibrate(torch.randn(100, 4))
    x = torch.randn(10, 4)
    expected = detector.detect(x)
    for form in ([x[:5], x[5:]], [(x, torch.zeros(10))], detector.bank(x)):
        assert torch.equal(detector.detect(form).scores, expected.scores)
    odin = Detector(model(), "odin").calibrate(torch.randn(100, 4))
    assert odin.detect(x).scores.shape == (10,)
    with pytest.raises(InputError, match="ODIN needs inputs, not features"):
        odin.detect(FeatureBank.of(torch.randn(3, 16), torch.randn(3, 3)))


@pytest.mark.parametrize("score", ["energy", "mds", "knn", "ash-s", "react", "consensus"])
def test_one_file_holds_everything(tmp_path: Path, score: str) -> None:
    """Also of a truncating head, for which the loading side needs a plain network only."""
    net = apply_spcp(model(), rho_norm=1.0, total_steps=5)
    for _ in range(5):
        net(torch.randn(64, 4))
    x, y = torch.randn(300, 4), torch.randint(3, (300,))
    detector = Detector(net, score).fit([(x, y)]).calibrate(torch.randn(200, 4), alpha=0.1, delta=0.2)
    path = detector.save(tmp_path / "d.safetensors", {"author": "me"})
    assert read_notes(path) == {"author": "me"}
    again = Detector.load(path, model(seed=1))
    fresh = torch.randn(50, 4) * 2
    for ours, theirs in zip(detector.detect(fresh), again.detect(fresh), strict=True):
        assert torch.equal(ours, theirs)
    assert isinstance(again.model.head, SPCPLinear)
    assert (again.alpha, again.delta) == (0.1, 0.2)
    with pytest.raises(InputError, match=r"d.safetensors: is for another network"):
        Detector.load(path, nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)))
    with pytest.raises(InputError, match="there is no such file"):
        Detector.load(tmp_path / "nothing", model())
    (tmp_path / "bad").write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not a safetensors file, or damaged"):
        Detector.load(tmp_path / "bad", model())


def test_without_truncation() -> None:
    net = apply_spcp(model(), rho_norm=1.0, total_steps=5)
    for _ in range(5):
        net(torch.randn(64, 4))
    x = torch.randn(100, 4)
    _, plain = Detector(net, "energy", truncate=False).scores(x)
    _, truncated = Detector(net, "energy").scores(x)
    truncating = Detector(net).bank(x)
    torch.testing.assert_close(Detector(net, "energy", truncate=False).scores(truncating)[1], plain)
    with torch.no_grad():
        h = net.eval()[:2](x)
        torch.testing.assert_close(plain, torch.logsumexp(nn.functional.linear(h, net[2].weight, net[2].bias), 1))
    assert (plain > truncated).any()


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["t2fnorm", "cider", "mos", "umap"])
def test_training_methods_with_special_outputs(tmp_path: Path, name: str) -> None:
    import training_run

    corners: data.Benchmark = training_run.benchmark()
    changes: dict[str, Any] = {"rho_norm": 1.0} if name == "t2fnorm" else {}
    if name == "umap":
        start = training.train(training_run.config("plain", 1), tmp_path / "plain", benchmark=corners)
        changes["start"] = str(start.folder / "last.safetensors")
    run = training.train(training_run.config(name, 2, warmup=0, **changes), tmp_path / "run", benchmark=corners)
    scored = run.load()
    assert scored.method is not None
    score = build_score(scored.method.score, **scored.method.score_options)
    detector = Detector(scored, score).fit(corners.loader("train", batch_size=60))
    detector.calibrate(corners.loader("test", batch_size=40), alpha=0.1)
    x, _ = next(iter(corners.loader("val", batch_size=40)))
    result = detector.detect(x)
    network: Any = scored.network
    with torch.no_grad():
        assert torch.equal(result.predictions, scored.method.predict(network, x))
    path = detector.save(tmp_path / "d.safetensors")
    again = Detector.load(path, config.build_network(run.config, corners.inputs()))
    for ours, theirs in zip(result, again.detect(x), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("score", ["energy", "mds", "dice", "gradnorm", "consensus"])
def test_exports_as_it_detects(score: str, truncate: bool) -> None:
    """As one graph, for batches of any size, though the network is in training mode."""
    net = apply_spcp(model(), rho_norm=1.0, total_steps=5)
    for _ in range(5):
        net(torch.randn(64, 4))
    detector = Detector(net, score, truncate=truncate).fit([(torch.randn(300, 4), torch.randint(3, (300,)))])
    detector.calibrate(torch.randn(200, 4), by_class=False)
    batch = torch.export.Dim("batch", min=2, max=1000)
    program = torch.export.export(detector, (torch.randn(8, 4),), dynamic_shapes=({0: batch},)).module()
    x = torch.randn(50, 4) * 2
    expected = detector.detect(x)
    predictions, scores, is_ood = program(x)
    assert net.training
    assert torch.equal(predictions, expected.predictions)
    torch.testing.assert_close(scores.detach(), expected.scores)
    assert torch.equal(is_ood, expected.is_ood)


@pytest.mark.parametrize("score", ["energy", "dice", "odin", "two-views", "consensus"])
def test_threads_may_share_a_detector(score: str) -> None:
    net = apply_spcp(model(), rho_norm=1.0, total_steps=5)
    for _ in range(5):
        net(torch.randn(64, 4))
    detector = Detector(net, score).fit([(torch.randn(300, 4), torch.randint(3, (300,)))]).calibrate(torch.randn(99, 4))
    inputs = [torch.randn(16, 4) for _ in range(8)]
    expected, wrong = [detector.detect(x) for x in inputs], []

    def work(i: int) -> None:
        for _ in range(20):
            if not all(map(torch.equal, detector.detect(inputs[i]), expected[i])):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert net.training


@pytest.mark.parametrize("score", ["consensus", "react", "two-views"])
def test_what_a_score_is_fitted_on_is_not_calibrated_on(tmp_path: Path, score: str) -> None:
    """Also when the same data is given again, and after loading."""
    x = torch.randn(1000, 4)
    detector = Detector(model(), score)
    reference, rest = split(1000, 0.05)
    for _ in range(2):
        detector.calibrate(x)
        assert len(detector.calibration_scores) == len(rest) == 499
        expected = Detector(model(), score).fit_held_out(x[reference]).calibrate(x[rest])
        assert torch.equal(detector.calibration_scores, expected.calibration_scores)
        assert torch.equal(detector.score_thresholds, expected.score_thresholds)
        detector = Detector.load(detector.save(tmp_path / "d.safetensors"), model(1))
    given = Detector(model(), score).fit_held_out(x[:100])
    assert len(given.calibrate(x[100:]).calibration_scores) == 900  # nothing has to be set apart


def test_the_promise_of_the_default() -> None:
    """At most alpha of new ID samples are flagged, on average over calibration sets of 60 samples."""
    rng = torch.Generator().manual_seed(0)
    net = model()
    new = torch.randn(500, 4, generator=rng)
    detector = Detector(net).fit([(torch.randn(300, 4, generator=rng), torch.randint(3, (300,), generator=rng))])
    rates = torch.tensor(
        [
            detector.calibrate(torch.randn(60, 4, generator=rng), 0.1).detect(new).is_ood.double().mean()
            for _ in range(150)
        ]
    )
    assert rates.mean() <= 0.1 + 3 * rates.std() / 150**0.5
    assert rates.mean() >= 0.1 - 4 * rates.std() / 150**0.5


def test_explain_says_which_members_and_features() -> None:
    net = model()
    x, y = torch.randn(300, 4), torch.randint(3, (300,))
    detector = Detector(net).fit([(x, y)]).calibrate(torch.randn(200, 4))
    new = torch.cat([torch.randn(5, 4), 30 * torch.ones(1, 4)])
    detection, reasons = detector.detect(new), detector.explain(new)
    assert [reason.is_ood for reason in reasons] == detection.is_ood.tolist()
    assert [reason.p_value for reason in reasons] == detection.p_values.tolist()
    assert [reason.prediction for reason in reasons] == detection.predictions.tolist()
    score = detector.score
    assert isinstance(score, Consensus)
    for i, reason in enumerate(reasons):
        assert set(reason.members) == set(MEMBERS["default"])
        assert list(reason.members.values()) == sorted(reason.members.values())
        product = sum(math.log(p) for p in reason.members.values())
        if product > -100:  # p itself underflows for what is far away
            assert product == pytest.approx(detection.scores[i].item(), abs=1e-3)
        assert reason.contributions is not None
        h = net[1](net[0](new[i]))
        torch.testing.assert_close(reason.contributions.contributions, h * net[2].weight[reason.prediction])
    far = reasons[-1]
    assert far.is_ood
    assert "rmds" in far.raised_by()
    assert str(far).startswith("OOD, p = ")
    (single,) = Detector(net, "energy").calibrate(x).explain(new[:1])
    assert single.members == {"energy": single.p_value}
