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
from spcp.data.prepared import data_fingerprint
from spcp.detector import Detector, read_notes
from spcp.errors import InputError
from spcp.runs import Run

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return training.train(training_run.config("spcp", 2), folder, benchmark=training_run.benchmark())


def test_calibrate_and_load(run: Run, tmp_path: Path) -> None:
    benchmark = training_run.benchmark()
    detector, evaluation = calibrate_run(run, alpha=0.1, benchmark=benchmark)
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
    assert (about["name"], about["samples"]) == (benchmark.name, 40)
    assert benchmark.val is not None
    assert about["fingerprint"] == data_fingerprint(benchmark.val)


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


def test_one_half_is_for_the_score_and_the_other_for_the_threshold(run: Run) -> None:
    benchmark = training_run.benchmark()
    for score, search in (("react", False), ("energy", True)):
        detector, evaluation = calibrate_run(run, score, search=search, benchmark=benchmark)
        assert len(detector.calibration_scores) == len(evaluation.bank("val")) == 20


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
