from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spcp.errors import InputError
from spcp.files import read_tensors, sweep, write_tensors, written


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with written(path) as file:
        file.write(b"first")
    with pytest.raises(TypeError), written(path) as file:
        file.writelines([b"second", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]
    (path.parent / ".file.killed").write_text("")
    sweep(path.parent, "file")
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
