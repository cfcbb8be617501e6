from __future__ import annotations

from pathlib import Path

import pytest

from spcp import evaluation
from spcp.calibration import load_detector
from spcp.runs import Run

from . import SMALL, Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def test_tune_chooses_on_validation_data(run: Spcp, photos: Path, tmp_path: Path) -> None:
    arguments = ["tune", "--id", photos / "id", *SMALL, "--grid", "0,0.2,1", "--seeds", "0,1", "-o", tmp_path / "t"]
    result = run(*arguments)
    rows = result.rows()
    assert [row["rho_norm"] for row in rows] == ["0.0", "0.2", "1.0"]
    best = max(rows, key=lambda row: float(row["validation_auroc"]))
    assert [row["chosen"] for row in rows] == ["*" if row is best else "" for row in rows]
    assert f"rho_norm {float(best['rho_norm']):g}" in result.err
    weights = list((tmp_path / "t").rglob("last.safetensors"))
    assert len(weights) == 6
    times = {path: path.stat().st_mtime_ns for path in weights}
    assert run(*arguments).rows() == rows
    assert times == {path: path.stat().st_mtime_ns for path in weights}  # nothing was trained again
    assert Run.open(tmp_path / "t" / "rho_norm-0" / "seed-1").config.method == "plain"
    chosen = tmp_path / "t" / f"rho_norm-{float(best['rho_norm']):g}" / "seed-0"
    detector, _ = load_detector(chosen)
    chosen_on = Run.open(chosen).chosen_on(Run.open(chosen).benchmark())
    assert chosen_on is not None
    assert len(detector.calibration_scores) == len(Run.open(chosen).benchmark().val or ()) - len(chosen_on)
    (tmp_path / "t").rename(tmp_path / "moved")
    moved = Run.open(tmp_path / "moved" / "rho_norm-0" / "seed-1")
    assert moved.benchmark().class_names == ("left", "right")  # described in the folder of the tuning


def test_what_a_choice_rests_on_is_said(
    run: Spcp, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    evaluation._tell_of_noise.cache_clear()
    arguments = ["tune", "--id", photos / "id", *SMALL, "--grid", "0.2,0.5", "-o", tmp_path / "t", "--jobs", 1]
    result = run(*arguments)
    assert [row["deviation"] for row in result.rows()] == ["", ""]  # of one seed
    assert caplog.text.count("id: has no OOD validation data (--ood-val), so Gaussian noise stands in") == 1
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert " - " in run(*arguments).out
    monkeypatch.setattr(evaluation.Evaluation, "validation_auroc", lambda *_: 0.427)
    run(*arguments)
    assert "the best AUROC of energy on ood_val/noise is 42.7 %: below 50," in caplog.text


def test_a_run_that_fails_is_named_and_the_others_are_done(run: Spcp, photos: Path, tmp_path: Path) -> None:
    other = ["train", "--id", photos / "id", *SMALL, "--rho-norm", "0.2", "--lr", "0.01"]
    folder = tmp_path / "t" / "rho_norm-0.2" / "seed-0"
    assert run(*other, "-o", folder).code == 0
    (folder / "benchmark.toml").rename(tmp_path / "t" / "benchmark.toml")
    result = run("tune", "--id", photos / "id", *SMALL, "--grid", "0,0.2", "-o", tmp_path / "t", "--jobs", 2)
    assert result.code == 2
    assert "rho_norm-0.2/seed-0: failed: " in result.err
    assert "1 of 2 runs failed; the others are done. Put right what is wrong" in result.err
    assert "its run has lr = 0.01, not" in result.err
    assert Run.open(tmp_path / "t" / "rho_norm-0" / "seed-0").history
