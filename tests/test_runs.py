from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import training_run
from torch import nn

from spcp import Detector, Run, adopt
from spcp.errors import InputError

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
