"""`spcp detect` over large inputs: archives, files of results, and what a kill leaves."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from spcp import Detector, detection, export, progress
from spcp.calibration import load_detector
from spcp.data import listing
from spcp.exported import ExportedDetector

from . import Spcp

parquet = pytest.importorskip("pyarrow.parquet")
arrow = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


@pytest.fixture
def some(photos: Path, tmp_path: Path) -> Path:
    """A folder of 30 images and one that is damaged."""
    folder = tmp_path / "some"
    folder.mkdir()
    for i in range(0, 60, 2):
        shutil.copy(photos / "id" / "left" / f"{i}.png", folder / f"{i:02}.png")
    (folder / "20.png").write_bytes((folder / "20.png").read_bytes()[:60])
    return folder


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file of results, as JSON has them."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        rows = parquet.read_table(path).to_pylist()
        return [{key: row[key] for key in row if key != "problem" or row[key]} for row in rows]
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    values = lambda row: {k: row[k] if k in ("file", "class", "problem") else json.loads(row[k] or "null") for k in row}  # noqa: E731
    return [{k: v or None for k, v in values(row).items() if k != "problem" or v} | _ood(row) for row in rows]


def _ood(row: dict[str, str]) -> dict[str, Any]:
    return {"is_ood": {"true": True, "false": False, "": None}[row["is_ood"]]}


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def score(row: dict[str, Any]) -> Any:
    return pytest.approx(float(row["score"]), abs=1e-3) if row["score"] not in (None, "") else row["score"]


def test_archives_and_tables_hold_images(run: Spcp, trained: Path, some: Path, tmp_path: Path) -> None:
    """Their rows are those of the files, but for the names."""
    files = sorted(some.iterdir())
    plain = run("detect", some, "--run", trained, "--workers", 0).rows()
    for mode, name in (("w", "a.tar"), ("w:gz", "b.tar.gz")):
        with tarfile.open(tmp_path / name, mode) as tar:
            for file in files:
                add(tar, f"./{'long-' * 30}{file.stem}.json", b"{}")
                add(tar, f"./{'long-' * 30}{file.name}", file.read_bytes())
                add(tar, f"._{file.name}", b"a resource fork")
    content = [file.read_bytes() for file in files]
    other = arrow.array([b"x"] * len(content))
    parquet.write_table(arrow.table({"img": content, "raw": other}), tmp_path / "c.parquet", row_group_size=7)
    structs = [{"bytes": bytes_, "path": None} for bytes_ in content[:-1]] + [{"bytes": None, "path": "lost.png"}]
    parquet.write_table(arrow.table({"raw": other, "picture": structs}), tmp_path / "d.parquet")
    parquet.write_table(arrow.table({"picture": structs, "n": list(range(len(content)))}), tmp_path / "e.parquet")
    for name in ("a.tar", "b.tar.gz", "c.parquet", "e.parquet"):
        result = run("detect", tmp_path / name, "--run", trained, "--batch-size", 8, "--workers", 0)
        rows = result.rows()
        last = 1 if name == "e.parquet" else 0
        assert result.code == 3
        assert "could not be read" in result.err
        for i, (row, file, same) in enumerate(zip(rows, files, plain, strict=True)):
            own = f"/{'long-' * 30}{file.name}" if "tar" in name else f"[{i}]"
            assert row["file"] == f"{tmp_path / name}{own}"
            if i < len(files) - last:
                assert (row["class"], float(row["score"] or 0)) == (same["class"], score(same) if same["score"] else 0)
                assert bool(row["problem"]) == bool(same["problem"])
                assert row["problem"].startswith(row["file"] if row["problem"] else "")
    assert "holds no bytes" in rows[-1]["problem"]
    unclear = run("detect", tmp_path / "d.parquet", "--run", trained)
    assert unclear.code == 2
    assert "raw, picture (--column)" in unclear.err
    options = ["--column", "picture", "--batch-size", 8, "--workers", 0]
    named = run("detect", tmp_path / "d.parquet", "--run", trained, *options).rows()
    assert [row["score"] for row in named] == [row["score"] for row in rows]


def test_damaged_archives_are_rows(run: Spcp, trained: Path, some: Path, tmp_path: Path) -> None:
    """What lies before the damage is judged; what cannot be told apart is one row."""
    files = sorted(some.iterdir())[:6]
    with tarfile.open(tmp_path / "whole.tar", "w") as tar:
        for file in files:
            add(tar, file.name, file.read_bytes())
    whole = (tmp_path / "whole.tar").read_bytes()
    place = whole.index(b"06.png")
    (tmp_path / "cut.tar").write_bytes(whole[: place + 700])  # within the fourth
    (tmp_path / "header.tar").write_bytes(whole[:place] + b"\xff" * 512 + whole[place + 512 :])
    (tmp_path / "none.tar").write_bytes(b"no archive")
    (tmp_path / "none.parquet").write_bytes(b"no table")
    rows = run("detect", tmp_path / "*.tar", tmp_path / "*.parquet", "--run", trained, "--workers", 0).rows()
    names = [row["file"].removeprefix(f"{tmp_path}/") for row in rows]
    assert names == [
        *("cut.tar/00.png", "cut.tar/02.png", "cut.tar/04.png", "cut.tar/06.png", "cut.tar"),
        *("header.tar/00.png", "header.tar/02.png", "header.tar/04.png", "header.tar"),
        "none.tar",
        *(f"whole.tar/{file.name}" for file in files),
        "none.parquet",
    ]
    problems = {name: row["problem"] for name, row in zip(names, rows, strict=True) if row["problem"]}
    assert list(problems) == ["cut.tar/06.png", "cut.tar", "header.tar", "none.tar", "none.parquet"]
    assert f"is damaged at byte {place}" in problems["header.tar"]
    assert "ends within this file" in problems["cut.tar/06.png"]


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_files_of_results_go_on_wherever_they_are_cut(
    ending: str, run: Spcp, trained: Path, some: Path, tmp_path: Path
) -> None:
    (some / 'new\nline, "quoted".png').write_bytes((some / "00.png").read_bytes())
    out, summary = tmp_path / f"out{ending}", tmp_path / "summary.json"
    command = ["detect", some, "--run", trained, "--out", out, "--batch-size", 8, "--workers", 0]
    first = run(*command, "--summary", summary)
    assert (first.code, first.out) == (3, "")
    expected = json.loads(run("detect", some, "--run", trained, "--json", "--batch-size", 8, "--workers", 0).out)
    assert read(out) == expected
    about = json.loads(summary.read_text())
    assert about.pop("seconds") > 0
    assert about.pop("rate") > 0
    counts = {"inputs": 31, "flagged": sum(row["is_ood"] is True for row in expected), "unreadable": 1, "before": 0}
    assert about == counts | {"alpha": 0.05, "detector": str(trained), "out": str(out)}
    whole = out.read_bytes()
    if ending == ".parquet":  # its rows are lines until it is finished
        lines = out.with_name(f".{out.name}.rows")
        assert not lines.exists()
        whole_lines = "".join(json.dumps(row) + "\n" for row in expected).encode()
    else:
        lines, whole_lines = out, whole
    places = [0, 1, 40, len(whole_lines) // 2, whole_lines.rindex(b"line") + 2, len(whole_lines) - 1, len(whole_lines)]
    for place in places:
        if ending == ".parquet":
            out.unlink()
        lines.write_bytes(whole_lines[:place])
        again = run(*command)
        assert again.code == 3
        assert read(out) == expected
        assert out.read_bytes() == whole or ending == ".parquet"
    assert run(*command).code == 3  # nothing is left to do
    assert read(out) == expected
    shutil.copy(some / "00.png", some / "zz.png")  # behind all others
    more = run(*command)
    assert "has 31 rows already" in more.err or "has 24 rows already" in more.err
    assert [row["file"] for row in read(out)] == [*(row["file"] for row in expected), str(some / "zz.png")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f".out{ending}.state", f"out{ending}", "some", "summary.json"]
    )


def test_another_detector_or_other_inputs_are_refused(run: Spcp, trained: Path, some: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    command = ["detect", some, "--out", out, "--workers", 0]
    run(*command, "--run", trained)
    before = out.read_bytes()
    detector, _ = load_detector(trained)
    detector.save(tmp_path / "other.safetensors", {"other": True})
    shutil.copy(some / "00.png", some / "01.png")
    first = sorted(some.iterdir())[0]
    for arguments, message in (
        ((*command, "--run", tmp_path / "other.safetensors"), "was begun with another detector"),
        ((*command, "--run", trained, "--explain"), "was begun with another --explain"),
        ((*command, "--run", trained), f"has a row of {some / '02.png'} where the inputs have {some / '01.png'}"),
        (("detect", first, "--out", out, "--run", trained), "has more rows than there are inputs, 1"),
    ):
        refused = run(*arguments)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert message in refused.err
        assert "--restart" in refused.err
        assert out.read_bytes() == before
    assert run(*command, "--run", trained, "--restart").code == 3
    assert len(read(out)) == 31
    out.with_name(".out.csv.state").unlink()
    assert "nothing says what made it" in run(*command, "--run", trained).err
    assert ".csv, .jsonl or .parquet" in run("detect", some, "--out", tmp_path / "out.txt", "--run", trained).err
    assert "leave out --format" in run(*command, "--format", "csv", "--run", trained).err
    (tmp_path / "folder.csv").mkdir()
    assert "is not a file" in run("detect", some, "--out", tmp_path / "folder.csv", "--run", trained).err


def test_rows_are_printed_in_every_form(run: Spcp, trained: Path, some: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    command = ["detect", some, some / "00.png", some, "--run", trained, "--batch-size", 10, "--workers", 0]
    as_csv = run(*command)
    lines = [json.loads(line) for line in run(*command, "--format", "jsonl").out.splitlines()]
    assert json.loads(run(*command, "--format", "json").out) == lines
    assert [row["file"] for row in as_csv.rows()] == [row["file"] for row in lines]
    assert len(lines) == 30  # what is named twice comes once
    assert [bool(row.get("problem")) for row in lines] == [row["file"].endswith("20.png") for row in lines]
    assert "detecting: 10" in as_csv.err
    assert "detecting: 30 of 30, " in as_csv.err
    assert "/s, 0:00 left" in as_csv.err
    assert "detecting" not in run(*command, "--quiet").err


def test_a_list_is_answered_line_by_line(trained: Path, some: Path) -> None:
    """While the next name is not known yet."""
    command = [sys.executable, "-m", "spcp.cli", "detect", "--follow", "--run", str(trained), "--quiet"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for name, known in ((some / "00.png", True), (some / "nothing.png", False), (some / "02.png", True)):
            process.stdin.write(f"{name}\n")
            row = json.loads(process.stdout.readline())
            assert row["file"] == str(name)
            assert ("problem" not in row, row["is_ood"] is None) == (known, not known)
        rest, _ = process.communicate(f"{some}\n{some / '04.png'}\n")
    assert len(rest.splitlines()) == 31
    assert process.returncode == 3


def test_a_kill_costs_no_row_and_doubles_none(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    """The list ends only after the kill, so that it comes in the middle; workers decode."""
    names = [str(path) for path in sorted((photos / "id" / "left").iterdir())]
    out, listed = tmp_path / "out.csv", "".join(f"{name}\n" for name in names)
    arguments = ["detect", "-", "--run", str(trained), "--out", str(out), "--batch-size", "4", "--workers", "2"]
    command = [sys.executable, "-m", "spcp.cli", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("".join(f"{name}\n" for name in names[:100]).encode())
        process.stdin.flush()
        end = time.monotonic() + 120
        while not out.exists() or out.read_bytes().count(b"\n") < 41:
            assert time.monotonic() < end
            time.sleep(0.01)
        busy = run(*arguments, stdin=listed)
        assert busy.code == 2
        assert "another process is writing into it" in busy.err
        os.kill(process.pid, signal.SIGKILL)
    with open(out, "ab") as file:
        file.write(names[99].encode()[:10])  # as if the kill had come within a write
    again = run(*arguments, stdin=listed)
    assert again.code == 0
    assert "rows already; going on from there" in again.err
    assert [row["file"] for row in read(out)] == names
    alone = tmp_path / "alone.csv"
    run(*arguments[:5], str(alone), *arguments[6:], stdin=listed)
    assert out.read_bytes() == alone.read_bytes()  # to the bit


def test_ctrl_c_says_how_to_go_on(
    run: Spcp, trained: Path, some: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = detection.detect_windows

    def interrupted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for i, window in enumerate(results(*arguments, **options)):
            yield window
            if i == 1:
                raise KeyboardInterrupt

    command = ["detect", some, "--run", trained, "--out", tmp_path / "out.parquet", "--batch-size", 8, "--workers", 0]
    with monkeypatch.context() as patch:
        patch.setattr(detection, "detect_windows", interrupted)
        stopped = run(*command)
    assert stopped.code == 130
    assert "has 16 rows; the same command goes on from there" in stopped.err
    assert not (tmp_path / "out.parquet").exists()
    assert run(*command).code == 3
    assert len(read(tmp_path / "out.parquet")) == 30


def test_a_worker_that_is_killed_is_one_sentence(
    run: Spcp, trained: Path, some: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getpid()
    monkeypatch.setattr(
        listing, "open_image", lambda *_, **__: os.getpid() != here and os.kill(os.getpid(), signal.SIGKILL)
    )
    result = run("detect", some, "--run", trained, "--batch-size", 8, "--workers", 2)
    assert result.code == 2
    assert "a process that decodes was ended from outside" in result.err


def test_options_out_of_range(run: Spcp, trained: Path, some: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for option, value in (("--batch-size", 0), ("--workers", -1), ("--device", "nowhere")):
        result = run("detect", some, "--run", trained, option, value)
        assert result.code == 2
        assert option in result.err
    assert run("detect", some, "--run", trained, "--device", "cpu", "--workers", 0).code == 3
    assert "leave out files" in run("detect", some, "--follow", "--run", trained).err
    assert "no files to classify" in run("detect", "--run", trained).err
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run("detect", "-", "--run", trained) == (2, "", "spcp: there are no files to classify; name some\n")


@pytest.mark.parametrize("preprocessing", [False, True])
def test_an_exported_detector_decides_alike(
    preprocessing: bool, run: Spcp, trained: Path, some: Path, photos: Path, tmp_path: Path
) -> None:
    """And takes images of any size, where it prepares them itself."""
    pytest.importorskip("onnxruntime")
    loaded, inputs = load_detector(trained)
    images = [np.asarray(Image.open(path)) for path in sorted((photos / "id" / "left").iterdir())[:40]]
    detector = Detector(loaded.model.network, "energy").calibrate(export.prepared(images, inputs.transform))
    samples: Any = images if preprocessing else export.prepared(images, inputs.transform)
    path = detector.export(tmp_path / "detector.onnx", samples, inputs=inputs, preprocessing=preprocessing)
    Image.open(photos / "id" / "left" / "0.png").resize((31, 20)).save(some / "large.png")
    out = tmp_path / "out.jsonl"
    result = run("detect", some, "--run", path, "--workers", 2, "--batch-size", 1, "--out", out)
    assert result.code == 3
    exported = ExportedDetector.open(path)
    for row, file in zip(read(out), sorted(some.iterdir()), strict=True):
        assert row["file"] == str(file)
        assert ("problem" in row) == (file.name == "20.png")
        if "problem" not in row:
            pixels = np.asarray(Image.open(file))
            one = exported.detect(
                pixels[None] if preprocessing else export.prepared([pixels], inputs.transform).numpy()
            )
            assert (row["class"], row["is_ood"]) == (inputs.class_names[one.predictions[0]], bool(one.is_ood[0]))
            assert (row["score"], row["p_value"]) == pytest.approx((one.scores[0], one.p_values[0]), abs=1e-3)
    for option in ("--explain", "--device=cuda"):
        assert run("detect", some, "--run", path, option).code == 2
