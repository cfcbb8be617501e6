from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spcp.scores import MEMBERS

from . import Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def test_detect_reads_files_folders_patterns_and_lists(run: Spcp, trained: Path, photos: Path) -> None:
    id_, ood = photos / "id" / "left", photos / "ood"
    result = run("detect", id_, ood, "--run", trained)
    rows = result.rows()
    assert result.code == 0
    assert len(rows) == 230
    assert {row["class"] for row in rows} <= {"left", "right"}
    assert sum(row["is_ood"] == "true" for row in rows[:200]) <= 30  # ID: 5 % in expectation
    for row in rows:  # which agrees with the p-value
        assert (row["is_ood"] == "true") == (float(row["p_value"]) <= 0.05)
    patterns = run("detect", f"{id_}/1*.png", "--run", trained).rows()
    assert {row["file"] for row in patterns} == {
        row["file"] for row in rows if Path(row["file"]).name.startswith("1") and "left" in row["file"]
    }
    listed = run("detect", "-", "--run", trained, stdin="\n".join(row["file"] for row in patterns)).rows()
    assert listed == patterns
    (one,) = json.loads(run("detect", id_ / "0.png", "--run", trained, "--json").out)
    assert one["file"] == str(id_ / "0.png")
    assert one["is_ood"] is False
    same = next(row for row in rows if row["file"] == one["file"])
    assert one["score"] == pytest.approx(float(same["score"]), abs=1e-3)


def test_detect_needs_one_file_alone(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    """The detector's file holds everything: neither the run nor the data is needed."""
    alone = shutil.copy(trained / "detector.safetensors", tmp_path / "mine.safetensors")
    picture = shutil.copy(photos / "id" / "left" / "0.png", tmp_path)
    there, here = (run("detect", picture, "--run", place).rows() for place in (trained, alone))
    assert here == there


def test_detect_skips_what_cannot_be_read(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes((photos / "ood" / "0.png").read_bytes()[:50])
    for name in ("a.png", "c.png"):
        shutil.copy(photos / "id" / "left" / "0.png", tmp_path / name)
    result = run("detect", tmp_path, "--run", trained)
    assert result.code == 3
    assert [bool(row["problem"]) for row in result.rows()] == [False, True, False]
    assert "1 could not be read" in result.err
    only = run("detect", tmp_path / "b.png", "--run", trained)
    assert (only.code, only.rows()[0]["is_ood"]) == (3, "")


def test_detect_takes_the_latest_run(
    run: Spcp, trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nothing = run("detect", photos / "ood")
    assert nothing.code == 2
    assert "spcp train" in nothing.err
    shutil.copytree(trained, tmp_path / "runs" / "mine")
    result = run("detect", photos / "ood")
    assert result.code == 0
    assert "run: runs/mine" in result.err
    shutil.copytree(trained, tmp_path / "runs" / "coded")  # later, but its network is code that nobody has named
    config = json.loads((trained / "config.json").read_text()) | {"network": "models:build"}
    (tmp_path / "runs" / "coded" / "config.json").write_text(json.dumps(config))
    os.utime(tmp_path / "runs" / "coded" / "detector.safetensors")
    result = run("detect", photos / "ood")
    assert result.code == 0
    assert "run: runs/mine" in result.err
    assert "skipped: runs/coded, whose network is code" in result.err
    assert "models:build" in run("detect", photos / "ood", "--model", "models:build").err  # there is no such module
    shutil.rmtree(tmp_path / "runs" / "coded")
    (tmp_path / "runs" / "mine" / "detector.safetensors").unlink()
    bare = run("detect", photos / "ood", "--run", "runs/mine")
    assert bare.code == 2
    assert "spcp calibrate runs/mine" in bare.err
    assert "no calibrated run" in run("detect", photos / "ood").err


def test_names_and_folders_of_all_kinds(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    source = photos / "id" / "left" / "0.png"
    for name in ("a[1].png", "b c.png", "sub/deep/d.PNG", "é.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tmp_path / name)
    rows = run("detect", tmp_path, "--run", trained).rows()
    assert {Path(row["file"]).name for row in rows} == {"a[1].png", "b c.png", "d.PNG", "é.png"}
    assert len({row["score"] for row in rows}) == 1
    assert len(run("detect", f"{tmp_path}/*.png", "--run", trained).rows()) == 3
    assert len(run("detect", tmp_path / "a[1].png", "--run", trained).rows()) == 1


def test_arrays_are_classified_row_by_row(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    picture = photos / "id" / "left" / "0.png"
    pixels = np.stack([np.asarray(Image.open(picture))] * 3).transpose(0, 3, 1, 2)
    np.savez(tmp_path / "some.npz", images=pixels)
    (tmp_path / "bad.npz").write_bytes(b"no array")
    result = run("detect", tmp_path / "some.npz", tmp_path / "bad.npz", picture, "--run", trained)
    rows = result.rows()
    assert result.code == 3
    assert [row["file"].rpartition("/")[2] for row in rows] == [
        "some.npz[0]",
        "some.npz[1]",
        "some.npz[2]",
        "bad.npz",
        "0.png",
    ]
    assert [bool(row["problem"]) for row in rows] == [False, False, False, True, False]
    assert float(rows[0]["score"]) == pytest.approx(float(rows[4]["score"]), abs=1e-3)


def test_a_terminal_shows_id_or_ood(
    run: Spcp, trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(photos)
    (tmp_path / "bad.png").write_bytes(b"")
    rows = run("detect", "id/left", "ood", "--run", trained).rows()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out = run("detect", "id/left", "ood", tmp_path / "bad.png", "--run", trained).out
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()  # what is flagged is bold, even without colours
    verdicts = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in lines if line.count("│") > 2}
    assert all(verdicts[row["file"]] == ("OOD" if row["is_ood"] == "true" else "ID") for row in rows)
    assert {"OOD", "ID", "unreadable"} <= set(verdicts.values())


def test_explain_adds_members_and_features(run: Spcp, trained: Path, photos: Path) -> None:
    (row,) = json.loads(run("detect", photos / "ood" / "0.png", "--run", trained, "--explain", "--json").out)
    assert set(row["members"]) == set(MEMBERS["default"])
    assert list(row["members"].values()) == sorted(row["members"].values())  # the least usual first
    assert row["raised_by"].split(", ")[0] == next(iter(row["members"]))
    assert len(row["features"]) == 5
    assert list(row["features"].values()) == sorted(row["features"].values(), reverse=True)
    assert set(filter(None, row["truncated"].split(", "))) <= set(row["features"])
    (plain,) = json.loads(run("detect", photos / "ood" / "0.png", "--run", trained, "--json").out)
    assert {key: row[key] for key in plain} == plain
    assert not {"members", "raised_by", "features", "truncated"} & set(plain)


def test_one_bad_input_is_one_row(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    """Whatever it is, it says why, and the rest is judged."""
    good = [Path(shutil.copy(photos / "id" / "left" / f"{i}.png", tmp_path)) for i in (0, 2)]
    array = np.zeros((3, 16, 16, 3), np.uint8)
    np.save(tmp_path / "good.npy", array)
    header = (tmp_path / "good.npy").read_bytes()
    (tmp_path / "header.npy").write_bytes(header.replace(b"(3, 16", b"(3; 16"))
    for name, shape in (("rows.npy", b"(1000000000000, 16, 16, 3)"), ("none.npy", b"(1000000000000, 16, 0, 3)")):
        (tmp_path / name).write_bytes(header.replace(b"(3, 16, 16, 3), }".ljust(40), (shape + b", }").ljust(40)))
    Image.new("L", (1, 400_000)).save(tmp_path / "tall.png")  # would be 16 pixels wide, and too tall
    for name in ("pipe.png", "pipe.npy"):
        os.mkfifo(tmp_path / name)
    for name in ("device.png", "device.npy"):
        (tmp_path / name).symlink_to("/dev/zero")
    (tmp_path / "dangling.png").symlink_to("nowhere")
    bad = ["header.npy", "rows.npy", "none.npy", "pipe.png", "pipe.npy", "device.png", "device.npy", "dangling.png"]
    bad += ["vanished.png", "vanished.npy", "vanished/*.png", "x" * 300, "zero\0.png", "~nobody-at-all/x"]
    listed = [str(good[0]), *(str(tmp_path / name) for name in bad), str(tmp_path / "good.npy"), str(good[1])]
    result = run("detect", "-", "--run", trained, stdin="\n".join(listed))
    rows = result.rows()
    assert result.code == 3
    assert len(rows) == 2 + len(bad) + 3
    for row, name in zip(rows[1:], bad, strict=False):
        assert row["file"].endswith(name)
        assert row["problem"].startswith(row["file"])
        assert row["is_ood"] == ""
    alone = run("detect", *good, tmp_path / "good.npy", "--run", trained).rows()
    for ours, theirs in zip([rows[0], rows[-1], *rows[-4:-1]], alone, strict=True):
        assert ours["file"] == theirs["file"]
        assert float(ours["score"]) == pytest.approx(float(theirs["score"]), abs=1e-3)  # in other batches
    for name in bad:
        if "\0" not in name:
            assert len(run("detect", good[0], tmp_path / name, "--run", trained).rows()) == 2
    tall = run("detect", good[0], tmp_path / "tall.png", good[1], "--run", trained).rows()
    assert [bool(row["problem"]) for row in tall] == [False, True, False]
    nothing = run("detect", tmp_path / "vanished.png", "--run", trained)
    assert (nothing.code, nothing.out) == (2, "")
    assert "vanished.png: there is no such file or folder; check it" in nothing.err


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_that_the_output_cannot_hold(encoding: str, trained: Path, photos: Path, tmp_path: Path) -> None:
    """On strict output, too; and listed on standard input as they are."""
    content = (photos / "id" / "left" / "0.png").read_bytes()
    names = [b"a.png", b"caf\xe9.png", "café.png".encode()]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(content)
    listed = b"\n".join(os.fsencode(tmp_path) + b"/" + name for name in names)
    environment = os.environ | {"PYTHONIOENCODING": f"{encoding}:strict", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "spcp.cli", "detect", "-", "--run", str(trained)]
    done = subprocess.run(command, input=listed, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    files = [line.split(b",")[0] for line in done.stdout.splitlines()[1:]]
    assert [Path(file.decode()).name for file in files] == [
        "a.png",
        r"caf\udce9.png",
        "café.png" if encoding == "utf-8" else r"caf\xe9.png",
    ]


def test_names_do_not_command_the_terminal(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    """Neither in a table nor in a message."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    for name in (f"{evil}.png", f"broken{evil}.png"):
        (tmp_path / name).write_bytes((photos / "id" / "left" / "0.png").read_bytes())
    (tmp_path / f"broken{evil}.png").write_bytes(b"")
    arguments = ["detect", f"{tmp_path}/*.png", "--run", str(trained)]
    code = f"import sys, spcp.cli; sys.argv[1:] = {arguments!r}; sys.stdout.isatty = lambda: True; spcp.cli.main()"
    environment = os.environ | {"COLUMNS": "400", "TERM": "dumb"}  # without rich's own commands
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    lines = [line.split("│")[1].strip() for line in shown.stdout.splitlines() if "│" in line]
    assert r"\x1b]0;owned\x07" in "".join(lines)  # a narrow table folds names
    for result in (
        run("detect", tmp_path / f"nothing{evil}", "--run", trained),
        run("detect", photos / "ood", "--run", tmp_path / evil),
        run("detect", photos / "ood", f"--{evil}"),
        run("train", "--id", tmp_path / evil, "--out", tmp_path / "r"),
    ):
        assert result.code == 2
        assert not set("\x1b\x07\x9b") & set(result.err)
    assert not set("\x1b\x07\x9b") & set(shown.stdout + shown.stderr)
