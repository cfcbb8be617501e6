from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from spcp import files
from spcp.errors import InputError
from spcp.files import let_go, locked, read_tensors, stacked, write_tensors, written


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with written(path) as file:
        file.write(b"first")
    with pytest.raises(TypeError), written(path) as file:
        file.writelines([b"second", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]


def test_tensors_come_back(tmp_path: Path) -> None:
    path, x = tmp_path / "x.safetensors", torch.randn(4, 3, requires_grad=True)
    write_tensors(path, {"x": x, "view": x.t()}, {"note": "text"})
    tensors, notes = read_tensors(path)
    assert torch.equal(tensors["view"], x.t())
    assert torch.equal(tensors["x"], x)
    assert notes == {"note": "text"}
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"x.safetensors: not a safetensors file, or damaged"):
        read_tensors(path)
    with pytest.raises(InputError, match="there is no such file"):
        read_tensors(tmp_path / "nothing")


@pytest.mark.parametrize("limit", [1 << 30, 1000, 0])
def test_rows_that_are_too_many_for_memory_lie_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(files, "IN_MEMORY", limit)
    parts = [torch.randn(n, 3, 700) for n in (2, 0, 5, 1)]
    rows = stacked(iter(parts), tmp_path / "folder")
    assert torch.equal(rows, torch.cat(parts))
    assert len(files._MAPPED) == (limit <= 1000)
    for piece in rows.split(3):
        let_go(piece)
    assert torch.equal(rows, torch.cat(parts))
    assert not list(tmp_path.glob("folder/*"))  # nothing is left there, even if this process is killed
    let_go(parts[0])
    del rows, piece
    assert not files._MAPPED


KILLED = """
import os, signal, sys
from pathlib import Path
from spcp.files import locked, written
path = Path(sys.argv[1])
with locked(path.parent) if sys.argv[2:] else written(path) as file:
    print("there", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process that writes a file, or locks its folder, until it is killed."""
    command = [sys.executable, "-c", KILLED, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        yield other
        other.send_signal(signal.SIGKILL)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """But not what another one is writing, nor a file that somebody else has beside it."""
    path, others = tmp_path / "a[1]", tmp_path / ".a[1].swp"
    others.write_text("an editor's")
    with process(path):
        assert len(list(tmp_path.iterdir())) == 2
        with written(path) as file:
            file.write(b"mine")
        assert len(list(tmp_path.iterdir())) == 3
    with written(path) as file:
        file.write(b"mine")
    assert sorted(tmp_path.iterdir()) == [others, path]


def test_who_locks_a_folder_removes_all_that_killed_processes_left_there(tmp_path: Path) -> None:
    with process(tmp_path / "killed"):
        pass
    (tmp_path / ".an editor's.swp").write_text("")
    with process(tmp_path / "in use"), locked(tmp_path):
        assert sorted(path.name.split(".")[1] for path in tmp_path.iterdir()) == ["an editor's", "in use", "lock"]


def test_files_have_the_permissions_of_others_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's mask holds, and is not changed for other threads."""
    monkeypatch.setattr(os, "umask", None)
    with written(tmp_path / "file") as file:
        file.write(b"")
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_one_process_writes_into_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with process(folder / "file", "lock") as other:
        with pytest.raises(InputError, match=f"run: process {other.pid} on .* is writing into it; wait until it ends"):
            locked(folder).__enter__()
        refused: list[InputError] = []
    with locked(folder):  # the killed one holds it no longer
        (folder / "file").write_text("")
        thread = threading.Thread(target=lambda: refused.extend(_refusals(folder)))
        thread.start()
        thread.join()
        assert len(refused) == 1
    assert [path.name for path in folder.iterdir()] == ["file"]
    with locked(tmp_path / "new" / "run"):
        assert (tmp_path / "new" / "run").is_dir()
    assert not (tmp_path / "new").exists()  # it stayed empty


def _refusals(folder: Path) -> Iterator[InputError]:
    try:
        with locked(folder):
            pass
    except InputError as error:
        yield error


@pytest.mark.parametrize("change", ["value", "name", "shape", "dtype", "note"])
def test_changed_tensors_are_noticed(tmp_path: Path, change: str) -> None:
    """Whatever was changed, even where the bytes of the tensors are the same."""
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"x": torch.zeros(4, 3)}, {"note": "text"})
    with pytest.importorskip("safetensors").safe_open(path, "pt") as file:
        notes = file.metadata()
    x = {"value": torch.ones(4, 3), "shape": torch.zeros(3, 4), "dtype": torch.zeros(4, 3, dtype=torch.int32)}
    notes |= {"note": "other"} if change == "note" else {}
    name = "y" if change == "name" else "x"
    path.write_bytes(safetensors.save({name: x.get(change, torch.zeros(4, 3))}, notes))
    with pytest.raises(InputError, match=r"x.safetensors: is damaged, or was changed .*; write it again"):
        read_tensors(path)
    path.write_bytes(safetensors.save({"x": torch.zeros(4, 3)}))
    assert torch.equal(read_tensors(path)[0]["x"], torch.zeros(4, 3))  # somebody else's
    with pytest.raises(InputError, match="was not written by spcp, or is damaged"):
        read_tensors(path, ours=True)
