from __future__ import annotations

import concurrent.futures
import csv
import dataclasses
import fcntl
import json
import math
import multiprocessing.connection
import multiprocessing.forkserver
import os
import pty
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning_fabric")

import training_run
from safetensors.torch import load_file

from spcp import Run, SPCPLinear, Truncation, config_for, data, methods, training
from spcp.config import rho_norm_for
from spcp.errors import InputError
from spcp.evaluation import Evaluation
from spcp.files import read_tensors
from spcp.training import loop
from spcp.training.loop import augmented
from spcp.training.state import TrainingState

SCRIPT = Path(training_run.__file__)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def same(a: Path, b: Path) -> bool:
    left, right = load_file(a), load_file(b)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


PROCESSES = multiprocessing.get_context("forkserver")  # of one that has imported all they need, once


@pytest.fixture(scope="module")
def _server() -> None:
    PROCESSES.set_forkserver_preload(["training_run", "lightning_fabric", "torch._dynamo"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SCRIPT.parent))
        multiprocessing.forkserver.ensure_running()


def start(*arguments: object, streams: Mapping[int, str] | None = None, **variables: object) -> Any:
    """Start a run in a process of its own, with variables in its environment."""
    options = {"variables": {name: str(value) for name, value in variables.items()}, "streams": streams}
    process = PROCESSES.Process(target=training_run.main, args=map(str, arguments), kwargs=options)
    process.start()
    return process


def end(process: Any) -> int:
    """Wait for the end of a process; return its exit code."""
    process.join()
    code = process.exitcode
    process.close()
    return code


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("method", ["spcp", "vos+1"])
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, method: str) -> None:
    """Killed within epochs, and before, while and after files are written, at random; then left alone."""
    arguments = [method, "3", "cnn"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    alone = start(whole, *arguments)
    rng = random.Random(method)
    for where in rng.sample(["step", "write", "replace", "replaced"], 4 if method == "spcp" else 2):
        died = start(killed, *arguments, DIE=f"{where}:{rng.randint(3, 9)}")
        assert end(died) == -signal.SIGKILL, where
    assert read_tensors(killed / "state.safetensors")[1]["step"] != "0"  # it goes on within an epoch
    assert end(start(killed, *arguments)) == 0
    assert end(alone) == 0
    for name in ("last", "best", "state"):
        assert same(whole / f"{name}.safetensors", killed / f"{name}.safetensors"), name
    lines = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in Run.open(f).history] for f in (whole, killed)
    ]
    assert lines[0] == lines[1]
    assert [line["epoch"] for line in lines[0]] == [0, 1, 2]
    expected = [f"{name}.safetensors" for name in ("best", "last", "state")]
    expected = sorted([*expected, "config.json", "environment.json", "inputs.json", "metrics.jsonl"])
    assert sorted(path.name for path in killed.iterdir()) == expected  # and nothing half-written


def succeed(arguments: list[str]) -> None:
    """Run a command; if it fails, show why."""
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]


def train_in_two(*arguments: object) -> None:
    """Train in two processes, with the variables that torchrun would set."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_WORLD_SIZE": 1, "GROUP_RANK": 0}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    both = [start(*arguments, **common, RANK=rank, LOCAL_RANK=rank) for rank in range(2)]
    assert [end(process) for process in both] == [0, 0]


@pytest.fixture(scope="module")
def one(_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by a single process."""
    folder = tmp_path_factory.mktemp("one")
    assert end(start(folder, "spcp", "2", "mlp")) == 0
    return folder


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_two_processes_train_as_one(tmp_path: Path, one: Path, strategy: str) -> None:
    """With the joint batch, to the accuracy of sums in another order, the threshold included; stopped after an epoch.

    Of a network without BatchNorm, whose statistics are each process's corners; one with it runs too.
    """
    two, rtol = tmp_path / "two", 1e-4 if training_run.PRECISION == "32-true" else 2e-2
    for until in (1, 2):
        train_in_two(two, "spcp", 2, "mlp", strategy, until)
    first, second = load_file(one / "last.safetensors"), load_file(two / "last.safetensors")
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=rtol, atol=rtol / 10)
    for left, right in zip(Run.open(one).history, Run.open(two).history, strict=True):
        assert left | {"seconds": 0} == pytest.approx(right | {"seconds": 0}, rel=rtol)
    arguments = (tmp_path / "cnn", "spcp", 1, "cnn", strategy)
    if strategy == "auto":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        succeed([*torchrun, *map(str, (SCRIPT, *arguments))])
    else:
        train_in_two(*arguments)
    assert Run.open(tmp_path / "cnn").history[0]["loss"] < 2


@pytest.fixture(scope="module")
def digits() -> data.Benchmark:
    return data.load_benchmark("digits")


@pytest.fixture(scope="module")
def trained(digits: data.Benchmark, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A plainly trained network on the embedded data."""
    return training.train(
        training_run.config_for("digits", epochs=4, width=8), tmp_path_factory.mktemp("plain"), benchmark=digits
    )


ALSO_TRUNCATED = ("logitnorm", "t2fnorm", "cider", "vos", "mos")


@pytest.mark.parametrize(
    ("method", "rho_norm"),
    [*((name, None) for name in methods.METHODS), *((name, rho_norm_for("digits")) for name in ALSO_TRUNCATED)],
)
def test_every_method_trains_saves_loads_and_scores(
    tmp_path: Path, method: str, rho_norm: float | None, digits: data.Benchmark, trained: Run
) -> None:
    changes: dict[str, Any] = {"options": {"samples": 10, "draws": 20} if method == "vos" else {}, "rho_norm": rho_norm}
    if method == "fixed":
        changes["initial_threshold"] = 0.5
    changes["start"] = str(trained.folder / "last.safetensors") if method == "umap" else None
    changes |= {"epochs": 3, "width": 8, "lr": {"umap": 5.0, "cider": 0.1}.get(method, 0.05), "warmup": 0}
    run = training.train(training_run.config_for("digits", method, **changes), tmp_path / "run", benchmark=digits)
    lines = run.history
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert lines[-1]["loss"] < lines[0]["loss"]

    model = run.load()
    network, trained_by = model.network, model.method
    with torch.no_grad():
        correct = [(trained_by.predict(network, x) == y).float() for x, y in digits.loader("val", batch_size=512)]
        x = next(iter(digits.loader("near/greek", batch_size=50)))[0]
        outputs = model.outputs(x)
        assert torch.equal(outputs.predictions, trained_by.predict(network, x))
        assert all(map(torch.equal, outputs, trained_by.outputs(network, x)))
    assert type(trained_by)(**trained_by.options, truncation=trained_by.truncation).options == trained_by.options
    assert torch.cat(correct).mean() == pytest.approx(lines[-1]["val_accuracy"])
    assert outputs.features.shape == (50, network.classifier.in_features)
    assert outputs.logits.shape == (50, 13 if method == "mos" else 10)
    assert outputs.logits.logsumexp(1).isfinite().all()

    if method == "umap":
        masked, plain = (load_file(each.folder / "last.safetensors") for each in (run, trained))
        assert all(torch.equal(masked[name], plain[name]) for name in plain)  # it learns masks only
    truncates = method in ("spcp", "fixed") or rho_norm is not None
    heads = [m for m in (*network.modules(), *trained_by.modules()) if isinstance(m, SPCPLinear)]
    assert len(heads) == truncates
    for head in heads:
        steps = 3 * -(-1000 // run.config.batch_size)
        assert head.updates.item() == (0 if method == "fixed" else steps)  # one a step, none by validation
        assert (head.threshold.item() == 0.5) == (method == "fixed")
    again = training.train(run.config, run.folder, benchmark=digits)  # finished: nothing to do
    assert (again.folder, again.config, again.history) == (run.folder, run.config, lines)


class Exploding(methods.Method):
    """Its loss, or its features, are not finite from a step on."""

    def __init__(self, *, step: int = 13, how: str = "loss", **options: Any) -> None:
        super().__init__(**options)
        self.step, self.how, self.seen = step, how, 0

    def forward(self, network: Any, x: torch.Tensor, y: torch.Tensor, progress: float = 0.0) -> Any:
        self.seen += 1
        bad = float("nan") if self.seen >= self.step else 1.0
        z = network(x * bad if self.how == "features" else x)
        return torch.nn.functional.cross_entropy(z, y) * (bad if self.how == "loss" else 1), z


@pytest.mark.parametrize("how", ["loss", "features"])
@pytest.mark.parametrize("rho_norm", [0.0, 1.0])
def test_a_loss_that_is_not_finite_stops_the_run(
    tmp_path: Path, how: str, rho_norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last good state stays: of before step 13, which is the third of the second epoch."""
    monkeypatch.setattr(loop, "LOOK", 0.0)
    method = Exploding(how=how, truncation=Truncation(rho_norm, beta=0.5 if rho_norm else None))
    with pytest.raises(
        training.TrainingError, match=r"run: .* in epoch 2, at or before step [23]; .* smaller learning"
    ):
        training.train(
            training_run.config("plain", 3), tmp_path / "run", benchmark=training_run.benchmark(), method=method
        )
    state = load_file(tmp_path / "run" / "state.safetensors")
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())
    assert read_tensors(tmp_path / "run" / "state.safetensors")[1]["step"] == "2"


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    """The very last update overflows, after a loss that was finite."""
    corners = training_run.benchmark(24)  # one step an epoch
    with pytest.raises(training.TrainingError, match="the weights are not finite in epoch 1"):
        training.train(training_run.config("plain", 1, lr=1e42), tmp_path / "run", benchmark=corners)
    assert not (tmp_path / "run" / "last.safetensors").exists()


@pytest.mark.parametrize("at", ["step", "last step", "validation"])
def test_ctrl_c_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    corners = training_run.benchmark()
    config = training_run.config("plain", 2, save_every=1000.0)
    whole = training.train(config, tmp_path / "whole", benchmark=corners)
    add, accuracy, seen = TrainingState.add, loop._accuracy, []

    def interrupted(self: Any, *arguments: Any) -> None:
        add(self, *arguments)
        seen.append(1)
        if len(seen) == {"step": 7, "last step": 10, "validation": 0}[at]:
            os.kill(os.getpid(), signal.SIGINT)

    def validated(*arguments: Any) -> float:
        if at == "validation":
            os.kill(os.getpid(), signal.SIGINT)
        return accuracy(*arguments)

    monkeypatch.setattr(TrainingState, "add", interrupted)
    monkeypatch.setattr(loop, "_accuracy", validated)
    with pytest.raises(KeyboardInterrupt):
        training.train(config, tmp_path / "run", benchmark=corners)
    assert len(seen) == (7 if at == "step" else 10)
    monkeypatch.undo()
    training.train(config, tmp_path / "run", benchmark=corners)
    assert same(whole.folder / "last.safetensors", tmp_path / "run" / "last.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment": "all"}, "augment = 'all' must be"),
        ({"schedule": "steps"}, "schedule = 'steps' must be one of cosine, linear"),
        ({"images": 0}, "images = 0 must be a whole number, at least 1"),
        (
            {"network": "resnet19"},
            r"no network 'resnet19' \(did you mean 'resnet18'\?\); there are resnet18, resnet18_224",
        ),
        ({"options": {"taw": 3}}, "plain: .*taw"),
        ({"method": "fixed"}, "fixed: needs a truncation with rho_norm above 0"),
        ({"truncation": Truncation(1.0)}, "plain: trains without truncation; choose the method spcp"),
        ({"method": "umap"}, "umap: needs a trained network; name a run, or its weights, in `start`"),
        ({"start": "nowhere.safetensors"}, r"nowhere.safetensors: there is no such file"),
        ({"epochs": 0}, "epochs = 0 must be a whole number, at least 1"),
        ({"epochs": 1.5}, r"epochs = 1.5 must be a whole number"),
        ({"lr": "0.1"}, r"lr = '0.1' must be a number, at least 0"),
        ({"width": 0}, "width = 0 must be"),
        ({"seed": -1}, "seed = -1 must be"),
        ({"warmup": 1}, "warmup = 1 must be a whole number, from 0 to 0"),
        ({"options": None}, "options = None must be a dictionary"),
        ({"method": "spcp", "truncation": Truncation(50.0)}, r"spcp: rho_norm is 50; it must lie between 0 and 4"),
        ({"method": "mos", "options": {"groups": [[0, 1]]}}, "mos: groups must hold each of the 4 classes once"),
    ],
)
def test_bad_settings(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"method": "plain", "epochs": 1} | changes
    config = dataclasses.replace(training_run.config("plain", 1), **settings)
    with pytest.raises(InputError, match=message):
        training.train(config, tmp_path / "r", benchmark=training_run.benchmark())
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("precision", "rounds"), [("32-true", False), ("bf16-mixed", True)])
def test_float32_is_not_rounded_to_tf32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, rounds: bool
) -> None:
    """Which is a setting of torch for GPUs alone, and afterwards as it was."""
    seen = []
    predict = methods.Method.predict

    def look(*arguments: Any) -> torch.Tensor:
        seen.append(torch.backends.cudnn.allow_tf32)
        return predict(*arguments)

    monkeypatch.setattr(methods.Method, "predict", look)
    config = dataclasses.replace(training_run.config("plain", 1), precision=precision)
    training.train(config, tmp_path / "r", benchmark=training_run.benchmark(48))
    assert set(seen) == {rounds}
    assert torch.backends.cudnn.allow_tf32


def test_bad_data_and_folders(tmp_path: Path) -> None:
    corners, config = training_run.benchmark(48), training_run.config("mos", 1)
    assert isinstance(corners.train, data.TensorSet)
    unlabelled = dataclasses.replace(corners, train=data.as_ood(corners.train))
    with pytest.raises(InputError, match="training labels run from -1 to -1, but must be from 0 to 3"):
        training.train(config, tmp_path / "r", benchmark=unlabelled)
    with pytest.raises(InputError, match="corners: has no training data"):
        training.train(config, tmp_path / "r", benchmark=dataclasses.replace(corners, train=None))
    with pytest.raises(InputError, match='strategy "fsdp": is for several processes; start them with torchrun'):
        training.train(config, tmp_path / "r", benchmark=corners, strategy="fsdp")
    if not torch.accelerator.is_available():
        half = dataclasses.replace(config, precision="16-mixed")
        with pytest.raises(InputError, match="precision 16-mixed: cannot be computed on this device, bf16-mixed can"):
            training.train(half, tmp_path / "r", benchmark=corners)
    small = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3))
    with pytest.raises(InputError, match="the network has 3 outputs, but corners has 4 classes"):
        training.train(config, tmp_path / "r", benchmark=corners, network=small)
    vectors = data.TensorSet("vectors", torch.randn(40, 6), torch.arange(40) % 4, tuple("abcd"))
    embeddings = data.Benchmark("vectors", None, tuple("abcd"), vectors, vectors, vectors)
    with pytest.raises(
        InputError, match=r"the samples are \(6,\), not images, which cnn is for; choose the network mlp"
    ):
        training.train(config, tmp_path / "r", benchmark=embeddings)
    assert not (tmp_path / "r").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: is a file; name a folder"):
        training.train(config, tmp_path / "file", benchmark=corners)
    folder = training.train(training_run.config("plain", 1), tmp_path / "r", benchmark=corners).folder
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"epoch": 3}))
    with pytest.raises(InputError, match="a run has no setting 'epoch'; there are architecture, augment"):
        Run.open(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="is not valid JSON"):
        Run.open(folder)
    bare = dataclasses.replace(corners, val=None)
    folder = training.train(training_run.config("plain", 1), tmp_path / "bare", benchmark=bare).folder
    with pytest.raises(InputError, match="has no best weights, because it had no validation data"):
        Run.open(folder).load("best")
    (folder / "state.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"state.safetensors: .*damaged"):
        training.train(training_run.config("plain", 1), folder, benchmark=bare)


def test_best_weights_come_with_their_method(tmp_path: Path) -> None:
    """CIDER's prototypes and projection are those of the epoch that was best."""
    corners = training_run.benchmark()
    config = training_run.config("cider", 6, warmup=0, lr=0.3)
    run = training.train(config, tmp_path / "r", benchmark=corners)
    lines = run.history
    x, y = next(iter(corners.loader("val", batch_size=40)))
    for which, accuracy in (("best", max(line["val_accuracy"] for line in lines)), ("last", lines[-1]["val_accuracy"])):
        with torch.no_grad():
            measured = (run.load(which).outputs(x).predictions == y).float().mean()
        assert measured == pytest.approx(accuracy)


def test_vos_says_when_it_never_draws(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"VOS has seen .* samples of a class, of 1000"):
        training.train(training_run.config("vos", 2), tmp_path / "r", benchmark=training_run.benchmark())


@pytest.mark.parametrize("method", ["vos", "logitnorm", "cider", "umap", "t2fnorm"])
def test_bfloat16(tmp_path: Path, method: str) -> None:
    """Losses that need the digits have them."""
    changes: dict[str, Any] = {"options": {"samples": 10, "draws": 50}} if method == "vos" else {}
    changes |= {"rho_norm": 1.0} if method in ("vos", "t2fnorm") else {}
    corners = training_run.benchmark()
    if method == "umap":
        changes["start"] = str(
            training.train(training_run.config("spcp", 1, width=16), tmp_path / "start", benchmark=corners).folder
        )
    config = training_run.config(method, 2, precision="bf16-mixed", warmup=0, width=16, **changes)
    lines = training.train(config, tmp_path / "r", benchmark=corners).history
    assert all(math.isfinite(line["loss"]) for line in lines)


def test_another_run_in_the_folder(tmp_path: Path) -> None:
    corners = training_run.benchmark(48)
    training.train(training_run.config("plain", 1), tmp_path / "r", benchmark=corners)
    with pytest.raises(InputError, match=r"r: its run has epochs = 1, not 2; choose another folder"):
        training.train(training_run.config("plain", 2), tmp_path / "r", benchmark=corners)
    with pytest.raises(InputError, match="no method 'spcq'"):
        config_for("digits", "spcq")
    with pytest.raises(InputError, match="a run has no setting 'epoch'"):
        config_for("digits", epoch=3)
    with pytest.raises(InputError, match="name the folder of a run"):
        Run.open(tmp_path)


def test_a_method_and_a_network_of_the_caller(tmp_path: Path) -> None:
    class Smoothed(methods.Method):
        def forward(self, network: Any, x: torch.Tensor, y: torch.Tensor, progress: float = 0.0) -> Any:
            z = network(x)
            return torch.nn.functional.cross_entropy(z, y, label_smoothing=0.1), z

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(144, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )

    corners = training_run.benchmark()
    config = training_run.config("plain", 3)
    smoothed = Smoothed(truncation=Truncation(0.5, beta=0.9))
    run = training.train(config, tmp_path / "r", benchmark=corners, network=model(), method=smoothed)
    folder = run.folder
    run.load()  # it remembers what it was trained with
    scored = Run.open(folder).load(network=model(), method=Smoothed(truncation=Truncation(0.5, beta=0.9)))
    assert isinstance(scored.head, SPCPLinear)
    assert not isinstance(run.load(truncate=False).head, SPCPLinear)
    x, y = next(iter(corners.loader("val", batch_size=40)))
    accuracy = (scored.outputs(x).predictions == y).float().mean()
    assert accuracy == pytest.approx(run.history[-1]["val_accuracy"])
    with pytest.raises(InputError, match=r"last.safetensors: its weights belong to another network"):
        Run.open(folder).load()
    with pytest.raises(InputError, match="its run has custom_method = "):
        training.train(config, folder, benchmark=corners, network=model())


def test_a_model_of_the_caller_stays_as_it_is(tmp_path: Path) -> None:
    corners, config = training_run.benchmark(48), training_run.config("mos", 1)
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 32), torch.nn.ReLU())
    model = torch.nn.Sequential(OrderedDict(body=body, head=torch.nn.Linear(32, 4)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = training.train(config, tmp_path / "r", benchmark=corners, network=model)
    network = Run.open(run.folder).load(network=model).network
    assert network.classifier.out_features == 6  # two groups, each with its others
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model(torch.randn(2, 144)).shape == (2, 4)

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = body, torch.nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.body(x)) * 2

    with pytest.raises(InputError, match="Scaled: does more after its last layer"):
        training.train(config, tmp_path / "s", benchmark=corners, network=Scaled())


def test_loggers_are_told_what_the_metrics_are_told(tmp_path: Path) -> None:
    from lightning_fabric.loggers import CSVLogger

    logger = CSVLogger(str(tmp_path / "logs"), name="run", version="0")
    run = training.train(
        training_run.config("spcp", 2), tmp_path / "r", benchmark=training_run.benchmark(), loggers=logger
    )
    with open(tmp_path / "logs" / "run" / "0" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    for row, line in zip(rows, run.history, strict=True):
        assert {key: float(row[key]) for key in line} == pytest.approx(line)


@pytest.mark.usefixtures("_server")
def test_what_is_shown(tmp_path: Path) -> None:
    """On a terminal a bar, with the speed and the time left; plain lines elsewhere; nothing on standard output."""
    streams = {number: str(tmp_path / f"{number}.txt") for number in (1, 2)}
    assert end(start(tmp_path / "a", "spcp", 2, "cnn", streams=streams)) == 0
    assert Path(streams[1]).read_text() == ""
    shown = [line for line in Path(streams[2]).read_text().splitlines() if line.startswith("epoch")]
    number = r"[\d.e+-]+"
    for epoch, line in enumerate(shown, 1):
        assert re.fullmatch(
            rf"epoch {epoch}/2  loss {number}  accuracy {number} %  validation {number} %  "
            rf"threshold {number} \({number}% truncated\)  {number} s",
            line,
        )
    assert len(shown) == 2
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 150, 0, 0))
    process = start(tmp_path / "b", "spcp", 2, "cnn", streams={2: os.ttyname(theirs)}, TERM="xterm", COLUMNS=150)
    text = b""
    while ours in multiprocessing.connection.wait([ours, process.sentinel]):
        text += os.read(ours, 65536)
    os.close(theirs)
    os.close(ours)
    assert end(process) == 0
    assert re.search(
        rf"loss {number}  accuracy {number} %  threshold {number}  [\d,]+ images/s  0:\d\d left", text.decode()
    )
    assert len(re.findall(r"epoch \d/2  loss .* s\b", text.decode())) >= 2


def test_a_threshold_that_never_truncates_is_reported(tmp_path: Path) -> None:
    config = training_run.config("spcp", 1, rho_norm=1.0, beta=0.9999)
    with pytest.warns(UserWarning, match="SPCP did nothing"):
        training.train(config, tmp_path / "r", benchmark=training_run.benchmark())
    assert Run.open(tmp_path / "r").history[0]["truncated"] == 0


@pytest.mark.parametrize(("augment", "views"), [("none", 1), ("flip", 2)])
def test_less_augmentation(augment: str, views: int) -> None:
    """Images come as they are, or mirrored; never shifted."""
    x = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    images = data.as_set((x, torch.tensor([0, 1])))
    benchmark = data.make_benchmark({"train": images, "test": images})
    loader = augmented(benchmark, augment).loader("train", batch_size=2, train=True)
    seen = [image for epoch in range(20) for x, _ in loader.epoch(epoch, 0) for image in x]
    plain = next(iter(benchmark.loader("test", batch_size=2)))[0]
    allowed = [*plain, *plain.flip(3)][: 2 * views]
    assert all(any(torch.allclose(image, one, atol=1e-5) for one in allowed) for image in seen)
    assert all(any(torch.allclose(image, one, atol=1e-5) for image in seen) for one in allowed)
    assert augmented(benchmark, "full") is benchmark
    reflected = augmented(benchmark, "reflect").transform
    assert isinstance(reflected, data.ImageTransform)
    assert (reflected.padding, reflected.border, reflected.augment) == (3, "reflect", "crop")


def test_trains_on_some_images(tmp_path: Path) -> None:
    config = training_run.config_for("digits", epochs=1, width=8, images=100)
    run = training.train(config, tmp_path)
    assert len(run.benchmark().train or ()) == 100
    assert len(Evaluation(run, "digits").bank("train")) == 100


@pytest.mark.parametrize(("width", "size"), [(4, 12), (8, 64)])
def test_a_very_narrow_resnet_trains(tmp_path: Path, width: int, size: int) -> None:
    """In channels_last torch's convolutions corrupt memory with few channels, and on some processors with 8 too."""
    x = torch.randint(256, (96, 1, size, size), dtype=torch.uint8)
    images = data.as_set((x, torch.arange(96) % 4))
    benchmark = data.make_benchmark({"train": images, "test": images})
    config = training_run.config("plain", 1, network="resnet18", width=width, batch_size=48)
    assert training.train(config, tmp_path / "r", benchmark=benchmark).history[0]["loss"] > 0


def test_trains_in_a_thread(tmp_path: Path) -> None:
    """Where no signal can be caught."""
    corners, config = training_run.benchmark(48), training_run.config("plain", 1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        folder = pool.submit(training.train, config, tmp_path / "thread", benchmark=corners).result().folder
    here = training.train(config, tmp_path / "here", benchmark=corners).folder
    ours, theirs = (read_tensors(path / "last.safetensors")[0] for path in (here, folder))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
