"""The one training loop, for all methods.

A run is a folder: `config.json` (complete: the same command continues or repeats it), `metrics.jsonl` (a line an
epoch), `last.safetensors` and `best.safetensors` (by ID validation), and `state.safetensors`, from which it resumes:
killed at any moment and started again, a run on the CPU ends with the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import networks, objectives
from .atomic import written
from .contributions import SPCPLinear
from .data import AudioTransform, Benchmark, Loader, load_benchmark, take
from .errors import InputError, need
from .networks import Network
from .objectives import Objective
from .progress import track

_log = logging.getLogger("spcp")

# Name: the objective, and the options that make it this method.
METHODS: Mapping[str, tuple[type[Objective], Mapping[str, Any]]] = {
    "plain": (objectives.CrossEntropy, {}),
    "spcp": (objectives.CrossEntropy, {"rho_norm": None}),
    "fixed": (objectives.CrossEntropy, {"rho_norm": None, "beta": 1.0}),
    "l2": (objectives.CrossEntropy, {"penalty": 1e-3}),
    "logitnorm": (objectives.LogitNorm, {}),
    "logitnorm+spcp": (objectives.LogitNorm, {"rho_norm": None}),
    "t2fnorm": (objectives.T2FNorm, {}),
    "t2fnorm+spcp": (objectives.T2FNorm, {"rho_norm": None}),
    "cider": (objectives.CIDER, {}),
    "cider+spcp": (objectives.CIDER, {"rho_norm": None}),
    "snn": (objectives.SNN, {}),
    "vos": (objectives.VOS, {}),
    "vos+spcp": (objectives.VOS, {"rho_norm": None}),
    "mos": (objectives.MOS, {}),
    "umap": (objectives.UMAP, {}),
}


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    benchmark: str = "digits"
    root: str | None = None
    method: str = "plain"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method: rho_norm, tau, ...
    network: str = "cnn"
    width: int | None = None  # None: the network's own
    start: str | None = None  # weights to start from (safetensors), as UMAP needs them
    epochs: int = 40
    batch_size: int = 100
    lr: float = 0.05
    min_lr: float = 1e-6
    warmup: int = 0  # epochs over which the learning rate rises
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 0
    precision: str = "auto"  # or as Fabric's: "32-true", "bf16-mixed", ...
    save_every: float = 60.0  # seconds between two saves within an epoch


# The paper's settings (SGD with Nesterov momentum, cosine per iteration), and the embedded data's.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {"network": "resnet18", "epochs": 100, "batch_size": 128, "lr": 0.1, "rho_norm": 3.0},
    "cifar100": {"network": "resnet18", "epochs": 100, "batch_size": 128, "lr": 0.1, "rho_norm": 0.5},
    "imagenet200": {"network": "resnet18_224", "epochs": 90, "batch_size": 256, "lr": 0.1, "rho_norm": 0.4},
    "imagenet": {"network": "resnet18_224", "epochs": 90, "batch_size": 256, "lr": 0.1, "rho_norm": 0.4},
    "digits": {"network": "cnn", "epochs": 40, "batch_size": 100, "lr": 0.05, "rho_norm": 1.0},
}
# Where a method departs from them.
DEPARTURES: Mapping[str, Mapping[str, Any]] = {
    "cider": {"batch_size": 512, "lr": 0.5, "warmup": 10, "weight_decay": 1e-4},
}


def config_for(benchmark: str, method: str = "plain", **changes: Any) -> Config:
    """The paper's settings for a benchmark and a method, but for the changes.

    >>> config_for("cifar10", "spcp", epochs=10).options["rho_norm"]
    3.0
    """
    if method not in METHODS:
        raise InputError(f"no method {method!r}; there are {', '.join(METHODS)}")
    settings = dict(DEFAULTS.get(benchmark, {**DEFAULTS["digits"], "network": "resnet18"}))
    rho_norm = settings.pop("rho_norm")
    if benchmark == "digits" and method.startswith("cider"):
        departures: Mapping[str, Any] = {"batch_size": 200, "lr": 0.1, "warmup": 2}
    else:
        departures = DEPARTURES.get(method.removesuffix("+spcp"), {})
    options = {key: rho_norm if value is None else value for key, value in METHODS[method][1].items()}
    options |= dict(changes.pop("options", {}))
    known = {own.name for own in dataclasses.fields(Config)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise InputError(f"a run has no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return Config(
        **(settings | dict(departures) | {"benchmark": benchmark, "method": method, "options": options} | changes)
    )


def lr_at(step: int, total: int, config: Config, warmup_steps: int) -> float:
    """The learning rate of a step: a rise over the warm-up, then half a cosine from `lr` down to `min_lr`.

    >>> config = Config(lr=0.1, min_lr=0.0)
    >>> [round(lr_at(step, 10, config, 2), 3) for step in (0, 1, 2, 6, 10)]
    [0.05, 0.1, 0.1, 0.05, 0.0]
    """
    if step < warmup_steps:
        return config.lr * (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, total - warmup_steps)
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * share)) / 2


def build_network(config: Config, benchmark: Benchmark) -> Network:
    """The network of a run, for the benchmark's classes and channels."""
    if config.network not in networks.NETWORKS:
        raise InputError(f"no network {config.network!r}; there are {', '.join(networks.NETWORKS)}")
    build: Any = networks.NETWORKS[config.network]
    options: dict[str, Any] = {} if config.width is None else {"width": config.width}
    if "inputs" in inspect.signature(build).parameters:
        x, _ = next(iter(benchmark.loader("test", batch_size=1)))
        options["inputs"] = x[0].numel()
    elif benchmark.transform is not None:
        options["channels"] = 1 if isinstance(benchmark.transform, AudioTransform) else benchmark.transform.channels
    network: Network = build(len(benchmark.classes), **options)
    return network


class Trainee(nn.Module):
    """Network and objective as one module, so that data parallel training sees all of a step."""

    def __init__(self, network: Network, objective: Objective) -> None:
        super().__init__()
        self.network, self.objective = network, objective

    def forward(self, x: Tensor, y: Tensor, progress: float) -> tuple[Tensor, Tensor]:
        """Loss and logits."""
        loss, logits = self.objective(self.network, x, y, progress)
        return loss, logits


class TrainingError(RuntimeError):
    """A run that cannot go on; the message says where it stopped and what is left."""


def train(
    config: Config,
    folder: str | Path,
    *,
    benchmark: Benchmark | None = None,
    network: nn.Module | None = None,
    loggers: Any = None,
    until: int | None = None,
) -> Path:
    """Train, or go on training, and return the folder of the run.

    Args:
        config: the settings; a folder that holds a run with other settings is an error.
        folder: of the run.
        benchmark: instead of the one the config names.
        network: instead of the one the config names, any classifier; it must be built alike when the run is resumed.
        loggers: of Fabric (TensorBoard, CSV, ...), told what `metrics.jsonl` is told.
        until: stop after so many epochs; the next call goes on.
    """
    folder = Path(folder).expanduser()
    fabric = need("lightning_fabric", "lightning-fabric", "train").Fabric(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        precision=precision_of(config),
        loggers=loggers,
    )
    fabric.launch()
    _claim(folder, config, fabric.is_global_zero)
    fabric.barrier()
    benchmark = benchmark or load_benchmark(config.benchmark, config.root)
    if benchmark.train is None:
        raise InputError(f"{benchmark.name}: has no training data; {' '.join(benchmark.notes)}")
    torch.manual_seed(config.seed)
    net = build_network(config, benchmark) if network is None else networks.adapt(network)
    if config.start:
        net.load_state_dict(_load(Path(config.start))[0])
    objective = _objective(config)
    share = {"rank": fabric.global_rank, "world_size": fabric.world_size, "device": fabric.device}
    loader = benchmark.loader(
        "train", batch_size=config.batch_size, train=True, seed=config.seed, views=objective.views, **share
    )
    validation = benchmark.loader("val", batch_size=512 * fabric.world_size, **share) if benchmark.val else None
    first = take(benchmark.train, range(min(64, len(benchmark.train))))  # to see what share of contributions is cut
    some, _ = next(
        iter(Loader(first, benchmark.transform, batch_size=64, device=fabric.device, workers=0, cache=False))
    )
    total = config.epochs * len(loader)
    objective.prepare(net, total)
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trainee = Trainee(net, objective)
    trained = [p for p in trainee.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(
        trained, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0, weight_decay=config.weight_decay
    )
    run = _Run(folder, config, trainee, optimizer, fabric.is_global_zero)
    module, sgd = fabric.setup(trainee, optimizer)
    if not run.resume(fabric.device):
        objective.begin(net, benchmark.loader("train", batch_size=config.batch_size, device=fabric.device))
    while run.epoch < min(config.epochs, until or config.epochs):
        with _interruptible(run):
            _epoch(run, module, sgd, loader, total, fabric)
        accuracy = _accuracy(net, objective, validation, fabric) if validation is not None else None
        line = run.finish_epoch(accuracy, _share_cut(net, objective, some))
        fabric.log_dict({key: value for key, value in line.items() if value is not None}, step=line["epoch"])
    fabric.barrier()
    return folder


def _epoch(run: _Run, module: Any, optimizer: Any, loader: Loader, total: int, fabric: Any) -> None:
    """The rest of an epoch. Nothing is asked of the device but every 50 steps and at the end."""
    config, steps = run.config, len(loader)
    warmup = config.warmup * steps
    module.train()
    started, saved = time.perf_counter(), time.perf_counter()
    batches = loader.epoch(run.epoch, run.step)
    for x, y in track(batches, f"epoch {run.epoch + 1} of {config.epochs}", steps - run.step):
        step = run.epoch * steps + run.step
        lr = lr_at(step, total, config, warmup)
        for group in optimizer.param_groups:
            group["lr"] = lr
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        loss, logits = module(x, y, step / total)
        fabric.backward(loss)
        optimizer.step()
        run.add(loss.detach(), logits.detach(), y)
        run.step += 1
        run.lr = lr
        if run.step % 50 == 0 or run.step == steps:
            run.check()
        now = time.perf_counter()
        if run.stopping or (now - saved > config.save_every and run.step < steps):
            run.seconds += now - started
            started = saved = now
            run.save()
        if run.stopping:
            _log.warning("stopped in epoch %d; the same command goes on from here: %s", run.epoch, run.folder)
            raise KeyboardInterrupt
    run.seconds += time.perf_counter() - started


@contextlib.contextmanager
def _interruptible(run: _Run) -> Iterator[None]:
    """Let Ctrl-C end the step before it ends the run; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        if run.stopping:
            raise KeyboardInterrupt
        run.stopping = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@torch.no_grad()
def _accuracy(network: Network, objective: Objective, validation: Loader, fabric: Any) -> float:
    """Of the validation data, in percent, over all processes."""
    network.eval(), objective.eval()  # validation data must not move a threshold
    right = torch.zeros((), device=fabric.device)
    for x, y in validation:
        with fabric.autocast():
            right += (objective.predict(network, x) == y).sum()
    network.train(), objective.train()
    return float(fabric.all_reduce(right, reduce_op="sum")) / len(validation.data) * 100


@torch.no_grad()
def _share_cut(network: Network, objective: Objective, x: Tensor) -> float | None:
    """The share of contributions of some samples above the threshold; None where nothing is bounded."""
    head = objective.head(network)
    if not isinstance(head, SPCPLinear):
        return None
    seen: list[Tensor] = []
    hook = head.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    network.eval(), objective.eval()
    objective.predict(network, x)
    network.train(), objective.train()
    hook.remove()
    over = sum(int((h[:, None] * head.weight > head.threshold).sum()) for h in seen[0].float().split(1))
    return over / (len(seen[0]) * head.weight.numel())


def _words(line: Mapping[str, Any], epochs: int) -> str:
    """An epoch in a line."""
    parts = [f"epoch {line['epoch'] + 1}/{epochs}", f"loss {line['loss']:.4f}", f"accuracy {line['accuracy']:.1f} %"]
    if line["val_accuracy"] is not None:
        parts.append(f"validation {line['val_accuracy']:.1f} %")
    if "threshold" in line:
        parts.append(f"threshold {line['threshold']:.4g} ({line['cut']:.2%} cut)")
    return "  ".join((*parts, f"{line['seconds']:.1f} s"))


def precision_of(config: Config) -> str:
    """Fabric's name for the precision; "auto" is bfloat16 where the device computes in it, else float32."""
    if config.precision != "auto":
        return config.precision
    if torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported()
    else:
        fast = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
    return "bf16-mixed" if fast else "32-true"


def _objective(config: Config) -> Objective:
    if config.method not in METHODS:
        raise InputError(f"no method {config.method!r}; there are {', '.join(METHODS)}")
    try:
        return METHODS[config.method][0](**config.options)
    except TypeError as error:
        raise InputError(f"{config.method}: {error}") from error


def _claim(folder: Path, config: Config, first: bool) -> None:
    """Write the config into a new folder, or check that the folder's is the same."""
    text = json.dumps(dataclasses.asdict(config), indent=2, sort_keys=True) + "\n"
    path = folder / "config.json"
    if path.exists():
        ours, theirs = json.loads(text), json.loads(path.read_text())
        other = next((key for key in ours if ours[key] != theirs.get(key) and key != "save_every"), None)
        if other:
            raise InputError(
                f"{folder}: its run has {other} = {theirs.get(other)!r}, not {ours[other]!r}; choose another folder"
            )
    elif first:
        with written(path) as file:
            file.write(text.encode())


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of a safetensors file."""
    safetensors = need("safetensors", "safetensors")
    try:
        with safetensors.safe_open(path, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; name the weights of a finished run") from error
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: damaged ({error}); remove it and start again") from error


def _save(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    save = need("safetensors.torch", "safetensors").save
    contiguous = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    with written(path) as file:
        file.write(save(contiguous, dict(notes)))


class _Run:
    """Where a run is, and its files. Everything that the next step depends on is in `state.safetensors`."""

    def __init__(self, folder: Path, config: Config, trainee: Trainee, optimizer: torch.optim.SGD, first: bool) -> None:
        self.folder, self.config, self.trainee, self.optimizer, self.first = folder, config, trainee, optimizer, first
        self.epoch, self.step, self.lr, self.seconds, self.best = 0, 0, 0.0, 0.0, -1.0
        self.stopping = False
        self.names = [name for name, p in trainee.named_parameters() if p.requires_grad]
        self.reset()

    def reset(self) -> None:
        """Start an epoch's sums."""
        self.sums = torch.zeros(3, dtype=torch.float64)  # loss, right, seen

    def add(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """Add a batch to the epoch's sums, on its device."""
        own = torch.stack(
            [loss.double() * len(y), (logits.argmax(1) == y).sum().double(), loss.new_tensor(len(y)).double()]
        )
        self.sums = self.sums.to(own.device) + own

    def check(self) -> None:
        """Stop where the loss is not finite; the last save is from before."""
        if not math.isfinite(float(self.sums[0])):
            raise TrainingError(
                f"{self.folder}: the loss is not finite in epoch {self.epoch}, at or before step {self.step}; the last "
                "state is from before; start anew with a smaller learning rate (lr) or a longer warm-up (warmup)"
            )

    def heads(self) -> list[SPCPLinear]:
        """The layers that are bounded."""
        return [module for module in self.trainee.modules() if isinstance(module, SPCPLinear)]

    def finish_epoch(self, accuracy: float | None, cut: float | None) -> dict[str, Any]:
        """Write the epoch's line, the weights and the state, in this order."""
        loss, right, seen = self.sums.tolist()
        line: dict[str, Any] = {"epoch": self.epoch, "loss": loss / seen, "accuracy": right / seen * 100}
        line |= {"val_accuracy": accuracy, "lr": self.lr, "seconds": round(self.seconds, 2)}
        for head in self.heads():
            line |= {"threshold": float(head.threshold), "cut": cut}
        if self.first:
            path = self.folder / "metrics.jsonl"
            kept = [old for old in _lines(path) if old["epoch"] < self.epoch]
            with written(path) as file:
                file.write("".join(json.dumps(own) + "\n" for own in (*kept, line)).encode())
            print(_words(line, self.config.epochs), file=sys.stderr)
        weights = self.trainee.network.state_dict()
        notes = {"epoch": str(self.epoch), "accuracy": str(accuracy)}
        if self.first:
            _save(self.folder / "last.safetensors", weights, notes)
            if accuracy is not None and accuracy > self.best:
                _save(self.folder / "best.safetensors", weights, notes)
        self.best = max(self.best, accuracy or -1.0)
        self.epoch, self.step, self.seconds = self.epoch + 1, 0, 0.0
        self.reset()
        self.save()
        return line

    def save(self) -> None:
        """Write the state."""
        self.check()
        if not self.first:
            return
        tensors = {f"trainee.{name}": value for name, value in self.trainee.state_dict().items()}
        for name, p in zip(self.names, self.optimizer.param_groups[0]["params"], strict=True):
            buffer = self.optimizer.state.get(p, {}).get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{name}"] = buffer
        tensors |= {"rng": torch.get_rng_state(), "sums": self.sums}
        notes = {key: repr(getattr(self, key)) for key in ("epoch", "step", "lr", "seconds", "best")}
        _save(self.folder / "state.safetensors", tensors, notes)

    def resume(self, device: torch.device) -> bool:
        """Go back to the last state, if there is one."""
        path = self.folder / "state.safetensors"
        if not path.exists():
            return False
        tensors, notes = _load(path)
        own = {name[8:]: value for name, value in tensors.items() if name.startswith("trainee.")}
        self.trainee.load_state_dict(own)
        for name, p in zip(self.names, self.optimizer.param_groups[0]["params"], strict=True):
            if f"momentum.{name}" in tensors:
                buffer = torch.empty_like(p)  # in the layout of the parameter
                self.optimizer.state[p]["momentum_buffer"] = buffer.copy_(tensors[f"momentum.{name}"])
        torch.set_rng_state(tensors["rng"])
        self.sums = tensors["sums"].to(device)
        self.epoch, self.step = int(notes["epoch"]), int(notes["step"])
        self.lr, self.seconds, self.best = (float(notes[key]) for key in ("lr", "seconds", "best"))
        return True


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run, one an epoch."""
    return _lines(Path(folder).expanduser() / "metrics.jsonl")


def read_config(folder: str | Path) -> Config:
    """The settings of a run."""
    path = Path(folder).expanduser() / "config.json"
    if not path.exists():
        raise InputError(f"{path}: there is no such file; name the folder of a run")
    return Config(**json.loads(path.read_text()))


def load_network(
    folder: str | Path, which: str = "last", benchmark: Benchmark | None = None
) -> tuple[Network, Objective]:
    """The network of a run, with its `last` or `best` weights, in evaluation mode, and its objective.

    The paper's rule is the last: the threshold is that of the end of training.
    """
    folder = Path(folder).expanduser()
    config = read_config(folder)
    benchmark = benchmark or load_benchmark(config.benchmark, config.root)
    network, objective = build_network(config, benchmark), _objective(config)
    objective.prepare(network, max(1, config.epochs))
    network.load_state_dict(_load(folder / f"{which}.safetensors")[0])
    state = _load(folder / "state.safetensors")[0]
    own = {name[18:]: value for name, value in state.items() if name.startswith("trainee.objective.")}
    objective.load_state_dict(own)
    return network.eval(), objective.eval()
