"""Several processes under torchrun evaluate as one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spcp import processes
from spcp.files import read_tensors

SCRIPT = Path(__file__).parent / "evaluation_run.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def evaluate(folder: Path, trained: Path, *launcher: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Evaluate a run with a cache in a folder, by a process of its own or by several."""
    folder.mkdir(exist_ok=True)
    files = [str(folder / name) for name in ("notes.txt", "scores.safetensors")]
    arguments = ["eval", str(trained), "--out", str(folder / "table.json")]
    settings = {**os.environ, "SPCP_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *launcher, str(SCRIPT), *files, *arguments]
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("cache/banks/*/*.safetensors"))  # not what a killed process was writing


def test_a_process_is_killed_and_the_next_ones_go_on(trained: Path, tmp_path: Path) -> None:
    """The command fails, whole shards stay; then two processes make the rest, and all is as one process has it."""
    alone = evaluate(tmp_path / "one", trained)
    assert alone.returncode == 0, alone.stderr
    two = tmp_path / "two"
    killed = evaluate(two, trained, *TORCHRUN, DIE="1")
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr
    assert "another process of this command has ended" in killed.stderr
    assert "run the same command again" in killed.stderr
    assert not killed.stdout
    assert not (two / "table.json").exists()
    left = shards(two)
    assert 1 <= len(left) < len(shards(tmp_path / "one"))
    for path in left:
        read_tensors(path, ours=True)  # whole

    again = evaluate(two, trained, *TORCHRUN)
    assert again.returncode == 0, again.stderr[-5000:]
    made = [sorted((folder / "notes.txt").read_text().split()) for folder in (two, tmp_path / "one")]
    assert made[0] == made[1]  # nothing is missing, nothing was made twice
    assert [path.name for path in shards(two)] == made[1]
    assert again.stdout == alone.stdout
    assert (two / "table.json").read_bytes() == (tmp_path / "one" / "table.json").read_bytes()
    scores, expected = (read_tensors(folder / "scores.safetensors")[0] for folder in (two, tmp_path / "one"))
    assert scores.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(scores[name], expected[name])]
    assert not different


def test_alone_there_is_nothing_to_join() -> None:
    with processes.joined():
        assert (processes.rank(), processes.count(), processes.share(5)) == (0, 1, range(5))
        assert list(processes.in_order(str, 3)) == ["0", "1", "2"]
        assert processes.gathered("a") == ["a"]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 5, 16])
def test_shares_follow_each_other(monkeypatch: pytest.MonkeyPatch, n: int, count: int) -> None:
    shares = []
    for rank in range(count):
        monkeypatch.setattr(processes, "_place", (rank, count))
        shares.append(processes.share(n))
        assert all(i * count // n == rank for i in shares[-1])  # the sender in `in_order`
    assert [i for share in shares for i in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
