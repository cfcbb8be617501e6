from __future__ import annotations

import dataclasses
import datetime
import shutil
from pathlib import Path

import pytest
import torch
import training_run
from formats import write_image

import spcp
from spcp import data, training
from spcp.calibration import calibrate_run, load_detector
from spcp.choice import Choice
from spcp.conformal import split
from spcp.data.prepared import data_fingerprint
from spcp.detector import Detector, read_notes
from spcp.errors import InputError
from spcp.runs import Run
from spcp.scores import DEFAULT, SCORES

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return training.train(training_run.config("spcp", 2), folder, benchmark=training_run.benchmark())


def test_calibrate_and_load(run: Run, tmp_path: Path) -> None:
    benchmark = training_run.benchmark()
    detector, evaluation = calibrate_run(run, "energy", alpha=0.1, benchmark=benchmark)
    assert len(detector.calibration_scores) == 40
    x = torch.cat([x for x, _ in benchmark.loader("test")])
    expected = detector.detect(x)
    assert torch.equal(detector.detect(evaluation.bank("test")).is_ood, expected.is_ood)
    alone = shutil.copy(run.detector_path, tmp_path / "mine.safetensors")
    for again, inputs in (load_detector(run.folder), load_detector(alone), (run.detector(), run.inputs)):
        assert inputs == benchmark.inputs()
        for ours, theirs in zip(again.detect(x), expected, strict=True):
            assert torch.equal(ours, theirs)
    with pytest.raises(InputError, match=r"the network cannot be prepared for .*; build it anew"):
        Detector.load(alone, run.load().network)


def test_the_file_says_what_it_is(run: Run) -> None:
    benchmark = training_run.benchmark()
    detector, evaluation = calibrate_run(run, alpha=0.1, benchmark=benchmark)
    notes = read_notes(run.detector_path)
    assert notes["spcp"] == spcp.__version__
    made = datetime.datetime.fromisoformat(notes["date"])
    assert abs(datetime.datetime.now(datetime.UTC) - made) < datetime.timedelta(minutes=10)
    assert notes["accuracy"] == evaluation.bank("test").accuracy()
    test = next(iter(notes["rates"]))
    assert (test["dataset"], test["samples"]) == ("test", len(benchmark.test))
    flagged = detector.detect(torch.cat([x for x, _ in benchmark.loader("test")])).is_ood
    assert test["flagged"] == pytest.approx(flagged.double().mean().item())
    assert {row["dataset"] for row in notes["rates"][1:]} == {
        role for role in benchmark.sets() if role.startswith(("near/", "far/", "shifted/"))
    }
    about = notes["calibration_data"]
    assert (about["name"], about["samples"]) == (benchmark.name, len(detector.calibration_scores))
    calibrate_run(run, "energy", alpha=0.1, benchmark=benchmark)  # which is fitted on nothing, so all are left for this
    about = read_notes(run.detector_path)["calibration_data"]
    assert benchmark.val is not None
    assert (about["samples"], about["fingerprint"]) == (40, data_fingerprint(benchmark.val))


def test_fingerprints_of_data(tmp_path: Path) -> None:
    """They follow the contents, not the place or the time of files."""
    for folder in ("here", "there"):
        for i in range(4):
            write_image(tmp_path / folder / "ab"[i % 2] / f"{i}.png", seed=i)
    here, there = (data.read_folder(tmp_path / folder) for folder in ("here", "there"))
    assert data_fingerprint(here) == data_fingerprint(there)
    write_image(tmp_path / "there" / "a" / "0.png", seed=9)
    assert data_fingerprint(here) != data_fingerprint(there)
    x, y = torch.arange(4.0)[:, None], torch.arange(4)
    sets = [data.TensorSet("s", a, b) for a, b in ((x, y), (x, y.flip(0)), (x.flip(0), y))]
    assert len({data_fingerprint(each) for each in sets}) == 3
    assert data_fingerprint(data.ItemSet("s", [x])) is None


def test_one_part_is_for_the_score_and_the_other_for_the_threshold(run: Run) -> None:
    benchmark = training_run.benchmark()
    for score, search in (("react", False), ("energy", True), (None, False)):
        detector, evaluation = calibrate_run(run, score, search=search, benchmark=benchmark)
        assert (len(evaluation.bank("val")), len(detector.calibration_scores)) == (21, 19)
    more = dataclasses.replace(benchmark, val=data.take(training_run.benchmark(240).train, range(50)))
    for search, parts in ((False, (11, 39)), (True, (31, 19))):  # a choice needs more samples than a fit
        detector, evaluation = calibrate_run(run, "react", search=search, benchmark=more)
        assert (len(evaluation.bank("val")), len(detector.calibration_scores)) == parts


def test_auto_chooses_on_one_part_and_calibrates_on_the_other(run: Run) -> None:
    plain = training_run.benchmark()
    x = torch.full((60, 1, 12, 12), 255, dtype=torch.uint8)
    x[::2] = 0
    flat = data.TensorSet("flat", x, torch.full((60,), -1))
    val = data.take(training_run.benchmark(240).train, range(120))
    benchmark = dataclasses.replace(plain, val=val, ood_val={"flat": flat})
    detector, evaluation = calibrate_run(run, "auto", benchmark=benchmark)
    rest = split(120)[1]
    assert len(detector.calibration_scores) == len(rest)
    assert len(evaluation.bank("val")) == 120 - len(rest)
    for choice in (detector.notes["choice"], read_notes(run.detector_path)["choice"], run.detector().notes["choice"]):
        typed = Choice.from_json(choice)
        assert SCORES[typed.score][0] is type(detector.score)
        assert "on ood_val/flat" in typed.reason
        assert {one.score for one in typed.candidates} >= {"energy", "knn", "consensus", "consensus-large"}
    assert {trial["dataset"] for trial in detector.notes["trials"]} >= {"ood_val/flat", "proxy/noise", "proxy/shuffled"}
    without = dataclasses.replace(benchmark, ood_val={})
    default = Choice.from_json(calibrate_run(run, "auto", benchmark=without)[0].notes["choice"])
    assert (default.score, default.candidates) == (DEFAULT, ())
    assert "there is no OOD validation data" in default.reason
    made = Choice.from_json(calibrate_run(run, "auto-proxies", benchmark=without)[0].notes["choice"])
    assert "on proxy/noise, proxy/blended" in made.reason
    few = Choice.from_json(calibrate_run(run, "auto", alpha=0.1, benchmark=_with(plain, flat, 18))[0].notes["choice"])
    assert "9 validation samples are too few" in few.reason
    assert few.candidates == ()


def _with(benchmark: data.Benchmark, ood: data.DataSet, count: int) -> data.Benchmark:
    assert benchmark.val is not None
    return dataclasses.replace(benchmark, val=data.take(benchmark.val, range(count)), ood_val={"flat": ood})


def test_a_blind_detector_is_not_shipped_silently(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """No score flags what is like ID data more often than that."""
    benchmark = training_run.benchmark()
    like = data.TensorSet("like", benchmark.test.x, torch.full((40,), -1))  # type: ignore[union-attr]
    with caplog.at_level("WARNING", logger="spcp"):
        calibrate_run(run, "msp", benchmark=dataclasses.replace(benchmark, ood_val={"like": like}))
    (message,) = (record.getMessage() for record in caplog.records if "blind" in record.getMessage())
    assert message.startswith("msp: this detector is blind to some inputs (")
    assert "% on ood_val/like" in message
    assert "try spcp calibrate RUN --score consensus" in message
    assert "--rho-norm 0" in message


def test_the_default_gives_way_where_outliers_score_above_id_samples(run: Run) -> None:
    """The mean image of each class is nearer to the centre of its class than any sample is."""
    benchmark = dataclasses.replace(training_run.benchmark(), val=data.take(training_run.benchmark().train, range(200)))
    x, y = (getattr(training_run.benchmark().train, name) for name in "xy")
    means = torch.stack([x[y == k].float().mean(0) for k in range(4)]).to(torch.uint8)
    central = data.TensorSet("central", means.repeat(10, 1, 1, 1), torch.full((40,), -1))
    detector, evaluation = calibrate_run(run, benchmark=dataclasses.replace(benchmark, ood_val={"central": central}))
    choice = Choice.from_json(detector.notes["choice"])
    assert choice.reason.startswith("the default ranks outliers above ID samples (AUROC ")
    assert "on ood_val/central" in choice.reason
    default, chosen = (next(c for c in choice.candidates if c.score == name) for name in (DEFAULT, choice.score))
    assert default.problem
    assert (not chosen.problem, chosen.mean("auroc")) > (False, default.mean("auroc"))
    # Chosen on other samples than it is calibrated on.
    assert len(evaluation.bank("val")) + len(detector.calibration_scores) == 200
    usual = Choice.from_json(calibrate_run(run, benchmark=benchmark)[0].notes["choice"])
    assert usual == Choice(DEFAULT, "the default")


def test_without_truncation(run: Run) -> None:
    benchmark = training_run.benchmark()
    detector, _ = calibrate_run(run, truncate=False, benchmark=benchmark)
    assert not detector.model.truncate
    assert not load_detector(run.folder)[0].model.truncate


def test_what_cannot_be(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="corners: has no validation data to calibrate on"):
        calibrate_run(run, benchmark=dataclasses.replace(training_run.benchmark(), val=None))
    bare = Detector(torch.nn.Linear(2, 2)).save(tmp_path / "bare.safetensors")
    with pytest.raises(InputError, match=r"bare.safetensors: does not name its network"):
        load_detector(bare)
