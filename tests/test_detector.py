from __future__ import annotations

import copy
import gc
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuzz
import pytest
import torch
from torch import nn

from spcp import SPCPLinear, apply_spcp, config, data, networks, remove_spcp, training
from spcp.bank import FeatureBank
from spcp.conformal import split
from spcp.detector import Detector, Reasons, read_notes
from spcp.errors import InputError
from spcp.files import read_tensors, write_tensors
from spcp.methods import CrossEntropy
from spcp.model import ScoredModel
from spcp.scores import MEMBERS, SCORES, Consensus, Score, build_score


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
        torch.testing.assert_close(detector.detect(form).scores, expected.scores)
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
    torch.testing.assert_close(scores.detach(), expected.scores, rtol=1e-4, atol=1e-4)  # sums in another order
    assert torch.equal(is_ood, expected.is_ood)


@pytest.mark.parametrize("score", ["odin", "energy", "gradnorm", "dice"])
def test_under_inference_mode(score: str) -> None:
    detector = Detector(model(), score).fit([(torch.randn(60, 4), torch.arange(60) % 3)]).calibrate(torch.randn(99, 4))
    x = torch.randn(8, 4)
    expected = detector.detect(x).scores
    with torch.inference_mode():
        assert torch.equal(detector.detect(x).scores, expected)
        assert torch.equal(detector.detect(x.clone()).scores, expected)


class Layered(nn.Module):
    """Has what evaluation mode changes: BatchNorm, dropout, and a head that truncates."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5))
        self.fc = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x))


def in_training(hooked: bool) -> Layered:
    """A network in the middle of its training."""
    torch.manual_seed(0)
    net = apply_spcp(Layered(), rho_norm=0.3, total_steps=5)
    for _ in range(5):
        net(torch.randn(64, 4))
    if hooked:
        net.fc.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))
        net.fc.register_forward_hook(lambda module, inputs, output: output + 0.25)
        net.body.register_forward_hook(lambda module, inputs, output: output + 0.125)
    return net.train()


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_threads_may_share_a_detector(name: str, hooked: bool) -> None:
    """Also one whose network is in training: nothing of it changes, and the scores are those of evaluation mode."""
    net = in_training(hooked)
    options = {"groups": [[0, 1]]} if name == "mos" else {}
    detector = Detector(net, build_score(name, **options))
    detector.fit([(torch.randn(300, 4), torch.randint(3, (300,)))]).calibrate(torch.randn(99, 4))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    inputs, results = [torch.randn(16, 4) for _ in range(8)], [[] for _ in range(8)]  # type: ignore[var-annotated]
    expected = [detector.detect(x) for x in inputs]

    def work(i: int) -> None:
        results[i] += [detector.detect(inputs[i]) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(each) for each in results] == [10] * 8  # no thread ended in an exception
    for each, one in zip(results, expected, strict=True):
        assert all(torch.equal(*pair) for result in each for pair in zip(result, one, strict=True))
    assert all(module.training for module in net.modules())
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert len(net.fc._forward_hooks) == len(net.fc._forward_pre_hooks) == int(hooked)
    evaluating = Detector(copy.deepcopy(net).eval(), detector.score)
    assert all(torch.equal(evaluating.scores(x)[1], one.scores) for x, one in zip(inputs, expected, strict=True))


def test_changes_of_the_network_between_two_calls_count() -> None:
    net, x = in_training(hooked=False), torch.randn(8, 4)
    detector = Detector(net, "energy").calibrate(torch.randn(99, 4))
    detector.detect(x)

    def anew() -> torch.Tensor:
        return Detector(copy.deepcopy(net).eval(), "energy").scores(x)[1]

    def changes() -> Iterator[None]:
        with torch.no_grad():
            net.fc.weight.mul_(2.0)
            yield
            net.body[1].running_mean.add_(1.0)
            yield
            net.fc.threshold.fill_(0.05)
            yield
        net.body[0] = nn.Linear(4, 16)
        yield
        net.body[2] = nn.Tanh()
        yield
        net.body[0].weight = nn.Parameter(torch.randn(16, 4))
        yield
        net.body[1].eps = 1.0
        yield
        net.body.append(nn.Softplus())
        yield
        remove_spcp(net)
        yield
        net.load_state_dict({key: value + 0.01 for key, value in net.state_dict().items()})
        yield

    last = detector.scores(x)[1]
    for _ in changes():
        assert torch.equal(detector.scores(x)[1], anew())
        assert not torch.equal(last, anew())
        last = anew()
        net.train(not net.training)
        assert torch.equal(detector.scores(x)[1], last)


def test_what_a_view_held_is_freed_at_once() -> None:
    """Views refer to the network's tensors: none may wait for the garbage collector."""
    model = ScoredModel(Layered())
    gc.disable()
    try:
        view = weakref.ref(model.head)
        assert view() is None
    finally:
        gc.enable()


FORK = """
import os, signal, sys, threading, warnings
import torch
from spcp import Detector, networks
warnings.simplefilter("ignore")
torch.set_num_threads(2)
detector = Detector(networks.cnn(100, width=8)).calibrate(torch.randn(99, 1, 12, 12))
x = torch.randn(128, 1, 12, 12)
expected, stop = detector.detect(x).scores, threading.Event()
def work():
    while not stop.is_set():
        detector.detect(x)
        Detector(networks.mlp(3, inputs=4, width=4))
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(3):
    child = os.fork()
    if not child:
        signal.alarm(60)
        again = Detector(detector.model.network).calibrate(torch.randn(99, 1, 12, 12)).detect(x)
        os._exit(0 if torch.allclose(detector.detect(x).scores, expected) and len(again.scores) == 128 else 1)
    ended = os.waitpid(child, 0)[1]
    if ended: break
stop.set()
for thread in threads: thread.join()
sys.exit(ended and 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_process_whose_threads_detect_does_not_hang() -> None:
    environment = dict(os.environ, OMP_NUM_THREADS="2")
    assert subprocess.run([sys.executable, "-c", FORK], env=environment, timeout=300).returncode == 0


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Never another exception, never another decision: all of the file is under its checksum."""
    net = apply_spcp(model(), rho_norm=1.0, beta=1.0, initial_threshold=0.5)
    path = Detector(net, "energy").calibrate(torch.randn(99, 4)).save(tmp_path / "d.safetensors")
    content = path.read_bytes()
    for seed in range(200):
        bad = fuzz.damaged(path, content, random.Random(seed))
        path.unlink()
        path.write_bytes(bad)
        if bad != content:
            with pytest.raises(InputError, match=r"d.safetensors: .*; (calibrate it again|check the path)"):
                Detector.load(path, model())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 2.0}, "alpha = 2.0 must be a number, from"),
        ({"alpha": "0.05"}, "alpha = '0.05' is not valid"),
        ({"delta": float("nan")}, "delta = nan must be"),
        ({"by_class": True}, "its calibration scores are not those of 3 groups"),
        ({"options": {"T": "cold"}}, "cannot be loaded"),
        ({"method": {"name": "none"}}, "cannot be loaded"),
        ({"classifier": "1"}, "classifier='1' is a ReLU"),
        ({"score_thresholds": torch.tensor([float("nan")])}, "its score threshold is not finite"),
        ({"score_thresholds": torch.tensor([-float("inf")])}, "its score threshold is not finite"),
        ({"score_thresholds": torch.zeros(2)}, "its score threshold is not"),
        ({"calibration_scores": torch.tensor([2.0, 1.0, *[3.0] * 97])}, "its calibration scores are not sorted"),
        ({"calibration_scores": torch.tensor([*range(98), float("nan")])}, "its calibration scores are not sorted"),
        ({"group_starts": torch.tensor([0, 98])}, "its calibration scores are not those of 1 groups"),
        ({"group_starts": torch.tensor([0.0, 99.0])}, "its calibration scores are not those of 1 groups"),
    ],
)
def test_what_no_calibration_gives_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """Also where the checksum is right."""
    path = Detector(model(), "energy").calibrate(torch.randn(99, 4)).save(tmp_path / "d.safetensors")
    tensors, notes = read_tensors(path)
    tensors |= {name: value for name, value in change.items() if name in tensors}
    about = json.loads(notes["detector"]) | {name: value for name, value in change.items() if name not in tensors}
    path.unlink()
    write_tensors(path, tensors, {"detector": json.dumps(about)})
    with pytest.raises(InputError, match=rf"d.safetensors: .*{re.escape(message)}"):
        Detector.load(path, model())


def test_a_threshold_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    detector = Detector(model(), "energy").calibrate(torch.randn(99, 4))
    detector.score_thresholds[0] = float("nan")
    with pytest.raises(InputError, match="its score threshold is not finite; check the calibration data"):
        detector.save(tmp_path / "d.safetensors")
    assert not any(tmp_path.iterdir())


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
        torch.testing.assert_close(detector.calibration_scores, expected.calibration_scores)
        torch.testing.assert_close(detector.score_thresholds, expected.score_thresholds)
        detector = Detector.load(detector.save(tmp_path / "d.safetensors"), model(1))
    given = Detector(model(), score).fit_held_out(x[:100])
    assert len(given.calibrate(x[100:]).calibration_scores) == 900  # nothing has to be set apart


@pytest.mark.parametrize("score", ["consensus", "react", "klm", "two-views"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_held_out_samples_that_are_not_finite_are_one_sentence(score: str, value: float) -> None:
    x = torch.randn(300, 4)
    detector = Detector(model(), score).fit([(x, torch.arange(300) % 3)])
    reference, rest = split(300, 0.05)
    for part, message in ((reference, "ID samples have features that are not finite"), (rest, "are not a number")):
        odd = x.clone()
        odd[part[0]] = value
        with pytest.raises(InputError, match=f"1 of {len(part)} .*{message}.*; check the inputs"):
            detector.calibrate(odd)
    with pytest.raises(InputError, match="1 of 1 ID samples have features that are not finite; check the inputs"):
        detector.fit_held_out(torch.full((1, 4), value))


def test_held_out_samples_whose_scores_overflow_are_one_sentence() -> None:
    x = torch.randn(300, 4)
    odd = x.clone()
    odd[split(300, 0.05)[0][0]] = 1e30
    with pytest.raises(
        InputError, match=r"1 of \d+ held-out ID samples have scores that are not finite; check the inputs"
    ):
        Detector(model()).fit([(x, torch.arange(300) % 3)]).calibrate(odd)


def test_the_promise_of_the_default() -> None:
    """At most alpha of new ID samples are flagged, on average over calibration sets of 60 samples."""
    rng = torch.Generator().manual_seed(0)
    net = model()
    detector = Detector(net).fit([(torch.randn(300, 4, generator=rng), torch.randint(3, (300,), generator=rng))])
    rates = torch.tensor(
        [
            detector.calibrate(torch.randn(60, 4, generator=rng), 0.1)
            .detect(torch.randn(100, 4, generator=rng))
            .is_ood.double()
            .mean()
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
        if min(reason.members.values()) > 0:  # it underflows for what is far away; the score does not
            total = sum(math.log(p) for p in reason.members.values())
            assert total == pytest.approx(detection.scores[i].item(), rel=1e-3)
        assert reason.contributions is not None
        h = net[1](net[0](new[i]))
        torch.testing.assert_close(reason.contributions.contributions, h * net[2].weight[reason.prediction])
    far = reasons[-1]
    assert far.is_ood
    assert "mds" in far.raised_by()
    assert str(far).startswith("OOD, p = ")
    (single,) = Detector(net, "energy").calibrate(x).explain(new[:1])
    assert single.members == {"energy": single.p_value}
    for given in (new.numpy(), [new[:4], new[4:]], iter([new]), detector.bank(new)):
        explained = detector.explain(given)
        assert [reason.is_ood for reason in explained] == detection.is_ood.tolist()
        assert [reason.members for reason in explained] == [pytest.approx(reason.members) for reason in reasons]
    with pytest.raises(InputError, match="ODIN needs inputs, not features"):
        Detector(net, "odin").calibrate(x).explain(detector.bank(new))


def test_what_is_flagged_is_raised_by_some_member() -> None:
    x, y = torch.randn(300, 4), torch.randint(3, (300,))
    detector = Detector(model()).fit([(x, y)]).calibrate(torch.randn(200, 4), alpha=0.1)
    new = torch.cat([1.5 * torch.randn(2000, 4), torch.full((1, 4), math.nan)])
    flagged = [reason for reason in detector.explain(new) if reason.is_ood]
    assert all(reason.raised_by() for reason in flagged)
    together = [reason for reason in flagged if min(reason.members.values()) > 0.1]  # all members are undecided
    assert together
    assert all(
        reason.raised_by() == [min(reason.members, key=lambda name: reason.members[name])] for reason in together
    )
    assert any(len(reason.raised_by()) > len(reason.raised_by(0.05)) for reason in flagged)  # 0.1 is the detector's
    assert set(flagged[-1].raised_by()) == set(MEMBERS["default"])  # of NaN
    quiet = Reasons(0, 0.0, 0.5, False, {"energy": 0.5}, None)
    assert quiet.raised_by() == []


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_random_weights_are_named(norm: type[nn.Module], caplog: pytest.LogCaptureFixture) -> None:
    network = nn.Sequential(nn.Linear(4, 16), norm(16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(100, 4)
    Detector(network, "energy").calibrate(x)
    assert "the network has random weights" in caplog.text
    caplog.clear()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    network(x).square().mean().backward()
    optimizer.step()
    Detector(network, "energy").calibrate(x)
    Detector(model(), "energy").calibrate(x)  # has no normalisation, so nobody can tell
    assert not caplog.text


def test_a_consensus_without_training_data_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(100, 4)
    Detector(model()).fit([(x, torch.arange(100) % 3)]).calibrate(x)
    Detector(model(), "consensus-logits").calibrate(x)
    Detector(model(), "react").calibrate(x)
    assert not caplog.messages
    Detector(model()).calibrate(x).calibrate(x)
    (message,) = caplog.messages
    assert message == "the consensus has no training data, and takes scores of logits alone; call fit with some"


@pytest.mark.parametrize("shape", [(1, 12, 12), (4,)])
def test_one_input_without_a_batch_is_one_sentence(shape: tuple[int, ...]) -> None:
    network = networks.cnn(3, width=2) if len(shape) == 3 else nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    detector = Detector(network, "energy").calibrate(torch.randn(40, *shape))
    x = torch.randn(shape)
    for one in (x, x.numpy()):
        with pytest.raises(InputError, match=r"has no batch dimension; give a batch, x\[None\] for one input"):
            detector.detect(one)
    assert detector.detect(x[None]).is_ood.shape == (1,)
    with pytest.raises(RuntimeError):  # not its dimensions are wrong, but its size
        detector.detect(torch.randn(2, *shape[:-1], 5) if len(shape) == 1 else torch.randn(2, 3, 12, 12))


def test_what_is_no_detector_is_refused(tmp_path: Path) -> None:
    class Mine(CrossEntropy):
        pass

    with pytest.raises(InputError, match="cannot be run as one graph; calibrate it, and choose a score of features"):
        Detector(model())(torch.randn(2, 4))
    write_tensors(tmp_path / "x.safetensors", {"x": torch.zeros(2)})
    with pytest.raises(InputError, match="is not a file of a detector; name one"):
        Detector.load(tmp_path / "x.safetensors", model())
    network = networks.mlp(3, inputs=4)
    own = Detector(ScoredModel(network, Mine(), classifier="classifier")).calibrate(torch.randn(40, 4))
    with pytest.raises(InputError, match=r"Mine is not among spcp.methods.METHODS; add it there to save it"):
        own.save(tmp_path / "own.safetensors")
