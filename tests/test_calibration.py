from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
import training_run

from spcp import training
from spcp.calibration import calibrate_run, load_detector
from spcp.detector import Detector
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


def test_one_part_is_for_the_score_and_the_other_for_the_threshold(run: Run) -> None:
    benchmark = training_run.benchmark()
    for score, search in (("react", False), ("energy", True), (None, False)):
        detector, evaluation = calibrate_run(run, score, search=search, benchmark=benchmark)
        assert (len(evaluation.bank("val")), len(detector.calibration_scores)) == (21, 19)


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
