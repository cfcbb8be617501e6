from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from . import Spcp

N = 400  # calibration samples


def lines(scores: np.ndarray, **more: object) -> list[str]:
    """The detections of scores, of a detector that was calibrated on normal ones."""
    calibration = np.sort(np.random.default_rng(7).normal(size=N))
    p = (1 + np.searchsorted(calibration, scores, "right")) / (N + 1)
    rows = [{"file": f"{i}.png", "is_ood": bool(x <= 0.05), "p_value": x, "class": "a"} for i, x in enumerate(p)]
    return [json.dumps({**row, "score": s, **more}) + "\n" for row, s in zip(rows, scores.tolist(), strict=True)]


@pytest.fixture
def stream() -> list[str]:
    """A stream that changes after 1000 inputs, and back after 2000: scores are larger, so fewer are flagged."""
    scores = np.random.default_rng(0).normal(size=3000)
    scores[1000:2000] += 1
    return lines(scores)


def test_a_file_is_watched(run: Spcp, stream: list[str], tmp_path: Path) -> None:
    file, page, metrics, events = (tmp_path / name for name in ("in.jsonl", "p/page.html", "m.prom", "e/events.jsonl"))
    file.write_text("".join(stream))
    result = run("monitor", file, "--samples", N, "--page", page, "--metrics", metrics, "--events", events, "--json")
    assert result.code == 0
    (row,) = json.loads(result.out)
    assert (row["inputs"], row["alarm"], row["alarms"]) == (3000, False, 1)
    assert row["low"] < row["share"] < row["high"]
    begun, ended = map(json.loads, events.read_text().splitlines())
    assert (begun["kind"], ended["kind"]) == ("alarm", "end")
    assert 1000 < begun["input"] < 1100
    assert 900 < begun["since"] <= 1020
    assert 2000 < ended["input"] < 2200
    assert "p-values are larger" in begun["detail"]
    assert "alarm at input" in result.err
    assert "3000 inputs; no alarm" in result.err
    text = page.read_text()
    assert "No alarm." in text
    assert text.count("<svg") == 1
    assert "p-values are larger" in text
    assert not any(word in text for word in ("http:", "https:", "<script", "@import"))
    values = dict(line.rsplit(" ", 1) for line in metrics.read_text().splitlines() if not line.startswith("#"))
    assert values['spcp_monitor_inputs_total{stream=""}'] == "3000"
    assert values['spcp_monitor_alarms_total{stream=""}'] == "1"
    assert values['spcp_monitor_alarm{stream=""}'] == "0"


def test_a_state_continues(run: Spcp, stream: list[str], tmp_path: Path) -> None:
    file, state, events = (tmp_path / name for name in ("in.jsonl", "state.npz", "events.jsonl"))
    arguments = ["monitor", file, "--state", state, "--events", events, "--json"]
    half = "".join(stream[:1010]) + stream[1010][:20]  # the last line is still being written
    file.write_text(half)
    first = run(*arguments, "--samples", N)
    assert json.loads(first.out)[0]["inputs"] == 1010
    file.write_text("".join(stream))
    second = run(*arguments)
    assert "could not be read" not in second.err
    whole = run("monitor", file, "--samples", N, "--json")
    assert json.loads(second.out)[0] == pytest.approx(json.loads(whole.out)[0])
    assert [json.loads(line)["kind"] for line in events.read_text().splitlines()] == ["alarm", "end"]
    assert json.loads(run(*arguments).out) == json.loads(second.out)  # nothing is read twice
    for options in (("--alpha", 0.05), ("--window", 500), ("--by", "file")):
        result = run(*arguments, *options)
        assert result.code == 2
        assert "was begun with --alpha 0.01 --window 1000; give the same" in result.err
    file.write_text("".join(stream[:5]))  # another file under its name, as logs are rotated
    assert json.loads(run(*arguments).out)[0]["inputs"] == 3005


def test_standard_input_and_streams(run: Spcp, tmp_path: Path) -> None:
    scores = np.random.default_rng(1).normal(size=(2, 600))
    scores[1, 300:] -= 2
    both = [
        line for pair in zip(lines(scores[0], camera="a"), lines(scores[1], camera="b<"), strict=True) for line in pair
    ]
    page, metrics = tmp_path / "page.html", tmp_path / "m.prom"
    options = ("--samples", N, "--by", "camera", "--page", page, "--metrics", metrics, "--json")
    result = run("monitor", "-", *options, stdin="".join(both))
    rows = {row["stream"]: row for row in json.loads(result.out)}
    assert (rows["a"]["alarm"], rows["b<"]["alarm"]) == (False, True)
    assert "alarm in 1 of 2 streams" in result.err
    assert "Alarm in 1 of 2 streams." in page.read_text()
    assert "<h2>b&lt;</h2>" in page.read_text()
    assert 'spcp_monitor_alarm{stream="b<"} 1' in metrics.read_text()


def test_answers_of_the_server(run: Spcp, stream: list[str]) -> None:
    rows = [json.loads(line) for line in stream[:200]]
    answers = [json.dumps({"results": rows[i : i + 50], "alpha": 0.05}) + "\n" for i in range(0, 200, 50)]
    (together,) = json.loads(run("monitor", "--samples", N, "--json", stdin="".join(answers)).out)
    (apart,) = json.loads(run("monitor", "--samples", N, "--json", stdin="".join(stream[:200])).out)
    assert together == pytest.approx(apart)


BROKEN = {
    '{"p_value": 0.5': "is not valid JSON",
    "[1]": "is not a JSON object of a detection",
    '{"p_value": 2, "is_ood": true}': "p_value = 2 is not a number from 0 to 1",
    '{"p_value": "0.5", "is_ood": true}': "p_value = '0.5' is not a number",
    '{"p_value": NaN, "is_ood": true}': "p_value = nan is not a number",
    '{"p_value": 0.5, "is_ood": null}': "is_ood = None is neither true nor false",
    "\xff\xfe": "is not valid JSON",
    "[" * 100_000: "line 3",
    '{"a":"' + "x" * (1 << 21) + '"}': "is longer than 1048576 bytes",
}


@pytest.mark.parametrize("broken", list(BROKEN), ids=lambda text: text[:20])
def test_broken_lines(run: Spcp, stream: list[str], broken: str, tmp_path: Path) -> None:
    file, state = tmp_path / "in.jsonl", tmp_path / "state.npz"
    unreadable = '{"file": "x.png", "is_ood": null, "p_value": null, "problem": "x.png: is no image"}\n'
    file.write_bytes("".join([*stream[:2], broken + "\n", "\n", unreadable, *stream[2:30]]).encode("latin-1"))
    result = run("monitor", file, "--samples", N, "--json")
    assert result.code == 0
    assert f"line 3: {BROKEN[broken].removeprefix('line 3')}" in result.err
    assert "1 lines could not be read, 1 inputs had no detection" in result.err
    assert json.loads(result.out)[0]["inputs"] == 30
    result = run("monitor", file, "--samples", N, "--bad", "raise", "--state", state)
    assert result.code == 2
    assert "correct it, or give --bad skip" in result.err


def test_which_detector(run: Spcp, tmp_path: Path) -> None:
    result = run("monitor", stdin="")
    assert result.code == 2
    assert "name it with --detector, or give --samples" in result.err
    assert "exclude each other" in run("monitor", "--samples", 9, "--detector", tmp_path, stdin="").err
    assert "there is no such file; calibrate the run" in run("monitor", "--detector", tmp_path, stdin="").err
    assert "there is no such file; name JSON lines" in run("monitor", tmp_path / "x", "--samples", 9).err


def test_from_a_run_to_an_alarm(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    trained = Path(shutil.copytree(trained, tmp_path / "run"))  # others use it as it is
    assert run("calibrate", trained, "--alpha", 0.1, "--score", "energy", "--quiet").code == 0
    detected = json.loads(run("detect", photos / "ood", "--run", trained, "--json").out) * 5
    text = "".join(json.dumps(row) + "\n" for row in detected)
    state = tmp_path / "state.npz"
    result = run("monitor", "--detector", trained, "--state", state, "--json", stdin=text)
    assert result.code == 0
    assert "classes are not tested" not in result.err
    assert json.loads(result.out)[0]["alarm"]
    wrong = text.replace('"left"', '"up"').replace('"right"', '"up"')
    assert "class = 'up' is not a class of the detector" in run("monitor", "--detector", trained, stdin=wrong).err
    assert run("calibrate", trained, "--alpha", 0.2, "--score", "msp", "--quiet").code == 0
    result = run("monitor", "--detector", trained, "--state", state, stdin=text)
    assert result.code == 2
    assert "is the state of another detector" in result.err
    state.write_bytes(b"no state")
    assert "is not the state of a monitor, or damaged" in run("monitor", "--state", state, stdin=text).err


def test_torch_is_not_imported(stream: list[str]) -> None:
    code = "import sys; from spcp import cli\ntry: cli.main()\nfinally: assert 'torch' not in sys.modules"
    arguments = [sys.executable, "-c", code, "monitor", "--samples", str(N)]
    done = subprocess.run(arguments, input="".join(stream[:50]), text=True, capture_output=True, check=True)
    assert done.stdout.splitlines()[1].startswith(",50,")
