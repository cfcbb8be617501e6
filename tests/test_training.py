from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import json
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning_fabric")

import training_run
from safetensors.torch import load_file

from spcp import SPCPLinear, data, objectives, training
from spcp.errors import InputError
from spcp.training import run

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


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_two_processes_train_as_one(tmp_path: Path, strategy: str) -> None:
    """With the joint batch, to float accuracy, the threshold included; interrupted after an epoch."""
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run([sys.executable, str(SCRIPT), str(one), "spcp", "2", "mlp"], check=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for until in ("1", "2"):
        arguments = [*torchrun, str(SCRIPT), str(two), "spcp", "2", "mlp", strategy, until]
        subprocess.run(arguments, check=True, capture_output=True)
    first, second = load_file(one / "last.safetensors"), load_file(two / "last.safetensors")
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-5)
    for left, right in zip(training.read_metrics(one), training.read_metrics(two), strict=True):
        assert left | {"seconds": 0} == pytest.approx(right | {"seconds": 0}, rel=1e-4)


@pytest.fixture(scope="module")
def digits() -> data.Benchmark:
    return data.load_benchmark("digits")


@pytest.fixture(scope="module")
def trained(digits: data.Benchmark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plainly trained network on the embedded data."""
    return training.train(training.config_for("digits", epochs=4), tmp_path_factory.mktemp("plain"), benchmark=digits)


@pytest.mark.parametrize("method", objectives.METHODS)
def test_every_method_trains_saves_loads_and_scores(
    tmp_path: Path, method: str, digits: data.Benchmark, trained: Path
) -> None:
    options: dict[str, Any] = {"samples": 10, "draws": 20} if method.startswith("vos") else {}
    if method == "fixed":
        options = {"initial_threshold": 0.5}
    start = str(trained / "last.safetensors") if method == "umap" else None
    lr = {"umap": 5.0, "cider": 0.1, "cider+spcp": 0.1}.get(method, 0.05)
    changes: dict[str, Any] = {"options": options, "start": start, "epochs": 3, "lr": lr, "warmup": 0}
    folder = training.train(training.config_for("digits", method, **changes), tmp_path / "run", benchmark=digits)
    lines = training.read_metrics(folder)
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert lines[-1]["loss"] < lines[0]["loss"]

    network, objective = training.load_network(folder, benchmark=digits)
    with torch.no_grad():
        right = [(objective.predict(network, x) == y).float() for x, y in digits.loader("val", batch_size=500)]
        x = next(iter(digits.loader("near/greek", batch_size=50)))[0]
        h, z, k = objective.outputs(network, x)
        assert torch.equal(k, objective.predict(network, x))
    assert type(objective)(**objective.options).options == objective.options
    assert torch.cat(right).mean() * 100 == pytest.approx(lines[-1]["val_accuracy"])
    assert h.shape == (50, network.classifier.in_features)
    assert z.shape == (50, 13 if method == "mos" else 10)
    assert z.logsumexp(1).isfinite().all()

    if method == "umap":
        assert same(trained / "last.safetensors", folder / "last.safetensors")  # masks only
    bounded = method in ("spcp", "fixed") or method.endswith("+spcp")
    heads = [m for m in (*network.modules(), *objective.modules()) if isinstance(m, SPCPLinear)]
    assert len(heads) == bounded
    for head in heads:
        steps = 3 * -(-1000 // training.read_config(folder).batch_size)
        assert head.updates.item() == (0 if method == "fixed" else steps)  # one a step, none by validation
        assert (head.threshold.item() == 0.5) == (method == "fixed")
    assert training.train(training.read_config(folder), folder, benchmark=digits) == folder  # finished: nothing to do
    assert training.read_metrics(folder) == lines


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    config = training_run.config("plain", 3, lr=1e30)
    with pytest.raises(training.TrainingError, match=r"the loss is not finite in epoch 1, .* smaller learning rate"):
        training.train(config, tmp_path / "run", benchmark=training_run.benchmark())
    state = tmp_path / "run" / "state.safetensors"
    assert not state.exists() or all(v.isfinite().all() for v in load_file(state).values() if v.is_floating_point())


def test_ctrl_c_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = training_run.benchmark()
    config = training_run.config("plain", 2, save_every=1000.0)
    whole = training.train(config, tmp_path / "whole", benchmark=own)
    add, seen = run.Run.add, []

    def interrupted(self: Any, *arguments: Any) -> None:
        add(self, *arguments)
        seen.append(1)
        if len(seen) == 13:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(run.Run, "add", interrupted)
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
        ({"method": "fixed", "options": {"beta": 1.0, "rho_norm": 1.0}}, "fixed: a fixed threshold needs initial_thr"),
        ({"method": "umap"}, "umap: needs a trained network; name the weights of a run in `start`"),
        ({"start": "nowhere.safetensors"}, r"nowhere.safetensors: there is no such file"),
    ],
)
def test_bad_settings(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = training_run.config(**({"method": "plain", "epochs": 1} | changes))
    with pytest.raises(InputError, match=message):
        training.train(config, tmp_path / "r", benchmark=training_run.benchmark())
    assert not (tmp_path / "r").exists()


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


def test_an_objective_and_a_network_of_ones_own(tmp_path: Path) -> None:
    class Smoothed(objectives.Objective):
        def forward(self, network: Any, x: torch.Tensor, y: torch.Tensor, progress: float = 0.0) -> Any:
            z = network(x)
            return torch.nn.functional.cross_entropy(z, y, label_smoothing=0.1), z

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(144, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )

    own = training_run.benchmark()
    config = training_run.config("plain", 3)
    folder = training.train(
        config, tmp_path / "r", benchmark=own, network=model(), objective=Smoothed(rho_norm=0.5, beta=0.9)
    )
    network, objective = training.load_network(
        folder, benchmark=own, network=model(), objective=Smoothed(rho_norm=0.5, beta=0.9)
    )
    assert isinstance(network.classifier, SPCPLinear)
    x, y = next(iter(own.loader("val", batch_size=40)))
    accuracy = (objective.predict(network, x) == y).float().mean() * 100
    assert accuracy == pytest.approx(training.read_metrics(folder)[-1]["val_accuracy"])
    with pytest.raises(InputError, match=r"last.safetensors: its weights are of another network"):
        training.load_network(folder, benchmark=own)


def test_loggers_are_told_what_the_metrics_are_told(tmp_path: Path) -> None:
    from lightning_fabric.loggers import CSVLogger

    logger = CSVLogger(str(tmp_path / "logs"), name="run", version="0", flush_logs_every_n_steps=1)
    folder = training.train(
        training_run.config("spcp", 2), tmp_path / "r", benchmark=training_run.benchmark(), loggers=logger
    )
    with open(tmp_path / "logs" / "run" / "0" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    for row, line in zip(rows, training.read_metrics(folder), strict=True):
        assert {key: float(row[key]) for key in line} == pytest.approx(line)


def test_what_is_shown(tmp_path: Path) -> None:
    """On a terminal a bar, with the speed and the time left; plain lines elsewhere; nothing on standard output."""
    run_it = [sys.executable, str(SCRIPT)]
    plain = subprocess.run([*run_it, str(tmp_path / "a"), "spcp", "2", "cnn"], capture_output=True, text=True)
    assert plain.stdout == ""
    shown = [line for line in plain.stderr.splitlines() if line.startswith("epoch")]
    number = r"[\d.e+-]+"
    for epoch, line in enumerate(shown, 1):
        assert re.fullmatch(
            rf"epoch {epoch}/2  loss {number}  accuracy {number} %  validation {number} %  "
            rf"threshold {number} \({number}% cut\)  {number} s",
            line,
        )
    assert len(shown) == 2
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 150, 0, 0))
    process = subprocess.Popen(
        [*run_it, str(tmp_path / "b"), "spcp", "2", "cnn"], stderr=theirs, env=os.environ | {"TERM": "xterm"}
    )
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 65536):
            text += part
    os.close(ours)
    assert process.wait() == 0
    assert re.search(
        rf"loss {number}  accuracy {number} %  threshold {number}  [\d,]+ images/s  0:\d\d left", text.decode()
    )
    assert len(re.findall(r"epoch \d/2  loss .* s\b", text.decode())) >= 2


def test_a_threshold_that_never_cuts_is_said(tmp_path: Path) -> None:
    config = training_run.config("spcp", 1, options={"rho_norm": 1.0, "beta": 0.9999})
    with pytest.warns(UserWarning, match="SPCP did nothing"):
        training.train(config, tmp_path / "r", benchmark=training_run.benchmark())
    assert training.read_metrics(tmp_path / "r")[0]["cut"] == 0


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
    assert training.config_for("imagenet200", "logitnorm+spcp").options["rho_norm"] == 2.0
    cider = training.config_for("cifar10", "cider")
    assert (cider.batch_size, cider.lr, cider.warmup, cider.weight_decay) == (512, 0.5, 10, 1e-4)
    assert training.config_for("cifar100", "cider+spcp").options == {"rho_norm": 0.5, "momentum": 0.5}
    again = training.Config(**json.loads(json.dumps(dataclasses.asdict(spcp))))
    assert again == spcp
