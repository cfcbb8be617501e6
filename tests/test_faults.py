"""A few faults; `benchmarks/faults.py` tries as many as you like."""

from __future__ import annotations

import faults
import pytest


@pytest.fixture(scope="module")
def bench() -> faults.Bench:
    """Every task, killed within a write; then the quick ones, with all other faults but disks, which are root's."""
    tasks = [task for task in faults.TASKS if task not in ("tune", "reproduce")]
    return faults.faults(tasks, kills=len(tasks), seed=0, kinds=("two", "clock", "moved"))


@pytest.mark.parametrize("fault", ["killed in a write", "two at once", "the clock jumps", "the folder moves"])
def test_what_a_fault_leaves_is_whole_and_goes_on(bench: faults.Bench, fault: str) -> None:
    assert {task for task, kind in bench.rows if kind == fault} >= {"train", "bank", "calibrate", "detect", "download"}
    assert [problem for problem in bench.problems if f", {fault}, " in problem] == []
