from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from spcp.errors import InputError
from spcp.serving.server import exported_file

from ..serving.conftest import serving
from ..serving.files import write
from . import Spcp


def test_a_run_is_exported_once_and_served_with_the_decisions_of_detect(
    run: Spcp, trained: Path, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(trained, folder)
    assert run("calibrate", folder, "--score", "energy").code == 0
    chosen = sorted((photos / "id/left").iterdir())[:6] + sorted((photos / "ood").iterdir())[:4]
    rows = json.loads(run("detect", *chosen, "--run", folder, "--json").out)
    with serving(folder) as server:
        written = (folder / "detector.onnx").stat().st_mtime_ns
        _, body, _ = server.form(*((path.name, path.read_bytes()) for path in chosen))
    assert body["detector"] == {"name": "photos", "score": "energy"}
    for row, served in zip(rows, body["results"], strict=True):
        assert served["file"] == Path(row["file"]).name
        assert (served["is_ood"], served["class"]) == (row["is_ood"], row["class"])
        assert served["score"] == pytest.approx(row["score"], abs=1e-4)
        assert served["p_value"] == pytest.approx(row["p_value"], abs=0.02)  # a score can be equal but for rounding
    assert exported_file(folder).stat().st_mtime_ns == written


def test_a_file_that_is_older_than_the_detector_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    class Done:
        returncode, stderr = 0, ""

    def run(command: list[str], **_: object) -> Done:
        commands.append(command[3:])
        return Done()

    monkeypatch.setattr("spcp.serving.server.subprocess.run", run)
    file = write(tmp_path / "detector.onnx")
    assert exported_file(tmp_path) == file  # somebody shipped the folder without the detector
    (tmp_path / "detector.safetensors").touch()
    os.utime(file, (1, 1))
    assert exported_file(tmp_path, model="package:network") == file
    Done.returncode, Done.stderr = 2, "spcp: it has no score; calibrate it\n"
    with pytest.raises(InputError, match=r"cannot be exported \(it has no score; calibrate it\)"):
        exported_file(tmp_path)
    expected = ["export", str(tmp_path), "--out", str(file), "--quiet"]
    assert commands == [[*expected, "--model", "package:network"], expected]


def test_bad_input(run: Spcp, tmp_path: Path) -> None:
    def error(*arguments: object) -> str:
        result = run("serve", *arguments)
        assert (result.code, result.out) == (2, "")
        assert result.err.count("\n") == 1
        return result.err

    file = write(tmp_path / "detector.onnx")
    assert "there is no such file" in error(tmp_path / "no.onnx")
    (tmp_path / "damaged.onnx").write_bytes(file.read_bytes()[:500])
    assert "damaged.onnx: is not an ONNX file, or is damaged" in error(tmp_path / "damaged.onnx")
    (tmp_path / "run").mkdir()
    assert "run: has no calibrated detector; run spcp calibrate" in error(tmp_path / "run")
    assert "batch_size = 0 must be a whole number" in error(file, "--batch-size", 0)
    assert "workers = 0 must be a whole number" in error(file, "--workers", 0)
    assert "timeout = nan must be a number" in error(file, "--timeout", "nan")
    assert "port = 99999 must be a whole number" in error(file, "--port", 99999)
    assert "nowhere.invalid:8000: nobody can listen there" in error(file, "--host", "nowhere.invalid")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"127.0.0.1:{port}: nobody can listen there (Address already in use)" in error(file, "--port", port)
    bad = write(tmp_path / "bad.onnx", inputs={"shape": [3, 8, 8], "transform": {"kind": "smell"}})
    assert "bad.onnx: the description of the inputs cannot be read" in error(bad)
    result = run("serve", file, "--log", tmp_path / "no/log.jsonl")
    assert result.code == 1
    assert "no/log.jsonl: No such file or directory. Check the path" in result.err
