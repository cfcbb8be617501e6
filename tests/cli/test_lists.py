from __future__ import annotations

import json
from pathlib import Path

import pytest

from spcp import data
from spcp.experiments import BUDGETS, EXPERIMENTS
from spcp.methods import METHODS
from spcp.scores import SCORES

from . import Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def test_lists_are_complete(run: Spcp) -> None:
    methods, scores = run("methods").rows(), json.loads(run("scores", "--json").out)
    assert [row["method"] for row in methods] == list(METHODS)
    assert [row["score"] for row in scores] == list(SCORES)
    assert all(row["paper"] for row in scores)
    assert "cifar10" in [row["name"] for row in run("data", "list").rows()]


def test_experiments_and_budgets_are_listed(run: Spcp) -> None:
    result = run("reproduce")
    assert [row["name"] for row in result.rows()] == list(EXPERIMENTS)
    assert all(f"--budget {budget}: " in result.err for budget in BUDGETS)


@pytest.mark.parametrize(("problems", "code"), [([], 0), (["a.bin: its checksum differs; download it again"], 1)])
def test_data_is_verified(
    run: Spcp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, problems: list[str], code: int
) -> None:
    monkeypatch.setattr(data, "verify", lambda name, root: problems)
    result = run("data", "verify", "mnist", "--root", tmp_path)
    assert (result.code, result.out.splitlines()) == (code, problems)
    assert ("mnist: verified" in result.err) == (not problems)


def test_what_was_not_downloaded_cannot_be_verified(run: Spcp, tmp_path: Path) -> None:
    result = run("data", "verify", "mnist", "--root", tmp_path)
    assert result.code == 2  # nothing was downloaded
