from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import training_run

from spcp import data, training
from spcp.calibration import calibrate_run, load_detector
from spcp.detect_files import detect_files, find_files
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
    with pytest.raises(InputError, match="the network cannot be prepared for .*; build it anew"):
        Detector.load(alone, run.load().network)


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


def test_detect_files(run: Run, tmp_path: Path) -> None:
    """Arrays and images, in the order they are named; what cannot be read has a problem."""
    benchmark = training_run.benchmark()
    detector, _ = calibrate_run(run, benchmark=benchmark)
    test = benchmark.test
    assert isinstance(test, data.TensorSet)
    np.savez(tmp_path / "a.npz", images=test.x.permute(0, 2, 3, 1).numpy())
    image = pytest.importorskip("PIL.Image")
    for i in range(3):
        image.fromarray(test.x[i, 0].numpy()).save(tmp_path / f"{i}.png")
    (tmp_path / "1.png").write_bytes(b"damaged")
    files = [tmp_path / "a.npz", *find_files([str(tmp_path / "*.png")])]
    results = list(detect_files(detector, run.inputs, files))
    expected = detector.detect(torch.cat([x for x, _ in benchmark.loader("test")]))
    assert [result.file for result in results[:2]] == [f"{files[0]}[0]", f"{files[0]}[1]"]
    assert [result.is_ood for result in results[:40]] == expected.is_ood.tolist()
    assert [result.class_name for result in results[:40]] == [tuple("abcd")[k] for k in expected.predictions.tolist()]
    assert [bool(result.problem) for result in results[40:]] == [False, True, False]
    assert results[40].is_ood == results[0].is_ood
    assert results[42].p_value == pytest.approx(results[2].p_value)
    assert results[41].as_record()["is_ood"] is None
    assert "damaged" in results[41].as_record()["problem"] or "1.png" in results[41].as_record()["problem"]
    assert "problem" not in results[40].as_record()
    with pytest.raises(InputError, match="there is no such file or folder"):
        find_files([str(tmp_path / "nothing")])
