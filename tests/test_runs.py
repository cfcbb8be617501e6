from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import fuzz
import pytest
import torch
import training_run
from torch import nn

from spcp import Detector, Run, adopt, train
from spcp.environment import described
from spcp.errors import InputError
from spcp.files import read_tensors, write_tensors

CODE = f"{__name__}:build"


def build(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, num_classes))


def test_a_run_is_a_folder(tmp_path: Path) -> None:
    corners = training_run.benchmark(48)
    run = adopt("cnn", tmp_path / "run", corners)
    again = Run.open(str(run.folder))
    assert (again.folder, again.config) == (run.folder, run.config)
    assert (again.history, again.environment) == ([], [])  # it was not trained here
    assert again.inputs == corners.inputs()
    x = torch.randn(3, 1, 12, 12)
    assert torch.equal(run.load().outputs(x).logits, again.load(truncate=False).outputs(x).logits)
    with pytest.raises(InputError, match="run: holds a run; choose another folder"):
        adopt("cnn", tmp_path / "run", corners)
    with pytest.raises(InputError, match="name the folder of a run"):
        Run.open(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match=r"config.json: is not a file; correct it, or choose another folder"):
        Run.open(tmp_path)
    with pytest.raises(InputError, match="run: holds no calibrated detector; make one: spcp calibrate"):
        run.detector()


def test_a_run_has_its_detector(tmp_path: Path) -> None:
    corners = training_run.benchmark(48)
    run = adopt("cnn", tmp_path / "run", corners)
    x = next(iter(corners.loader("val", batch_size=40)))[0]
    detector = Detector(run.load().network).calibrate(x)
    detector.save(run.detector_path)
    assert torch.equal(run.detector().detect(x).scores, detector.detect(x).scores)


def test_a_file_alone_runs_no_code(tmp_path: Path) -> None:
    """The caller names the code, in `open`, `load` or `detector`; a run that the caller made remembers it."""
    run = adopt(CODE, tmp_path / "run", training_run.benchmark(48))
    x = torch.randn(3, 1, 12, 12)
    expected = run.load().outputs(x).logits
    stranger = Run.open(run.folder)
    with pytest.raises(InputError, match=f"{CODE}: is code, which a file asks to run"):
        stranger.load()
    with pytest.raises(InputError, match=f"run: its network is {CODE}, not os:system; name that one"):
        stranger.load(network="os:system")
    trusted = Run.open(run.folder, network=CODE)
    for model in (stranger.load(network=CODE), stranger.load(network=build(4)), trusted.load()):
        assert torch.equal(model.outputs(x).logits, expected)
    settings = json.loads((run.folder / "config.json").read_text())
    (run.folder / "config.json").write_text(json.dumps(settings | {"network": "cnn"}))
    with pytest.raises(InputError, match=f"run: its network is cnn, not {CODE}"):
        Run.open(run.folder, network=CODE).load()


def test_weights_of_another_network(tmp_path: Path) -> None:
    corners = training_run.benchmark(48)
    run = adopt("cnn", tmp_path / "run", corners)
    with pytest.raises(InputError, match=r"last.safetensors: its weights belong to another network"):
        adopt("resnet10", tmp_path / "other", corners, weights=run.folder)
    with pytest.raises(InputError, match=r"weights.pt: is a pickle, which may run code"):
        adopt("cnn", tmp_path / "other", corners, weights=tmp_path / "weights.pt")
    with pytest.raises(InputError, match="has 2 outputs, but corners has 4 classes"):
        adopt(f"{__name__}:two", tmp_path / "other", corners)
    assert not (tmp_path / "other").exists()


def two() -> nn.Module:
    return build(2)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """They are read, or refused with an error that names one of the run's files; never another exception."""
    corners = training_run.benchmark(48)
    run = train(training_run.config("spcp", 2), tmp_path / "run", benchmark=corners)
    uses: dict[str, Callable[[Run], object]] = {
        "config.json": lambda opened: opened.load(),
        "inputs.json": lambda opened: opened.load(),
        "metrics.jsonl": lambda opened: [(line["epoch"] + 1, 2 * line["loss"]) for line in opened.history],
        "environment.json": lambda opened: [described(record) for record in opened.environment],
        "last.safetensors": lambda opened: opened.load(),
    }
    for name, use in uses.items():
        path = run.folder / name
        content = path.read_bytes()
        use(Run.open(run.folder))
        for seed in range(60):
            path.unlink()
            path.write_bytes(fuzz.damaged(path, content, random.Random(seed)))
            try:
                use(Run.open(run.folder))
            except InputError as error:
                assert str(error).startswith(f"{run.folder}/")  # noqa: PT017
        path.unlink()
        path.write_bytes(content)


def test_a_history_that_was_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its last line is left out; the run goes on."""
    corners = training_run.benchmark(48)
    config = training_run.config("plain", 3)
    run = train(config, tmp_path / "run", benchmark=corners, until=2)
    path = run.folder / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second[:-9]}")
    with caplog.at_level(logging.WARNING, "spcp"):
        assert [line["epoch"] for line in run.history] == [0]
    assert "its last line is cut off" in caplog.text
    train(config, tmp_path / "run", benchmark=corners)
    assert [line["epoch"] for line in run.history] == [0, 2]
    path.write_text(f"{first[:-9]}\n{second}\n")
    with pytest.raises(InputError, match=r"metrics.jsonl: line 1 is not valid JSON .*; remove it"):
        _ = run.history
    path.write_text(f"{first}\n{second.replace('loss', 'lost')}\n")
    with pytest.raises(InputError, match=r"metrics.jsonl: loss = None must be a number; remove line 2"):
        _ = run.history


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    corners, config = training_run.benchmark(48), training_run.config("plain", 3)
    run = train(config, tmp_path / "run", benchmark=corners, until=1)
    path = run.folder / "state.safetensors"
    tensors, notes = read_tensors(path)
    for change in ({"epoch": "4"}, {"step": "x"}, {"lr": "nan"}):
        path.unlink(missing_ok=True)
        write_tensors(path, tensors, notes | change)
        with pytest.raises(InputError, match=r"state.safetensors: is no state of a run .*; delete it to train from"):
            train(config, run.folder, benchmark=corners)
    for broken in ({"rng": torch.zeros(3, dtype=torch.uint8)}, {"sums": torch.zeros(2)}, {"sums": torch.ones(3) / 0}):
        path.unlink()
        write_tensors(path, tensors | broken, notes)
        with pytest.raises(InputError, match=r"state.safetensors: is no state of a run"):
            train(config, run.folder, benchmark=corners)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"state.safetensors: is damaged, .*; delete it to train from the start"):
        train(config, run.folder, benchmark=corners)
