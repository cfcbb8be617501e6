"""The report: its numbers are those of the evaluation, and its words those of its numbers."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path

import pytest
import torch
import training_run

from spcp import report, training
from spcp.calibration import calibrate_run
from spcp.choice import Choice, trials_from_json
from spcp.data import Benchmark, TensorSet, take
from spcp.errors import InputError
from spcp.metrics import compare
from spcp.report.figures import draw
from spcp.report.study import decisions
from spcp.report.summary import summarize
from spcp.runs import Run

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def ood(name: str, level: int) -> TensorSet:
    rng = torch.Generator().manual_seed(level)
    x = torch.randint(0, level, (60, 1, 12, 12), generator=rng, dtype=torch.uint8)
    return TensorSet(name, x, torch.full((60,), -1))


@pytest.fixture(scope="module")
def data() -> Benchmark:
    corners = training_run.benchmark()
    return Benchmark(
        corners.name,
        corners.transform,
        corners.class_names,
        corners.train,
        corners.val,
        corners.test,
        ood_val={"grey": ood("grey", 130)},
        near={"dim": ood("dim", 120), "bright": ood("bright", 220)},
        far={"dark": ood("dark", 20)},
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
def study(runs: list[Path], data: Benchmark, tmp_path_factory: pytest.TempPathFactory) -> report.Study:
    return report.gather(runs, benchmark=data, banks=tmp_path_factory.mktemp("banks"), title="<b>corners</b>")


@pytest.fixture(scope="module")
def written(study: report.Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write(study, tmp_path_factory.mktemp("report")).parent


def test_runs_that_differ_by_the_seed_are_one_arm(study: report.Study) -> None:
    assert [arm.name for arm in study.arms] == ["plain", "SPCP (rho_norm 1)"]
    assert [arm.seeds for arm in study.arms] == [(0, 1), (0, 1)]
    assert (study.reference, study.subject) == (study.arms[0], study.arms[1])
    assert study.sets == (("near", "mean"), ("near", "dim"), ("near", "bright"), ("far", "mean"), ("far", "dark"))


def test_differences_are_those_of_the_tables(study: report.Study) -> None:
    plain, truncating = study.arms
    for row in study.differences(truncating):
        areas = [[run.table.get("energy", row.group, row.dataset).auroc for run in arm.runs] for arm in study.arms]
        by_seed = [after - before for before, after in zip(*areas, strict=True)]
        assert row.difference.by_seed == pytest.approx(by_seed)
        assert row.difference.mean == pytest.approx(sum(by_seed) / 2)
        assert row.arm - row.reference == pytest.approx(row.difference.mean)
        assert row.difference.interval is not None
        assert row.difference.interval[0] <= row.difference.mean <= row.difference.interval[1]
    assert study.differences(plain) == []


def test_a_single_pair_is_delongs(runs: list[Path], data: Benchmark) -> None:
    study = report.gather([runs[0], runs[2]], benchmark=data, scores=["energy"])
    first, second = (arm.runs[0].table.scores for arm in study.arms)
    expected = compare(*(scores["energy", role] for scores in (second, first) for role in ("test", "far/dark")))
    (far,) = (row.difference for row in study.differences(study.arms[1]) if row.dataset == "dark")
    assert far.p_value == pytest.approx(expected.p_value)
    assert far.interval is None


def test_the_verdict_agrees_with_the_tables(study: report.Study) -> None:
    text = " ".join(summarize(study))
    differences = study.differences(study.subject)
    for row in differences:
        if row.dataset == "mean":
            assert f"{100 * row.reference:.1f} → {100 * row.arm:.1f}, {100 * row.difference.mean:+.1f} points" in text
    worse = [row.dataset for row in differences if row.dataset != "mean" and row.difference.mean < 0]
    assert (f"{study.subject.name} is below" in text) == bool(worse)
    assert all(f"{name} (" in text for name in worse)
    assert f"{100 * study.reference.accuracy[0]:.1f} % with plain" in text  # type: ignore[union-attr]


def test_the_report_opens_with_the_decision(study: report.Study, written: Path) -> None:
    made = decisions(study)
    assert [(one.arm, one.score, one.recommended) for one in made] == [
        ("SPCP (rho_norm 1)", "consensus", True),
        ("SPCP (rho_norm 1)", "energy", False),
        ("plain", "energy", False),
    ]
    for one in made:
        arm = next(arm for arm in study.arms if arm.name == one.arm)
        rates = [run.table.get(one.score, "near", "dim").detection_rate for run in arm.runs]
        assert one.detection_rates["near", "dim"].mean == pytest.approx(sum(map(float, rates)) / 2)
    assert summarize(study)[0].startswith(
        "At a promised false alarm rate of 5 %: consensus with SPCP (rho_norm 1) (rec"
    )
    page, text = ((written / name).read_text() for name in ("report.html", "report.md"))
    assert page.index('<section id="decision">') < page.index('<section id="verdict">')
    assert text.index("## Decision") < text.index("## Verdict")
    assert f"| consensus, SPCP (rho_norm 1) (recommended) | {made[0].false_alarm_rate} |" in text
    assert 'id="table-detection_rate"' in page


def test_the_report_says_how_the_score_was_chosen(runs: list[Path], data: Benchmark, tmp_path: Path) -> None:
    run = runs[2] if isinstance(runs[2], Run) else Run.open(runs[2])
    detector, _ = calibrate_run(run, "auto-proxies", alpha=0.1, benchmark=data)
    choice = Choice.from_json(detector.notes["choice"])
    study = report.gather([run], benchmark=data, scores=["energy", "consensus"])
    folder = report.write(study, tmp_path).parent
    run.detector_path.unlink()
    for text in ((folder / "report.html").read_text(), (folder / "report.md").read_text()):
        assert f"The detector of {run.folder}" in text
        assert choice.score in text
        assert choice.reason in text
        assert "proxy/scrambled" in text
        assert "detected of OOD data" in text
        assert "detected of proxies" in text
        for trial in trials_from_json(detector.notes["trials"]):
            low, high = trial.interval
            assert f"{100 * trial.detection_rate:.1f} ({100 * low:.1f} to {100 * high:.1f})" in text


def test_the_report_shows_the_decision_of_the_calibrated_detector(runs: list[Path], data: Benchmark) -> None:
    run = runs[2] if isinstance(runs[2], Run) else Run.open(runs[2])
    calibrate_run(run, "knn", benchmark=data)
    study = report.gather([run], benchmark=data, scores=["energy", "knn", "consensus"])
    made = {one.score: one.role for one in decisions(study)}
    assert made == {"consensus": "recommended", "knn": "calibrated", "energy": ""}
    assert "knn with SPCP (rho_norm 1) (calibrated) flags" in summarize(study)[0]
    run.detector_path.unlink()


@pytest.mark.parametrize("score", ["consensus-large", "consensus-logits"])
def test_the_report_adds_the_score_of_the_shipped_detector(runs: list[Path], data: Benchmark, score: str) -> None:
    run = runs[2] if isinstance(runs[2], Run) else Run.open(runs[2])
    calibrate_run(run, score, benchmark=data)
    made = {one.score: one.role for one in decisions(report.gather([run], benchmark=data))}
    run.detector_path.unlink()
    assert made[score] == "calibrated"


def test_a_single_run_has_intervals(runs: list[Path], data: Benchmark) -> None:
    (one,) = decisions(report.gather([runs[0]], benchmark=data, scores=["energy"]))
    rate = one.detection_rates["far", "dark"]
    assert rate.interval is not None
    assert str(rate) == f"{100 * rate.mean:.1f} ({100 * rate.interval[0]:.1f} to {100 * rate.interval[1]:.1f})"


def test_names_are_names_and_ticks_are_numbers(study: report.Study) -> None:
    """A dollar in a name starts no formula, but 10 to a power on an axis is one."""
    figure, _ = draw(study)["training"]
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


def test_the_csv_holds_every_measure_of_every_run(study: report.Study, written: Path) -> None:
    rows = list(csv.DictReader((written / "results.csv").read_text().splitlines()))
    assert len(rows) == sum(len(run.table.rows) for arm in study.arms for run in arm.runs)
    one = next(
        row for row in rows if (row["arm"], row["seed"], row["score"], row["dataset"]) == ("plain", "1", "knn", "dim")
    )
    assert float(one["auroc"]) == pytest.approx(study.arms[0].runs[1].table.get("knn", "near", "dim").auroc)


def test_operating_points_are_the_detectors(study: report.Study, written: Path, data: Benchmark) -> None:
    """What the page flags is what `Detector` flags after calibration on the same data."""
    from spcp import Detector

    run = study.arms[1].runs[0]
    evaluation = run.evaluation
    detector = Detector(evaluation.model, "energy").calibrate(evaluation.bank("val"), alpha=0.05)
    rows = [
        row for row in csv.DictReader((written / "operating.csv").read_text().splitlines()) if row["score"] == "energy"
    ]
    rows = [row for row in rows if (row["arm"], row["seed"], row["alpha"]) == ("SPCP (rho_norm 1)", "0", "0.05")]
    assert [row["set"] for row in rows] == ["test", "near/dim", "near/bright", "far/dark"]
    for row in rows:
        flagged = detector.detect(evaluation.bank(row["set"])).is_ood.double().mean().item()
        assert float(row["flagged"]) == pytest.approx(flagged)
        assert float(row["threshold"]) == detector.score_thresholds.item()


def test_the_page_is_alone_and_escaped(written: Path) -> None:
    page = (written / "report.html").read_text()
    outside = re.findall(r"""(?:src|href)=["']?(?:https?:)?//|url\(["']?http|@import|fetch\(""", page)
    assert outside == []
    assert "<b>corners</b>" not in page
    assert "&lt;b&gt;corners" in page


def test_the_markdown_has_the_numbers(study: report.Study, written: Path) -> None:
    text = (written / "report.md").read_text()
    for score in study.scores:
        assert f"| {score} | plain | " in text
    mean = study.arms[1].mean("energy", "near")["auroc"][0]
    assert f"{100 * mean:.2f}" in text
    for picture in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (written / picture).exists()


def test_without_a_reference_or_ood_sets(runs: list[Path], data: Benchmark, tmp_path: Path) -> None:
    bare = Benchmark(data.name, data.transform, data.class_names, data.train, data.val, data.test)
    study = report.gather(runs[2:3], benchmark=bare, scores=["energy", "knn"])
    assert study.reference is None
    assert "noise stands in" in study.notes[0]
    text = " ".join(summarize(study))
    assert "no run without truncation" in text
    assert report.write(study, tmp_path).exists()


def test_what_cannot_be_reported(runs: list[Path], data: Benchmark, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name it once"):
        report.gather([runs[0], runs[0]], benchmark=data, scores=["energy"])
    with pytest.raises(InputError, match="there are no runs"):
        report.report([], tmp_path / "r")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        report.write(report.gather(runs[:1], benchmark=data, scores=["energy"]), tmp_path / "file")


def test_runs_of_one_seed_and_of_different_seeds(runs: list[Path], data: Benchmark) -> None:
    alike = " ".join(summarize(report.gather([runs[0], runs[2]], benchmark=data, scores=["energy"])))
    assert "one seed is weak evidence, train more" in alike
    apart = " ".join(summarize(report.gather([runs[0], runs[3]], benchmark=data, scores=["energy"])))
    assert "have no seed in common, so they are not compared" in apart


def test_too_little_validation_data_for_a_threshold(runs: list[Path], data: Benchmark, tmp_path: Path) -> None:
    assert data.val is not None
    few = dataclasses.replace(data, val=take(data.val, range(10)))
    study = report.gather(runs[:3], benchmark=few, scores=["energy"])
    assert any("fewer than 19 validation samples, so no threshold" in note for note in study.notes)
    assert "promised false alarm rate" not in " ".join(summarize(study))
    assert report.write(study, tmp_path).exists()


def test_what_is_too_little_to_report(runs: list[Path], data: Benchmark, tmp_path: Path) -> None:
    one = dataclasses.replace(data, far={"dark": take(data.far["dark"], [0])})
    with pytest.raises(InputError, match="far/dark: has a single sample, which is too few to measure on"):
        report.gather(runs[:1], benchmark=one, scores=["energy"])
    begun = training.train(training_run.config("plain", 2), tmp_path / "run", benchmark=data, until=1)
    with pytest.raises(InputError, match="run"):
        report.gather([begun], benchmark=data, scores=["energy"])
