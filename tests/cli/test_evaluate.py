from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import spcp
from spcp.runs import Run

from . import Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def test_eval_prints_the_table_of_evaluate(run: Spcp, trained: Path, tmp_path: Path) -> None:
    expected = spcp.evaluate(Run.open(trained), scores=["energy", "msp"])
    result = run("eval", trained, "-s", "energy,msp", "--out", tmp_path / "all.csv")
    assert [row["score"] for row in result.rows()] == ["energy", "energy", "msp", "msp"]
    for row in result.rows():
        row_of_table = expected.get(row["score"], row["group"], row["dataset"])
        assert float(row["auroc"]) == pytest.approx(row_of_table.auroc)
    assert "share of ID that is flagged" in result.err  # the convention
    written = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert float(written[0]["aupr_in"]) == pytest.approx(expected.rows[0].aupr_in)
    assert json.loads(run("eval", trained, "-s", "energy", "--json").out)[0]["fpr95_id"] >= 0


def test_eval_takes_other_weights_heads_and_several_runs(run: Spcp, trained: Path, tmp_path: Path) -> None:
    plain, best = (
        run("eval", trained, "-s", "energy", option).rows()[0] for option in ("--no-truncate", "--which=best")
    )
    last = Run.open(trained).load(truncate=False)
    expected = spcp.evaluate(last, Run.open(trained).benchmark(), ["energy"])
    assert float(plain["auroc"]) == pytest.approx(expected.rows[0].auroc)
    expected = spcp.evaluate(Run.open(trained), scores=["energy"], which="best")
    assert float(best["auroc"]) == pytest.approx(expected.rows[0].auroc)
    both = run("eval", trained, trained, "-s", "energy", "-o", tmp_path / "both.json")
    assert {row["run"] for row in both.rows()} == {str(trained)}
    assert len(json.loads((tmp_path / "both.json").read_text())) == len(both.rows())
    for name, message in (("table.md", "can hold one run only"), ("table.txt", "must end in")):
        result = run("eval", trained, trained, "-o", tmp_path / name)
        assert (result.code, message in result.err) == (2, True)
    assert run("eval", trained, "-s", "energy", "-o", tmp_path / "table.md").code == 0
    assert (tmp_path / "table.md").read_text().startswith("| score")
