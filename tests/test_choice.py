from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from spcp import choice, scores
from spcp.bank import FeatureBank
from spcp.choice import (
    Candidate,
    Choice,
    Trial,
    auto_detector,
    choose,
    note_trials,
    problem,
    trials_from_json,
    try_detector,
)
from spcp.conformal import split
from spcp.detector import Detector
from spcp.errors import InputError
from spcp.model import ScoredModel
from spcp.scores import Score

CALIBRATE = "spcp calibrate RUN --score"
SCORES = {"consensus-logits": {}, "energy": {}, "knn": {"k": 5}}


def model() -> ScoredModel:
    """Return a head of two classes, on features that are its inputs."""
    net = nn.Linear(2, 2, bias=False)
    net.weight.data = torch.eye(2)
    return ScoredModel(net)


def bank(h: torch.Tensor) -> FeatureBank:
    with torch.no_grad():
        return FeatureBank.of(h, model().network(h), h.argmax(1))


def around(x: float, y: float, count: int, seed: int) -> FeatureBank:
    return bank(torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)) + torch.tensor([x, y]))


ID = {"train": around(5, 0, 300, 0), "val": around(5, 0, 200, 1)}
LARGE = around(50, 50, 100, 2)  # larger logits than any ID sample: energy is blind
SMALL = around(-9, -9, 100, 3)  # all see it


def test_the_best_is_chosen_and_the_blind_is_not() -> None:
    choice = choose(model(), SCORES, **ID, ood={"ood_val/large": LARGE, "proxy/noise": SMALL})
    assert choice.score == "knn"
    assert [one.score for one in choice.candidates] == list(SCORES)
    by_score = {one.score: one for one in choice.candidates}
    assert by_score["energy"].problem == "AUROC 0.0, detection rate 0.0 % on ood_val/large"
    assert by_score["knn"].problem == ""
    assert by_score["knn"].mean("detection_rate") == 1.0
    assert by_score["energy"].mean("detection_rate") == 0.5  # nothing of the OOD data, all of the noise
    assert "on ood_val/large, proxy/noise, of 3 scores: 100.0 %" in choice.reason
    assert "| knn (chosen) | 100.0 | 100.0 | 100.0 |  |" in choice.table()
    again = Choice.from_json(json.loads(json.dumps(choice.as_json())))
    assert again == choice


def test_proxies_decide_where_there_is_nothing_else() -> None:
    choice = choose(model(), SCORES, **ID, ood={"proxy/far": LARGE, "proxy/noise": SMALL})
    assert choice.score == "knn"
    assert "on proxy/far, proxy/noise" in choice.reason
    assert "| knn (chosen) |  | 100.0 | 100.0 |  |" in choice.table()


def test_given_sets_and_proxies_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A score that sees one more of the given sets is not chosen if it misses most of the noise."""
    found = {"energy": (0.5, 0.5, 0.8), "maxlogit": (0.9, 0.9, 0.3), "msp": (0.6, 0.6, 0.8)}

    def tried(detector: Detector, ood: dict[str, FeatureBank]) -> tuple[Trial, ...]:
        rates = found[type(detector.score).__name__.lower()]
        return tuple(Trial(name, 100, 0.9, rate, (0.0, 1.0)) for name, rate in zip(ood, rates, strict=True))

    monkeypatch.setattr("spcp.choice.try_detector", tried)
    names: dict[str, dict[str, Any]] = {name: {} for name in found}
    ood = {"ood_val/a": SMALL, "ood_val/b": SMALL, "proxy/noise": SMALL}
    kept = choose(model(), names, **ID, ood=ood)
    assert kept.score == "energy"  # 65 %; msp, 70 %, is not more than 5 points better, and maxlogit has 60 %
    assert "none of 3 scores is more than 5 points better" in kept.reason
    found["msp"] = (0.62, 0.62, 0.8)
    assert choose(model(), names, **ID, ood=ood).score == "msp"


def test_the_first_of_equals_and_the_least_bad_of_the_blind() -> None:
    for names in (["energy", "maxlogit"], ["maxlogit", "energy"]):
        candidates = {name: {} for name in names}
        equal = choose(model(), candidates, **ID, ood={"ood_val/small": SMALL}, by="auroc")
        assert {one.mean("auroc") for one in equal.candidates} == {1.0}
        assert equal.score == names[0]
        blind = choose(model(), candidates, **ID, ood={"ood_val/large": LARGE, "proxy/noise": SMALL})
        assert all(one.problem for one in blind.candidates)
        assert blind.score == names[0]


def test_what_cannot_be_chosen() -> None:
    with pytest.raises(InputError, match=r'by = .loss. must be "detection_rate" or "auroc"'):
        choose(model(), SCORES, **ID, ood={"ood_val/a": SMALL}, by="loss")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there are no OOD sets to choose by"):
        choose(model(), SCORES, **ID, ood={})


def test_trials() -> None:
    detector = Detector(model(), "energy").calibrate(ID["val"])
    large, small = try_detector(detector, {"ood_val/large": LARGE, "ood_val/small": SMALL})
    assert (large.samples, large.auroc, large.detection_rate) == (100, 0.0, 0.0)
    assert (small.auroc, small.detection_rate) == (1.0, 1.0)
    assert small.interval[0] < 1.0 == small.interval[1]
    assert trials_from_json(json.loads(json.dumps([vars(large)]))) == (large,)
    (odd,) = try_detector(detector, {"ood_val/odd": bank(torch.tensor([[math.nan, 0.0], [50.0, 50.0]]))})
    assert (odd.samples, odd.auroc, odd.detection_rate) == (2, 0.5, 0.5)  # what is not a number is flagged


def test_problem() -> None:
    def trial(name: str, auroc: float, rate: float) -> Trial:
        return Trial(name, 100, auroc, rate, (0.0, 1.0))

    near = trial("proxy/blended", 0.7, 0.06)
    good = trial("proxy/noise", 0.99, 0.95)
    assert problem([near, good], 0.05) == ""  # one proxy may be close to ID data
    assert "proxy/blended" in problem([near, trial("proxy/noise", 0.9, 0.11)], 0.05)  # but not all of them
    assert "proxy/blended" in problem([trial("proxy/blended", 0.4, 0.06), good], 0.05)
    assert "on ood_val/cars" in problem([trial("ood_val/cars", 0.7, 0.06), good], 0.05)
    assert problem([trial("ood_val/cars", 0.7, 0.06), good], 0.01) == ""


def test_the_warning_of_blindness_names_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    detector = Detector(model(), "energy").calibrate(ID["val"])
    blind = Trial("ood_val/a", 100, 0.1, 0.0, (0.0, 0.1))
    made = Trial("proxy/noise", 100, 0.1, 0.0, (0.0, 0.1))
    tried = choose(model(), {"energy": {}}, **ID, ood={"ood_val/large": LARGE})
    another = "another score, which spcp scores lists"
    for chosen, trial, truncates, cures in (
        (Choice("energy", "named"), blind, False, f"{CALIBRATE} consensus, {CALIBRATE} auto or {another}"),
        (Choice("consensus", "the default"), blind, False, f"{CALIBRATE} auto or {another}"),
        (Choice("consensus", "the default"), made, True, f"training with --rho-norm 0 or {another}"),
        (tried, blind, True, "training with --rho-norm 0 or another network"),
        (tried, blind, False, "another network"),
    ):
        caplog.clear()
        note_trials(detector, chosen, [trial], truncates=truncates)
        (message,) = caplog.messages
        assert message.endswith(f"% on {trial.dataset}); try {cures}")


def test_the_table_is_in_the_order_of_what_was_compared() -> None:
    def one(name: str, auroc: float, rate: float) -> Candidate:
        return Candidate(name, (Trial("ood_val/a", 100, auroc, rate, (0.0, 1.0)),), "")

    candidates = (one("knn", 0.9, 0.9), one("mds", 0.5, 0.8), one("vim", 0.7, 0.6))
    for by, names in (("detection_rate", ["knn", "mds", "vim"]), ("auroc", ["knn", "vim", "mds"])):
        made = Choice("knn", "", candidates, by)  # type: ignore[arg-type]
        lines = Choice.from_json(json.loads(json.dumps(made.as_json()))).table().splitlines()[2:]
        assert [line.split()[1] for line in lines] == names


def test_inputs_also_make_proxies() -> None:
    x = torch.randn(300, 2, generator=torch.Generator().manual_seed(5)) + torch.tensor([5.0, 0.0])
    for val in (x, x.numpy(), [(x[:200], x[:200].argmax(1)), (x[200:], x[200:].argmax(1))], iter([x])):
        detector = auto_detector(model().network, val, ood={"large": LARGE}, alpha=0.1)
        names = [trial["dataset"] for trial in detector.notes["trials"]]
        assert set(names) >= {"ood_val/large", "proxy/noise", "proxy/permuted"}
        assert all(name in Choice.from_json(detector.notes["choice"]).reason for name in names)
        assert len(detector.calibration_scores) == len(split(300, 0.1)[1])
    words = nn.Sequential(nn.EmbeddingBag(9, 8), nn.Linear(8, 2))  # of which no outliers are made
    texts = [torch.randint(9, (20, length)) for length in range(2, 9)]
    trials = auto_detector(words, iter(texts), ood={"other": torch.randint(9, (30, 3))}).notes["trials"]
    assert [trial["dataset"] for trial in trials] == ["ood_val/other"]


def test_a_detector_of_any_classifier() -> None:
    x = torch.randn(600, 2, generator=torch.Generator().manual_seed(5)) + torch.tensor([5.0, 0.0])
    train, val = x[:300], x[300:]
    options: dict[str, Any] = {"val": val, "ood": {"large": LARGE.features}, "alpha": 0.1}
    detector = auto_detector(model().network, train=[(train, train.argmax(1))], **options)
    assert len(detector.calibration_scores) == len(split(300, 0.1)[1])
    choice = Choice.from_json(detector.notes["choice"])
    assert {one.score for one in choice.candidates} >= {"consensus", "knn", "vim", "react"}
    assert detector.notes["trials"][0]["detection_rate"] == detector.detect(LARGE).is_ood.double().mean() == 1.0
    without = auto_detector(model().network, **options)
    tried = {one.score for one in Choice.from_json(without.notes["choice"]).candidates}
    assert "consensus-logits" in tried
    assert "knn" not in tried


def test_the_promise_of_auto() -> None:
    """Chosen among all scores on one part of 80 samples and calibrated on the other, at most alpha is flagged."""
    rng = torch.Generator().manual_seed(0)
    net, ood = model(), bank(torch.randn(40, 2, generator=rng) + torch.tensor([4.0, 1.0]))  # close to ID
    new = bank(torch.randn(400, 2, generator=rng) + torch.tensor([5.0, 0.0]))
    rates = []
    for _ in range(60):
        val = bank(torch.randn(80, 2, generator=rng) + torch.tensor([5.0, 0.0]))
        rates.append(auto_detector(net, val, ood={"close": ood}, alpha=0.1).detect(new).is_ood.double().mean())
    mean, deviation = torch.stack(rates).mean(), torch.stack(rates).std()
    assert mean <= 0.1 + 3 * deviation / 60**0.5


class Feature(Score):
    """One feature: of noise, as good as any other."""

    def __init__(self, *, index: int = 0) -> None:
        super().__init__()
        self.index = index

    def score(self, h: torch.Tensor, z: torch.Tensor, head: nn.Linear) -> torch.Tensor:
        return h[:, self.index]


def test_the_samples_that_chose_do_not_calibrate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of many equal scores is so by chance, and only on the samples that chose it."""
    names = [f"feature {i}" for i in range(20)]
    for i, name in enumerate(names):
        monkeypatch.setitem(scores.SCORES, name, (Feature, {"index": i}))  # type: ignore[arg-type]
    monkeypatch.setattr(choice, "applicable", lambda *_: names[1:])
    monkeypatch.setattr(choice, "DEFAULT", names[0])
    chosen_on: list[FeatureBank] = []

    def watched(*args: Any, **options: Any) -> Choice:
        chosen_on.append(options["val"])
        return choose(*args, **options)

    def same(n: int, alpha: float, *, choosing: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, rest = split(n, alpha, choosing=choosing)
        return (chosen, chosen) if choosing else (chosen, rest)

    def noise(rows: int, rng: torch.Generator) -> FeatureBank:
        h = torch.randn(rows, len(names), generator=rng)
        return FeatureBank.of(h, torch.zeros(rows, 2), torch.zeros(rows, dtype=torch.int64))

    def false_alarm_rates() -> torch.Tensor:
        rng, net = torch.Generator().manual_seed(0), ScoredModel(nn.Linear(len(names), 2))
        rates = []
        for _ in range(40):
            detector = auto_detector(net, noise(80, rng), ood={"like": noise(50, rng)}, alpha=0.1)
            seen = set(chosen_on[-1].features.flatten().tolist())
            assert seen.isdisjoint(detector.calibration_scores.tolist()) is (choice.split is split)
            rates.append(torch.special.ndtr(detector.score_thresholds[0].double()))  # of new ID samples, exactly
        return torch.stack(rates)

    monkeypatch.setattr(choice, "choose", watched)
    rates = false_alarm_rates()
    assert rates.mean() <= 0.1 + 3 * rates.std() / 40**0.5
    monkeypatch.setattr(choice, "split", same)
    wrong = false_alarm_rates()
    assert wrong.mean() > 0.1 + 3 * wrong.std() / 40**0.5
