from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spcp.calibration import load_detector
from spcp.exported import ExportedDetector

from . import Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def test_export_and_calibrate_the_file(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    """Its verdicts on files are those of spcp detect."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    done = run("export", folder)
    assert (done.code, done.out) == (0, ""), done.err
    assert f"written: {folder / 'detector.onnx'}, " in done.err
    again = run("calibrate", folder / "detector.onnx")
    assert [row["dataset"] for row in again.rows()] == ["test", "far/plain"]
    assert set(again.rows()[0]) == {"dataset", "samples", "flagged", "accuracy"}
    detector, _ = load_detector(folder)
    exported = ExportedDetector.open(folder / "detector.onnx")
    assert exported.metadata["calibration_samples"] == len(detector.calibration_scores)
    assert exported.metadata["threshold"] == pytest.approx(detector.score_thresholds.item(), abs=0.5)
    assert exported.metadata["run"]["name"] == "run"
    assert run("calibrate", folder, "--score", "knn").code == 0  # which has a bank
    inside = tmp_path / "prepares.onnx"
    rows = run("export", folder, "--preprocessing", "--int8", "static", "--bank", 60, "--out", inside).rows()
    assert [row["dataset"] for row in rows] == ["test", "far/plain"]
    shown = run("detect", photos / "ood", "--run", folder).rows()
    images = np.stack([np.asarray(Image.open(row["file"])) for row in shown])
    flagged = ExportedDetector.open(inside).detect(images).is_ood
    assert np.mean(flagged == [row["is_ood"].lower() == "true" for row in shown]) > 0.9  # int8 and a smaller bank


def test_what_cannot_be_exported(run: Spcp, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for arguments, message in (
        ([folder, "--out", "x.bin"], "x.bin: must end in .onnx, or in .pt2"),
        ([folder, "--out", "x.pt2", "--int8", "static"], "x.pt2: int8 is for ONNX files"),
        ([folder, "--out", "x.pt2", "--preprocessing"], "x.pt2: the preprocessing goes into ONNX files only"),
        ([tmp_path], "config.json"),
    ):
        wrong = run("export", *arguments)
        assert (wrong.code, message in wrong.err.replace("\n", " ")) == (2, True), wrong.err
    (folder / "detector.safetensors").unlink()
    wrong = run("export", folder)
    assert (wrong.code, "holds no calibrated detector; make one: spcp calibrate" in wrong.err) == (2, True)
    (tmp_path / "d.onnx").touch()
    wrong = run("calibrate", tmp_path / "d.onnx")
    assert (wrong.code, "must lie in the folder of its run" in wrong.err) == (2, True)
