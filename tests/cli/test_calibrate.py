from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from spcp.calibration import load_detector
from spcp.choice import Choice
from spcp.conformal import split
from spcp.runs import Run

from . import SMALL, Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def test_calibrate_shows_the_share_that_is_flagged(run: Spcp, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    result = run("calibrate", folder, "--alpha", 0.1, "--score", "msp")
    assert [row["dataset"] for row in result.rows()] == ["test", "far/plain"]
    detector, inputs = load_detector(folder)
    assert (detector.alpha, inputs.class_names) == (0.1, ("left", "right"))
    few = run("calibrate", folder, "--alpha", 0.001)
    assert few.code == 2
    assert "at least 1001 are needed" in few.err


def test_samples_a_score_is_fitted_on_are_not_calibrated_on(run: Spcp, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    whole = len(Run.open(folder).benchmark().val or ())
    threshold = len(split(whole)[1])
    for arguments, count in (
        (["-s", "energy"], whole),
        (["-s", "react"], threshold),
        (["-s", "gen", "--search"], threshold),
        ([], threshold),
    ):
        assert run("calibrate", folder, *arguments).code == 0
        assert len(load_detector(folder)[0].calibration_scores) == count


def test_calibrate_says_which_score_and_why(run: Spcp, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    auto = run("calibrate", folder, "--score", "auto", "--by", "auroc", "--alpha", 0.1)
    assert auto.code == 0
    choice = Choice.from_json(load_detector(folder)[0].notes["choice"])
    assert f"score: {choice.score}" in auto.err
    assert f"| {choice.score} (chosen) |" in auto.err
    assert f"; {choice.reason}" in auto.err
    assert "mean AUROC on ood_val/" in choice.reason
    assert "flagged of outliers made of ID samples at alpha = 0.1: noise" in auto.err
    default = run("calibrate", folder)
    assert "score: consensus (mds, mdspp, itp, gradnorm); the default" in default.err
    assert "(chosen)" not in default.err
    for option, message in (("--by", 'must be "detection_rate" or "auroc"'), ("--score", "there is no score 'x'")):
        wrong = run("calibrate", folder, "--score", "auto", "--alpha", 0.1, option, "x")
        assert (wrong.code, message in wrong.err) == (2, True)


def test_a_blind_detector_is_named_even_when_quiet(
    run: Spcp, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pixels of ID images are given as OOD data: nothing can tell them apart."""
    (tmp_path / "like").mkdir()
    for path in (photos / "id").glob("*/*"):
        Image.open(path).save(tmp_path / "like" / f"{path.parent.name}-{path.stem}.bmp")
    given = [*("--id", photos / "id", "--ood-val", f"like={tmp_path / 'like'}"), *SMALL]
    for command in (
        ["train", *given, "--out", tmp_path / "run", "--score", "msp"],
        ["tune", *given, "--grid", "0", "--out", tmp_path / "tuned"],  # the default, or the least bad of all
        ["calibrate", tmp_path / "run", "--score", "msp", "--quiet"],
    ):
        caplog.clear()
        result = run(*command, "--alpha", 0.2)
        assert result.code == 0
        (message,) = (record.getMessage() for record in caplog.records if "blind" in record.getMessage())
        assert ": this detector is blind to some inputs (AUROC " in message
        assert "% on ood_val/like" in message
        assert message.startswith("msp: ") or "msp" not in command
        assert "try: spcp detect" not in result.err
        assert ("flagged of" in result.err) is (command[-1] != "--quiet")
