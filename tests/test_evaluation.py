from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from spcp import apply_spcp, data
from spcp.detector import Detector
from spcp.errors import InputError
from spcp.evaluation import DEFAULT_SCORES, MEASURES, Evaluation, Result, Table, evaluate, over_seeds
from spcp.methods import SNN
from spcp.metrics import metrics
from spcp.model import ScoredModel
from spcp.networks import mlp
from spcp.runs import Run
from spcp.scores import KNN, SCORES, Score


def blobs(name: str, n: int, shift: float, seed: int, ood: bool = False) -> data.TensorSet:
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 6, generator=rng) + 3 * nn.functional.one_hot(y, 6) + shift
    return data.TensorSet(name, x, torch.full((n,), -1) if ood else y, () if ood else tuple("abc"))


def benchmark() -> data.Benchmark:
    return data.Benchmark(
        "blobs",
        None,
        tuple("abc"),
        blobs("train", 600, 0, 0),
        blobs("val", 150, 0, 1),
        blobs("test", 200, 0, 2),
        ood_val={"up": blobs("up", 150, 1.5, 3, True)},
        near={"a": blobs("a", 100, 0.5, 4, True), "b": blobs("b", 120, 1.0, 5, True)},
        far={"c": blobs("c", 90, 3.0, 6, True)},
        shifted={"d": blobs("d", 80, 0.3, 7)},
    )


class Net(nn.Module):
    seen: ClassVar[list[int]] = [0]

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.fc = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen[0] += len(x)
        return self.fc(self.body(x))


@pytest.fixture(scope="module")
def net() -> Net:
    network = apply_spcp(Net(), rho_norm=0.5, total_steps=60)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    train = benchmark().train
    assert isinstance(train, data.TensorSet)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(train.x), train.y).backward()
        optimizer.step()
    network.seen[0] = 0
    return network.eval()


def test_every_score_on_every_set_after_one_pass(net: Net, tmp_path: Path) -> None:
    blobs = benchmark()
    net.seen[0] = 0
    table = evaluate(net, blobs, folder=tmp_path)
    assert net.seen[0] == 600 + 150 + 200 + 100 + 120 + 90  # and nothing of what is not asked for
    assert {row.score for row in table.rows} == set(DEFAULT_SCORES)
    assert set(DEFAULT_SCORES) | {"odin", "mos", "consensus-large", "consensus-logits"} == set(SCORES)
    evaluation = Evaluation(net, blobs, folder=tmp_path)
    id_bank, ood_bank = evaluation.bank("test"), evaluation.bank("near/b")
    expected = metrics(id_bank.logits.logsumexp(1), ood_bank.logits.logsumexp(1))
    row = table.get("energy", "near", "b")
    assert row.auroc == pytest.approx(expected.auroc)
    assert row.fpr95 == pytest.approx(expected.fpr95)
    assert row.auroc_interval is not None
    assert row.auroc_interval[0] < row.auroc < row.auroc_interval[1]
    assert (row.n_id, row.n_ood) == (200, 120)
    assert row.accuracy == pytest.approx(id_bank.accuracy())
    mean = table.get("energy", "near")
    assert mean.auroc == pytest.approx((table.get("energy", "near", "a").auroc + row.auroc) / 2)
    assert torch.equal(table.scores["energy", "near/b"], ood_bank.logits.logsumexp(1))
    assert table.get("mds", "far").auroc > 0.95


def test_odin_runs_the_network_again(net: Net, tmp_path: Path) -> None:
    table = evaluate(net, benchmark(), ["odin", "msp"], folder=tmp_path)
    assert table.get("odin", "far").auroc != table.get("msp", "far").auroc


def test_without_truncation(net: Net, tmp_path: Path) -> None:
    plain = evaluate(net, benchmark(), ["energy"], truncate=False, folder=tmp_path)
    truncated = evaluate(net, benchmark(), ["energy"], folder=tmp_path)
    assert plain.get("energy", "near") != truncated.get("energy", "near")
    h = Evaluation(net, benchmark(), folder=tmp_path).bank("near/a").features
    with torch.no_grad():
        z = nn.functional.linear(h, net.fc.weight, net.fc.bias)
    torch.testing.assert_close(plain.scores["energy", "near/a"], z.logsumexp(1))


def test_shifted_sets_count_as_id_by_request(net: Net, tmp_path: Path) -> None:
    table = evaluate(net, benchmark(), ["energy"], full_spectrum=True, folder=tmp_path)
    assert table.get("energy", "far", "c").n_id == 280


def test_search_leaves_alone_what_the_training_method_sets(tmp_path: Path) -> None:
    """SNN's paper scores by the 20th neighbour; the sweep of the neighbours' score starts at 50."""
    network, method = mlp(3, inputs=6, width=16), SNN()
    method.prepare(network, 10)
    evaluation = Evaluation(ScoredModel(network, method=method), benchmark(), folder=tmp_path)
    assert evaluation.search("knn").options == {"k": 20}
    assert evaluation.search("react").options["percentile"] in SCORES["react"][0].sweep["percentile"]


def test_search_takes_the_first_of_the_best_without_another_pass(net: Net, tmp_path: Path) -> None:
    evaluation = Evaluation(net, benchmark(), folder=tmp_path)
    evaluation.search("react")
    passed = net.seen[0]
    for name in ("react", "knn", "ash", "vra", "gen"):
        chosen = evaluation.search(name)
        kind, options = SCORES[name]
        areas = {}
        for values in itertools.product(*kind.sweep.values()):
            score = kind(**{**options, **dict(zip(kind.sweep, values, strict=True))})
            evaluation.fit(score)
            validation = (score.scores(evaluation.bank(role), evaluation.model.head) for role in ("val", "ood_val/up"))
            areas[values] = metrics(*validation).auroc
        best = next(values for values in areas if areas[values] == max(areas.values()))
        assert tuple(chosen.options[key] for key in kind.sweep) == best, name
    assert net.seen[0] <= passed + 600  # the training set, once
    blobs = benchmark()
    bare = Evaluation(net, data.Benchmark("bare", None, tuple("abc"), blobs.train, None, blobs.test), folder=tmp_path)
    with pytest.raises(InputError, match="has no validation set to search on"):
        bare.search("knn")
    sets = (blobs.train, blobs.val, blobs.test)
    noisy = Evaluation(net, data.Benchmark("noisy", None, tuple("abc"), *sets), folder=tmp_path)
    assert noisy.search("knn").options["k"] in SCORES["knn"][0].sweep["k"]
    assert len(noisy.bank("ood_val/noise")) == 1000


def test_a_custom_score(net: Net, tmp_path: Path) -> None:
    class Norm(Score):
        def score(self, h: torch.Tensor, z: torch.Tensor, head: nn.Linear) -> torch.Tensor:
            return -h.norm(dim=1)

    table = evaluate(net, benchmark(), [Norm(), "msp"], folder=tmp_path)
    assert table.get("Norm", "far").auroc > 0.5


def test_forms_of_a_table(net: Net, tmp_path: Path) -> None:
    table = evaluate(net, benchmark(), ["msp", "mds"], folder=tmp_path)
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert len(rows) == len(table.rows) == 10
    assert float(rows[0]["auroc"]) == table.rows[0].auroc
    assert rows[0]["auroc_low"]
    assert not rows[2]["auroc_low"]  # of a mean
    assert json.loads(table.json())[3]["dataset"] == table.rows[3].dataset
    frame = table.to_pandas()
    assert frame.loc[frame.score == "mds", "auroc"].tolist() == [row.auroc for row in table.rows if row.score == "mds"]
    lines = table.markdown().splitlines()
    assert lines[0] == "| score (FPR95 / AUROC / detection rate) | a | b | near mean | c | far mean |"
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| msp", "| mds"]
    best = 100 * max(table.get(name, "far", "c").auroc for name in ("msp", "mds"))
    assert f"**{best:.2f}**" in table.markdown()
    assert "OpenOOD's" in lines[-1]
    assert f"\\textbf{{{best:.2f}}}" in table.latex()
    assert table.latex().count("\\\\") == 3
    for ending in ("csv", "json", "md", "tex"):
        assert table.save(tmp_path / f"t.{ending}").read_text()
    with pytest.raises(InputError, match=r"t.xls: ends in none of"):
        table.save(tmp_path / "t.xls")


def test_changed_weights_give_new_numbers(tmp_path: Path) -> None:
    network = Net().eval()
    evaluation = Evaluation(network, benchmark(), folder=tmp_path)
    before = evaluation.table(["energy"])
    with torch.no_grad():
        network.fc.weight.mul_(-1)
    after = evaluation.table(["energy"])
    assert after.get("energy", "far") != before.get("energy", "far")
    assert after.rows == evaluate(network, benchmark(), ["energy"], folder=tmp_path).rows


def test_odin_without_truncation(net: Net, tmp_path: Path) -> None:
    plain = Net().eval()
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if k.split(".")[-1] in ("weight", "bias")})
    untruncated = evaluate(net, benchmark(), ["odin"], truncate=False, folder=tmp_path)
    expected = evaluate(plain, benchmark(), ["odin"], folder=tmp_path)
    torch.testing.assert_close(untruncated.scores["odin", "far/c"], expected.scores["odin", "far/c"])
    truncated = evaluate(net, benchmark(), ["odin"], folder=tmp_path)
    assert not torch.equal(untruncated.scores["odin", "far/c"], truncated.scores["odin", "far/c"])


def test_two_of_a_kind_and_what_cannot_be(net: Net, tmp_path: Path) -> None:
    table = evaluate(net, benchmark(), [KNN(k=5), KNN(k=200)], folder=tmp_path)
    assert table.get("KNN(k=5)", "far") != table.get("KNN(k=200)", "far")
    blobs = benchmark()
    with pytest.raises(InputError, match="has no near or far sets"):
        evaluate(net, data.Benchmark("b", None, tuple("abc"), blobs.train, blobs.val, blobs.test), folder=tmp_path)
    bare = data.Benchmark("b", None, tuple("abc"), blobs.train, None, blobs.test, far=blobs.far)
    with pytest.raises(InputError, match="ReAct: is fitted on validation data, and b has none; leave it out"):
        evaluate(net, bare, ["react"], folder=tmp_path)
    assert not {"react", "vra", "klm"} & {row.score for row in evaluate(net, bare, folder=tmp_path).rows}
    cifar = Evaluation(net, data.Benchmark("cifar100", None, (), None, None, blobs.test))
    assert cifar.options_for("itp") == {"p": 20, "l": 1.6}


def test_over_seeds() -> None:
    def one(value: float) -> Table:
        return Table((Result("msp", {}, "near", "mean", accuracy=1.0, **dict.fromkeys(MEASURES, value)),), {})

    assert over_seeds([one(0.25), one(0.75)], "msp", "near")["auroc"] == (0.5, 0.25)
    with pytest.raises(InputError, match="no row for msp on far/mean"):
        over_seeds([one(0.9)], "msp", "far")


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_run_is_evaluated(tmp_path: Path) -> None:
    import training_run

    from spcp import training

    corners = training_run.benchmark()
    uniform = data.noise("uniform", corners.test, 40)
    corners = dataclasses.replace(corners, far={"noise": uniform})
    run = training.train(training_run.config("spcp", 2), tmp_path / "run", benchmark=corners)
    table = evaluate(run, corners, ["energy", "knn"], folder=tmp_path)
    assert table.get("energy", "far", "noise").n_ood == 40
    best = Evaluation(run.load("best"), corners, folder=tmp_path)
    weights = load_file(run.folder / "best.safetensors")
    assert torch.equal(best.model.network.state_dict()["classifier.weight"], weights["classifier.weight"])
    with pytest.raises(InputError, match=r"its network takes samples \(1, 12, 12\), but those of blobs are \(6,\)"):
        Evaluation(run, benchmark())
    with pytest.raises(InputError, match="name the folder of a run"):
        Run.open(tmp_path / "nothing")
    with pytest.raises(InputError, match="needs a benchmark"):
        evaluate(nn.Linear(2, 2))


def test_truncation_needs_no_other_pass(net: Net, tmp_path: Path) -> None:
    evaluate(net, benchmark(), ["energy", "knn"], folder=tmp_path)
    passed = net.seen[0]
    evaluate(net, benchmark(), ["energy", "knn"], truncate=False, folder=tmp_path)
    assert net.seen[0] == passed


@pytest.mark.parametrize("name", ["energy", "react", "consensus"])
def test_the_detection_rate_is_that_of_a_calibrated_detector(net: Net, tmp_path: Path, name: str) -> None:
    evaluation = Evaluation(net, benchmark(), folder=tmp_path)
    table = evaluation.table([name], alpha=0.1)
    detector = Detector(net, name).fit(evaluation.bank("train")).calibrate(evaluation.bank("val"), 0.1)
    for group, dataset in (("near", "a"), ("near", "b"), ("far", "c")):
        row = table.get(name, group, dataset)
        assert row.detection_rate == detector.detect(evaluation.bank(f"{group}/{dataset}")).is_ood.double().mean()
        assert row.false_alarm_rate == detector.detect(evaluation.bank("test")).is_ood.double().mean()
        assert row.detection_rate_interval is not None
        assert row.detection_rate_interval[0] <= row.detection_rate <= row.detection_rate_interval[1]
    mean = table.get(name, "near").detection_rate
    assert mean == pytest.approx(sum(table.get(name, "near", part).detection_rate or 0 for part in "ab") / 2)
    assert torch.equal(table.scores[name, "val"].sort().values, detector.calibration_scores)
    record = table.get(name, "far", "c").as_record()
    assert (record["alpha"], record["detection_rate_low"]) == (
        0.1,
        table.get(name, "far", "c").detection_rate_interval[0],
    )
    val = benchmark().val
    assert val is not None
    few = dataclasses.replace(benchmark(), val=data.take(val, range(15)))
    assert Evaluation(net, few, folder=tmp_path).table([name]).rows[0].detection_rate is None
