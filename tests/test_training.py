from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import json
import math
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning_fabric")

import training_run
from safetensors.torch import load_file

from spcp import SPCPLinear, data, methods, training
from spcp.errors import InputError
from spcp.evaluation import Evaluation
from spcp.training import loop, run
from spcp.training.settings import augmented, build_method

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
    """Killed within epochs, and before, while and after files are written, at random; then left alone."""
    arguments = [method, "3", "cnn"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    alone = subprocess.Popen([sys.executable, str(SCRIPT), str(whole), *arguments])
    rng = random.Random(method)
    for where in rng.sample(["step", "write", "replace", "replaced"], 4 if method == "spcp" else 2):
        died = subprocess.run(
            [sys.executable, str(SCRIPT), str(killed), *arguments],
            env=os.environ | {"DIE": f"{where}:{rng.randint(3, 9)}"},
        )
        assert died.returncode == -signal.SIGKILL, where
    assert run.load(killed / "state.safetensors")[1]["step"] != "0"  # it goes on within an epoch
    subprocess.run([sys.executable, str(SCRIPT), str(killed), *arguments], check=True)
    assert alone.wait() == 0
    for name in ("last", "best", "state"):
        assert same(whole / f"{name}.safetensors", killed / f"{name}.safetensors"), name
    lines = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in training.read_metrics(f)]
        for f in (whole, killed)
    ]
    assert lines[0] == lines[1]
    assert [line["epoch"] for line in lines[0]] == [0, 1, 2]
    expected = [f"{own}.safetensors" for own in ("best", "last", "state")]
    expected = sorted([*expected, "config.json", "environment.json", "inputs.json", "metrics.jsonl"])
    assert sorted(path.name for path in killed.iterdir()) == expected  # and nothing half-written


def succeed(arguments: list[str]) -> None:
    """Run a command; if it fails, show why."""
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by a single process."""
    folder = tmp_path_factory.mktemp("one")
    subprocess.run([sys.executable, str(SCRIPT), str(folder), "spcp", "2", "mlp"], check=True)
    return folder


@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
def test_two_processes_train_as_one(tmp_path: Path, one: Path, strategy: str) -> None:
    """With the joint batch, to the accuracy of sums in another order, the threshold included; stopped after an epoch.

    Of a network without BatchNorm, whose statistics are each process's own; one with it runs too.
    """
    two, rtol = tmp_path / "two", 1e-4 if training_run.PRECISION == "32-true" else 2e-2
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for until in ("1", "2"):
        arguments = [*torchrun, str(SCRIPT), str(two), "spcp", "2", "mlp", strategy, until]
        succeed(arguments)
    first, second = load_file(one / "last.safetensors"), load_file(two / "last.safetensors")
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=rtol, atol=rtol / 10)
    for left, right in zip(training.read_metrics(one), training.read_metrics(two), strict=True):
        assert left | {"seconds": 0} == pytest.approx(right | {"seconds": 0}, rel=rtol)
    arguments = [*torchrun, str(SCRIPT), str(tmp_path / "cnn"), "spcp", "1", "cnn", strategy]
    succeed(arguments)
    assert training.read_metrics(tmp_path / "cnn")[0]["loss"] < 2


@pytest.fixture(scope="module")
def digits() -> data.Benchmark:
    return data.load_benchmark("digits")


@pytest.fixture(scope="module")
def trained(digits: data.Benchmark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plainly trained network on the embedded data."""
    return training.train(
        training_run.config_for("digits", epochs=4), tmp_path_factory.mktemp("plain"), benchmark=digits
    )


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_trains_saves_loads_and_scores(
    tmp_path: Path, method: str, digits: data.Benchmark, trained: Path
) -> None:
    options: dict[str, Any] = {"samples": 10, "draws": 20} if method.startswith("vos") else {}
    if method == "fixed":
        options = {"initial_threshold": 0.5}
    start = str(trained / "last.safetensors") if method == "umap" else None
    lr = {"umap": 5.0, "cider": 0.1, "cider+spcp": 0.1}.get(method, 0.05)
    changes: dict[str, Any] = {"options": options, "start": start, "epochs": 3, "lr": lr, "warmup": 0}
    folder = training.train(training_run.config_for("digits", method, **changes), tmp_path / "run", benchmark=digits)
    lines = training.read_metrics(folder)
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert lines[-1]["loss"] < lines[0]["loss"]

    network, trained_by = training.load_network(folder)
    with torch.no_grad():
        right = [(trained_by.predict(network, x) == y).float() for x, y in digits.loader("val", batch_size=500)]
        x = next(iter(digits.loader("near/greek", batch_size=50)))[0]
        h, z, k = trained_by.outputs(network, x)
        assert torch.equal(k, trained_by.predict(network, x))
    assert type(trained_by)(**trained_by.options).options == trained_by.options
    assert torch.cat(right).mean() * 100 == pytest.approx(lines[-1]["val_accuracy"])
    assert h.shape == (50, network.classifier.in_features)
    assert z.shape == (50, 13 if method == "mos" else 10)
    assert z.logsumexp(1).isfinite().all()

    if method == "umap":
        masked, plain = load_file(folder / "last.safetensors"), load_file(trained / "last.safetensors")
        assert all(torch.equal(masked[name], plain[name]) for name in plain)  # it learns masks only
    bounded = method in ("spcp", "fixed") or method.endswith("+spcp")
    heads = [m for m in (*network.modules(), *trained_by.modules()) if isinstance(m, SPCPLinear)]
    assert len(heads) == bounded
    for head in heads:
        steps = 3 * -(-1000 // training.read_config(folder).batch_size)
        assert head.updates.item() == (0 if method == "fixed" else steps)  # one a step, none by validation
        assert (head.threshold.item() == 0.5) == (method == "fixed")
    assert training.train(training.read_config(folder), folder, benchmark=digits) == folder  # finished: nothing to do
    assert training.read_metrics(folder) == lines


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
    method = Exploding(how=how, rho_norm=rho_norm, beta=0.5 if rho_norm else None)
    with pytest.raises(
        training.TrainingError, match=r"run: .* in epoch 2, at or before step [23]; .* smaller learning"
    ):
        training.train(
            training_run.config("plain", 3), tmp_path / "run", benchmark=training_run.benchmark(), method=method
        )
    state = load_file(tmp_path / "run" / "state.safetensors")
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())
    assert run.load(tmp_path / "run" / "state.safetensors")[1]["step"] == "2"


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    """The very last update overflows, after a loss that was finite."""
    own = training_run.benchmark(24)  # one step an epoch
    with pytest.raises(training.TrainingError, match="the weights are not finite in epoch 1"):
        training.train(training_run.config("plain", 1, lr=1e42), tmp_path / "run", benchmark=own)
    assert not (tmp_path / "run" / "last.safetensors").exists()


@pytest.mark.parametrize("at", ["step", "last step", "validation"])
def test_ctrl_c_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    own = training_run.benchmark()
    config = training_run.config("plain", 2, save_every=1000.0)
    whole = training.train(config, tmp_path / "whole", benchmark=own)
    add, accuracy, seen = run.Run.add, loop._accuracy, []

    def interrupted(self: Any, *arguments: Any) -> None:
        add(self, *arguments)
        seen.append(1)
        if len(seen) == {"step": 7, "last step": 10, "validation": 0}[at]:
            os.kill(os.getpid(), signal.SIGINT)

    def validated(*arguments: Any) -> float:
        if at == "validation":
            os.kill(os.getpid(), signal.SIGINT)
        return accuracy(*arguments)

    monkeypatch.setattr(run.Run, "add", interrupted)
    monkeypatch.setattr(loop, "_accuracy", validated)
    with pytest.raises(KeyboardInterrupt):
        training.train(config, tmp_path / "run", benchmark=own)
    assert len(seen) == (7 if at == "step" else 10)
    monkeypatch.undo()
    training.train(config, tmp_path / "run", benchmark=own)
    assert same(whole / "last.safetensors", tmp_path / "run" / "last.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment": "all"}, "augment = 'all' must be"),
        ({"images": 0}, "images = 0 must be a whole number, at least 1"),
        ({"network": "resnet19"}, "no network 'resnet19'; there are resnet18, resnet18_224, resnet10"),
        ({"options": {"taw": 3}}, "plain: .*taw"),
        ({"method": "fixed", "options": {"beta": 1.0, "rho_norm": 1.0}}, "fixed: a fixed threshold needs initial_thr"),
        ({"method": "umap"}, "umap: needs a trained network; name a run, or its weights, in `start`"),
        ({"start": "nowhere.safetensors"}, r"nowhere.safetensors: there is no such file"),
        ({"epochs": 0}, "epochs = 0 must be a whole number, at least 1"),
        ({"epochs": 1.5}, r"epochs = 1.5 must be a whole number"),
        ({"lr": "0.1"}, r"lr = '0.1' must be a number, at least 0"),
        ({"width": 0}, "width = 0 must be"),
        ({"seed": -1}, "seed = -1 must be"),
        ({"warmup": 1}, "warmup = 1 must be a whole number, from 0 to 0"),
        ({"options": None}, "options = None must be a dictionary"),
        ({"method": "spcp", "options": {"rho_norm": 50.0}}, r"spcp: rho_norm is 50; it must lie between 0 and 4"),
        ({"method": "mos", "options": {"groups": [[0, 1]]}}, "mos: groups must hold each of the 4 classes once"),
    ],
)
def test_bad_settings(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"method": "plain", "epochs": 1} | changes
    config = dataclasses.replace(training_run.config(settings["method"], 1), **settings)
    with pytest.raises(InputError, match=message):
        training.train(config, tmp_path / "r", benchmark=training_run.benchmark())
    assert not (tmp_path / "r").exists()


def test_bad_data_and_folders(tmp_path: Path) -> None:
    own, config = training_run.benchmark(48), training_run.config("mos", 1)
    assert isinstance(own.train, data.TensorSet)
    unlabelled = dataclasses.replace(own, train=data.as_ood(own.train))
    with pytest.raises(InputError, match="training labels run from -1 to -1, but must be from 0 to 3"):
        training.train(config, tmp_path / "r", benchmark=unlabelled)
    small = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3))
    with pytest.raises(InputError, match="the network has 3 outputs, but corners has 4 classes"):
        training.train(config, tmp_path / "r", benchmark=own, network=small)
    vectors = data.TensorSet("vectors", torch.randn(40, 6), torch.arange(40) % 4, tuple("abcd"))
    embeddings = data.Benchmark("vectors", None, tuple("abcd"), vectors, vectors, vectors)
    with pytest.raises(
        InputError, match=r"the samples are \(6,\), no images, for which cnn is; choose the network mlp"
    ):
        training.train(config, tmp_path / "r", benchmark=embeddings)
    assert not (tmp_path / "r").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: is a file; name a folder for the run"):
        training.train(config, tmp_path / "file", benchmark=own)
    folder = training.train(training_run.config("plain", 1), tmp_path / "r", benchmark=own)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"epoch": 3}))
    with pytest.raises(InputError, match="there is no setting 'epoch'; there are augment, batch_size"):
        training.read_config(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="is no JSON"):
        training.read_config(folder)
    bare = dataclasses.replace(own, val=None)
    folder = training.train(training_run.config("plain", 1), tmp_path / "bare", benchmark=bare)
    with pytest.raises(InputError, match="has no best weights, for it had no validation data"):
        training.load_network(folder, "best")
    (folder / "state.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"state.safetensors: damaged"):
        training.train(training_run.config("plain", 1), folder, benchmark=bare)


def test_best_weights_come_with_their_objective(tmp_path: Path) -> None:
    """CIDER's prototypes and projection are those of the epoch that was best."""
    own = training_run.benchmark()
    config = training_run.config("cider", 6, warmup=0, lr=0.3)
    folder = training.train(config, tmp_path / "r", benchmark=own)
    lines = training.read_metrics(folder)
    x, y = next(iter(own.loader("val", batch_size=40)))
    for which, accuracy in (("best", max(line["val_accuracy"] for line in lines)), ("last", lines[-1]["val_accuracy"])):
        network, method = training.load_network(folder, which)
        with torch.no_grad():
            found = (method.predict(network, x) == y).float().mean() * 100
        assert found == pytest.approx(accuracy)


def test_vos_says_when_it_never_draws(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"VOS has seen .* samples of a class, of 1000"):
        training.train(training_run.config("vos", 2), tmp_path / "r", benchmark=training_run.benchmark())


@pytest.mark.parametrize("method", ["vos+spcp", "logitnorm", "cider", "umap", "t2fnorm+spcp"])
def test_bfloat16(tmp_path: Path, method: str) -> None:
    """Losses that need the digits have them."""
    changes: dict[str, Any] = {"options": {"samples": 10, "draws": 50}} if "vos" in method else {}
    own = training_run.benchmark()
    if method == "umap":
        changes["start"] = str(
            training.train(training_run.config("spcp", 1, width=16), tmp_path / "start", benchmark=own)
        )
    config = training_run.config(method, 2, precision="bf16-mixed", warmup=0, width=16, **changes)
    lines = training.read_metrics(training.train(config, tmp_path / "r", benchmark=own))
    assert all(math.isfinite(line["loss"]) for line in lines)


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
    class Smoothed(methods.Method):
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
        config, tmp_path / "r", benchmark=own, network=model(), method=Smoothed(rho_norm=0.5, beta=0.9)
    )
    network, method = training.load_network(folder, network=model(), method=Smoothed(rho_norm=0.5, beta=0.9))
    assert isinstance(network.classifier, SPCPLinear)
    x, y = next(iter(own.loader("val", batch_size=40)))
    accuracy = (method.predict(network, x) == y).float().mean() * 100
    assert accuracy == pytest.approx(training.read_metrics(folder)[-1]["val_accuracy"])
    with pytest.raises(InputError, match=r"last.safetensors: its weights are of another network"):
        training.load_network(folder)
    with pytest.raises(InputError, match="its run has custom_method = "):
        training.train(config, folder, benchmark=own, network=model())


def test_a_model_of_ones_own_stays_as_it_is(tmp_path: Path) -> None:
    own, config = training_run.benchmark(48), training_run.config("mos", 1)
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 32), torch.nn.ReLU())
    model = torch.nn.Sequential(OrderedDict(body=body, head=torch.nn.Linear(32, 4)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folder = training.train(config, tmp_path / "r", benchmark=own, network=model)
    network, _ = training.load_network(folder, network=model)
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
        training.train(config, tmp_path / "s", benchmark=own, network=Scaled())


def test_loggers_are_told_what_the_metrics_are_told(tmp_path: Path) -> None:
    from lightning_fabric.loggers import CSVLogger

    logger = CSVLogger(str(tmp_path / "logs"), name="run", version="0")
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
        [*run_it, str(tmp_path / "b"), "spcp", "2", "cnn"],
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "150"},
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
    assert training.config_for("CIFAR10", "spcp") == spcp
    assert training.config_for("imagenet200", "spcp").options == {"rho_norm": 0.4, "subset": 16}
    assert training.config_for("cifar10", "cider", epochs=20).warmup == 2
    assert training.config_for("cifar100", "snn").options["share"] == 0.05
    assert build_method(training.Config(method="l2")).options["penalty"] == 1e-3
    with pytest.raises(InputError, match="spcp: needs rho_norm among its options"):
        build_method(training.Config(method="spcp"))
    again = training.Config(**json.loads(json.dumps(dataclasses.asdict(spcp))))
    assert again == spcp


@pytest.mark.parametrize(("augment", "views"), [("none", 1), ("flip", 2)])
def test_less_augmentation(augment: str, views: int) -> None:
    """Images come as they are, or mirrored; never shifted."""
    x = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    known = data.as_set((x, torch.tensor([0, 1])))
    benchmark = data.make_benchmark({"train": known, "test": known})
    loader = augmented(benchmark, augment).loader("train", batch_size=2, train=True)
    seen = [own for epoch in range(20) for x, _ in loader.epoch(epoch, 0) for own in x]
    plain = next(iter(benchmark.loader("test", batch_size=2)))[0]
    allowed = [*plain, *plain.flip(3)][: 2 * views]
    assert all(any(torch.allclose(own, one, atol=1e-5) for one in allowed) for own in seen)
    assert all(any(torch.allclose(own, one, atol=1e-5) for own in seen) for one in allowed)
    assert augmented(benchmark, "full") is benchmark


def test_trains_on_some_images(tmp_path: Path) -> None:
    config = training_run.config_for("digits", epochs=1, width=8, images=100)
    folder = training.train(config, tmp_path)
    assert len(training.benchmark_of(folder).train or ()) == 100
    assert len(Evaluation(folder, "digits").features("train")) == 100


def test_a_very_narrow_resnet_trains(tmp_path: Path) -> None:
    """In channels_last torch's convolutions corrupt memory with fewer than 8 channels."""
    folder = training.train(
        training_run.config("plain", 1, network="resnet18"), tmp_path / "r", benchmark=training_run.benchmark(48)
    )
    assert training.read_metrics(folder)[0]["loss"] > 0
