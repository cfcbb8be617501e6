from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning_fabric")

import training_run
from safetensors.torch import load_file

from spcp import SPCPLinear, training
from spcp.errors import InputError

SCRIPT = Path(training_run.__file__)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def same(a: Path, b: Path) -> bool:
    left, right = load_file(a), load_file(b)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("method", ["spcp", "vos+spcp"])
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, method: str) -> None:
    """Killed at random moments: within an epoch, at its end, and while files are written."""
    arguments = [method, "4", "cnn"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([sys.executable, str(SCRIPT), str(whole), *arguments], check=True)
    rng = random.Random(0)
    kills = 0
    for _ in range(60):
        process = subprocess.Popen([sys.executable, str(SCRIPT), str(killed), *arguments])
        started = time.monotonic()
        while (
            process.poll() is None and not (killed / "state.safetensors").exists() and time.monotonic() - started < 60
        ):
            time.sleep(0.01)
        if kills < 4:
            time.sleep(rng.uniform(0.0, 0.3))
        else:
            process.wait(timeout=120)
        if process.poll() is None:
            process.kill()
            kills += 1
        if process.wait() == 0:
            break
    assert kills > 0
    assert same(whole / "last.safetensors", killed / "last.safetensors")
    assert same(whole / "best.safetensors", killed / "best.safetensors")
    lines = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in training.read_metrics(f)]
        for f in (whole, killed)
    ]
    assert lines[0] == lines[1]
    assert [line["epoch"] for line in lines[0]] == [0, 1, 2, 3]
    assert not [path for path in killed.iterdir() if path.name.startswith(".") and path.suffix == ".safetensors"]


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """With the joint batch, to float accuracy, the threshold included."""
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run([sys.executable, str(SCRIPT), str(one), "spcp", "2", "mlp"], check=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, str(SCRIPT), str(two), "spcp", "2", "mlp"], check=True, capture_output=True)
    first, second = load_file(one / "last.safetensors"), load_file(two / "last.safetensors")
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-5)
    assert [line["val_accuracy"] for line in training.read_metrics(one)] == [
        line["val_accuracy"] for line in training.read_metrics(two)
    ]


@pytest.mark.parametrize("method", training.METHODS)
def test_every_method_trains_saves_and_loads(tmp_path: Path, method: str) -> None:
    options: dict[str, Any] = {"samples": 10, "draws": 20} if method.startswith("vos") else {}
    if method == "fixed":
        options = {"initial_threshold": 0.5}
    changes: dict[str, Any] = {"options": options, "save_every": 60.0, "batch_size": 24, "warmup": 0, "lr": 0.02}
    if method == "umap":
        plain = training.train(training_run.config("plain", 2), tmp_path / "plain", benchmark=training_run.benchmark())
        changes["start"] = str(plain / "last.safetensors")
    epochs = 2 if method == "umap" else 4
    own = training_run.benchmark()
    folder = training.train(training_run.config(method, epochs, **changes), tmp_path / "run", benchmark=own)
    lines = training.read_metrics(folder)
    assert len(lines) == epochs
    assert lines[-1]["loss"] <= lines[0]["loss"] + (0.05 if method == "umap" else 0)
    assert lines[-1]["val_accuracy"] > 50
    network, objective = training.load_network(folder, benchmark=own)
    x, y = next(iter(own.loader("val", batch_size=40)))
    with torch.no_grad():
        accuracy = (objective.predict(network, x) == y).float().mean().item() * 100
    assert accuracy == pytest.approx(lines[-1]["val_accuracy"])
    assert isinstance(network.classifier, SPCPLinear) == (
        method in ("spcp", "fixed") or ("+spcp" in method and "cider" not in method)
    )
    if "threshold" in lines[-1] and method == "fixed":
        assert lines[-1]["threshold"] == pytest.approx(0.5)
    for head in (m for m in (*network.modules(), *objective.modules()) if isinstance(m, SPCPLinear)):
        assert head.updates.item() == (0 if method == "fixed" else epochs * 10)  # one a step, none by validation
    assert training.train(training.read_config(folder), folder, benchmark=own) == folder  # finished: nothing to do
    assert training.read_metrics(folder) == lines


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    config = training_run.config("plain", 3, lr=1e30)
    with pytest.raises(training.TrainingError, match=r"the loss is not finite in epoch 0, .* smaller learning rate"):
        training.train(config, tmp_path / "run", benchmark=training_run.benchmark())
    state = tmp_path / "run" / "state.safetensors"
    assert not state.exists() or all(v.isfinite().all() for v in load_file(state).values() if v.is_floating_point())


def test_ctrl_c_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = training_run.benchmark()
    config = training_run.config("plain", 2, save_every=1000.0)
    whole = training.train(config, tmp_path / "whole", benchmark=own)
    add, seen = training._Run.add, []

    def interrupted(self: Any, *arguments: Any) -> None:
        add(self, *arguments)
        seen.append(1)
        if len(seen) == 13:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training._Run, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.train(config, tmp_path / "run", benchmark=own)
    monkeypatch.undo()
    training.train(config, tmp_path / "run", benchmark=own)
    assert same(whole / "last.safetensors", tmp_path / "run" / "last.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "resnet19"}, "no network 'resnet19'; there are resnet18, resnet18_224"),
        ({"options": {"taw": 3}}, "plain: .*taw"),
        ({"start": "nowhere.safetensors"}, r"nowhere.safetensors: there is no such file"),
    ],
)
def test_bad_settings(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        training.train(training_run.config("plain", 1, **changes), tmp_path / "r", benchmark=training_run.benchmark())


def test_another_run_in_the_folder(tmp_path: Path) -> None:
    own = training_run.benchmark(48)
    training.train(training_run.config("plain", 1), tmp_path / "r", benchmark=own)
    with pytest.raises(InputError, match=r"r: its run has epochs = 1, not 2; choose another folder"):
        training.train(training_run.config("plain", 2), tmp_path / "r", benchmark=own)
    with pytest.raises(InputError, match="no method 'spcq'"):
        training.config_for("digits", "spcq")
    with pytest.raises(InputError, match="a run has no setting 'epoch'"):
        training.config_for("digits", epoch=3)
    with pytest.raises(InputError, match="name the folder of a run"):
        training.read_config(tmp_path)


def test_the_papers_settings() -> None:
    spcp = training.config_for("cifar10", "spcp")
    assert (spcp.epochs, spcp.batch_size, spcp.lr, spcp.weight_decay, spcp.options["rho_norm"]) == (
        100,
        128,
        0.1,
        5e-4,
        3.0,
    )
    assert training.config_for("cifar100", "spcp").options["rho_norm"] == 0.5
    assert training.config_for("imagenet200", "spcp").options["rho_norm"] == 0.4
    cider = training.config_for("cifar10", "cider")
    assert (cider.batch_size, cider.lr, cider.warmup, cider.weight_decay) == (512, 0.5, 10, 1e-4)
    again = training.Config(**json.loads(json.dumps(dataclasses.asdict(spcp))))
    assert again == spcp
