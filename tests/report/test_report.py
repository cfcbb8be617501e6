"""The report: its numbers are those of the evaluation, and its words those of its numbers."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch
import training_run

from spcp import report, training
from spcp.data import Benchmark, TensorSet
from spcp.errors import InputError
from spcp.metrics import compare
from spcp.report import study as studies
from spcp.report import words

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def odd(name: str, level: int) -> TensorSet:
    rng = torch.Generator().manual_seed(level)
    x = torch.randint(0, level, (60, 1, 12, 12), generator=rng, dtype=torch.uint8)
    return TensorSet(name, x, torch.full((60,), -1))


@pytest.fixture(scope="module")
def data() -> Benchmark:
    own = training_run.benchmark()
    return Benchmark(
        own.name,
        own.transform,
        own.class_names,
        own.train,
        own.val,
        own.test,
        ood_val={"grey": odd("grey", 130)},
        near={"dim": odd("dim", 120), "bright": odd("bright", 220)},
        far={"dark": odd("dark", 20)},
    )


@pytest.fixture(scope="module")
def runs(data: Benchmark, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        training.train(training_run.config(method, 2, seed=seed), folder / f"{method}-{seed}", benchmark=data)
        for method in ("plain", "spcp")
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def found(runs: list[Path], data: Benchmark, tmp_path_factory: pytest.TempPathFactory) -> report.Study:
    return studies.gather(runs, benchmark=data, banks=tmp_path_factory.mktemp("banks"), title="<b>corners</b>")


@pytest.fixture(scope="module")
def written(found: report.Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write(found, tmp_path_factory.mktemp("report")).parent


def test_runs_that_differ_by_the_seed_are_one_arm(found: report.Study) -> None:
    assert [arm.name for arm in found.arms] == ["plain", "SPCP (rho_norm 1)"]
    assert [arm.seeds for arm in found.arms] == [(0, 1), (0, 1)]
    assert (found.reference, found.subject) == (found.arms[0], found.arms[1])
    assert found.sets == (("near", "mean"), ("near", "dim"), ("near", "bright"), ("far", "mean"), ("far", "dark"))


def test_differences_are_those_of_the_tables(found: report.Study) -> None:
    plain, bounded = found.arms
    for own in found.differences(bounded):
        areas = [[run.table.get("energy", own.group, own.name)["auroc"] for run in arm.runs] for arm in found.arms]
        by_seed = [after - before for before, after in zip(*areas, strict=True)]
        assert own.by_seed == pytest.approx(by_seed)
        assert own.points == pytest.approx(sum(by_seed) / 2)
        assert own.samples.difference * 100 == pytest.approx(own.points)
        assert own.interval is not None
        assert own.interval[0] <= own.points <= own.interval[1]
    assert found.differences(plain) == []


def test_a_single_pair_is_delongs(runs: list[Path], data: Benchmark) -> None:
    own = studies.gather([runs[0], runs[2]], benchmark=data, detectors=["energy"])
    first, second = (arm.runs[0].table.scores for arm in own.arms)
    expected = compare(*((own["energy", role]) for own in (second, first) for role in ("test", "far/dark")))
    (far,) = (own for own in own.differences(own.arms[1]) if own.name == "dark")
    assert far.samples.p_value == pytest.approx(expected.p_value)
    assert far.interval is None


def difference(points: tuple[float, ...], p_value: float) -> studies.Difference:
    samples = studies.Comparison(sum(points) / len(points) / 100, (0.0, 0.0), p_value)
    return studies.Difference("far", "mean", (50.0, 0.0), (60.0, 0.0), points, studies.t_interval(points), samples)


def test_a_difference_is_clear_if_seeds_and_samples_agree() -> None:
    assert difference((9.0, 10.0, 11.0), 0.001).word == "better"
    assert difference((-9.0, -10.0, -11.0), 0.001).word == "worse"
    assert difference((9.0, 10.0, 11.0), 0.2).word == "no clear difference"
    assert difference((1.0, 20.0, -3.0), 0.001).word == "no clear difference"


def test_the_verdict_says_what_the_tables_say(found: report.Study) -> None:
    text = " ".join(words.verdict(found))
    for own in found.differences(found.subject):
        if own.name == "mean":
            assert f"{own.reference[0]:.1f} → {own.arm[0]:.1f}, {own.points:+.1f} points" in text
    worse = [own.name for own in found.differences(found.subject) if own.name != "mean" and own.points < 0]
    assert (f"{found.subject.name} is below" in text) == bool(worse)
    assert all(f"{name} (" in text for name in worse)
    assert f"{found.reference.accuracy[0]:.1f} % with plain" in text  # type: ignore[union-attr]


def test_names_are_names_and_ticks_are_numbers(found: report.Study) -> None:
    """A dollar in a name starts no formula, but 10 to a power on an axis is one."""
    figure, _ = report.draw(found)["training"]
    for axis in figure.axes:
        assert not axis.title.get_parse_math()
        assert all(tick.get_parse_math() for tick in axis.get_yticklabels())


def test_all_files_are_there(written: Path) -> None:
    names = {path.relative_to(written).as_posix() for path in written.rglob("*") if path.is_file()}
    drawn = {
        f"figures/{name}.{kind}"
        for name in ("scores", "roc", "patterns", "units", "training")
        for kind in ("png", "svg", "pdf")
    }
    assert names == drawn | {"report.html", "report.md", "results.csv", "operating.csv"}


def test_the_csv_holds_every_measure_of_every_run(found: report.Study, written: Path) -> None:
    rows = list(csv.DictReader((written / "results.csv").read_text().splitlines()))
    assert len(rows) == sum(len(run.table.rows) for arm in found.arms for run in arm.runs)
    one = next(
        row for row in rows if (row["arm"], row["seed"], row["detector"], row["set"]) == ("plain", "1", "knn", "dim")
    )
    assert float(one["auroc"]) == pytest.approx(found.arms[0].runs[1].table.get("knn", "near", "dim")["auroc"])


def test_operating_points_are_the_detectors(found: report.Study, written: Path, data: Benchmark) -> None:
    """What the page flags is what `Detector` flags after calibration on the same data."""
    from spcp import Detector

    run = found.arms[1].runs[0]
    own = run.evaluation
    detector = Detector(own.model, "energy", method=own.method).calibrate(own.features("val"), alpha=0.05)
    rows = [
        row
        for row in csv.DictReader((written / "operating.csv").read_text().splitlines())
        if row["detector"] == "energy"
    ]
    rows = [row for row in rows if (row["arm"], row["seed"], row["alpha"]) == ("SPCP (rho_norm 1)", "0", "0.05")]
    assert [row["set"] for row in rows] == ["test", "near/dim", "near/bright", "far/dark"]
    for row in rows:
        flagged = detector.detect(own.features(row["set"])).is_ood.double().mean().item() * 100
        assert float(row["flagged_percent"]) == pytest.approx(flagged)
        assert float(row["threshold"]) == detector.thresholds.item()


def test_the_page_is_alone_and_escaped(written: Path) -> None:
    page = (written / "report.html").read_text()
    outside = re.findall(r"""(?:src|href)=["']?(?:https?:)?//|url\(["']?http|@import|fetch\(""", page)
    assert outside == []
    assert "<b>corners</b>" not in page
    assert "&lt;b&gt;corners" in page


def test_the_markdown_has_the_numbers(found: report.Study, written: Path) -> None:
    text = (written / "report.md").read_text()
    for detector in found.detectors:
        assert f"| {detector} | plain | " in text
    mean = found.arms[1].mean("energy", "near")["auroc"][0]
    assert f"{mean:.2f}" in text
    for picture in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (written / picture).exists()


def test_without_a_reference_or_odd_sets(runs: list[Path], data: Benchmark, tmp_path: Path) -> None:
    bare = Benchmark(data.name, data.transform, data.class_names, data.train, data.val, data.test)
    found = studies.gather(runs[2:3], benchmark=bare, detectors=["energy", "knn"])
    assert found.reference is None
    assert "noise stands in" in found.notes[0]
    text = " ".join(words.verdict(found))
    assert "no run without a bound" in text
    assert report.write(found, tmp_path).exists()


def test_what_cannot_be_reported(runs: list[Path], data: Benchmark, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name it once"):
        studies.gather([runs[0], runs[0]], benchmark=data, detectors=["energy"])
    with pytest.raises(InputError, match="there are no runs"):
        report.report([], tmp_path / "r")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        report.write(studies.gather(runs[:1], benchmark=data, detectors=["energy"]), tmp_path / "file")
