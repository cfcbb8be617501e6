from __future__ import annotations

import csv
from pathlib import Path

import pytest

from . import SMALL, Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def test_runs_that_differ_in_the_seed_count_as_one(run: Spcp, photos: Path, tmp_path: Path) -> None:
    """Each run has a description of the data, but it is the same data."""
    data = ["--id", photos / "id", "--ood", f"plain={photos / 'ood'}", *SMALL]
    runs = [tmp_path / f"{method}-{seed}" for method in ("plain", "spcp") for seed in (0, 1)]
    for folder in runs:
        method, seed = folder.name.split("-")
        assert run("train", *data, "-m", method, "--seed", seed, "--out", folder).code == 0
    (tmp_path / "no-run").mkdir()
    result = run("report", *runs, tmp_path / "no-run", "--out", tmp_path / "report", "-s", "energy,msp")
    assert "skipped" in result.err
    assert result.out == f"{tmp_path / 'report' / 'report.html'}\n"
    rows = list(csv.DictReader((tmp_path / "report" / "results.csv").read_text().splitlines()))
    assert {(row["arm"], row["seed"]) for row in rows} == {
        (arm, seed) for arm in ("plain", "SPCP (rho_norm 0.2)") for seed in ("0", "1")
    }
    assert run("train", *data, "--size", 12, "-m", "plain", "--out", tmp_path / "smaller").code == 0
    mixed = run("report", runs[0], tmp_path / "smaller", "--out", tmp_path / "mixed")
    assert mixed.code == 2
    assert "is on other data" in mixed.err
    assert not (tmp_path / "mixed").exists()
