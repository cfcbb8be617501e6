"""A run is a folder, and resumes to the bit.

`config.json` (complete: the same command continues or repeats it), `inputs.json` (what the network expects, and what
its classes are called), `metrics.jsonl` (a line an epoch),
`last.safetensors` and `best.safetensors` (by ID validation), `environment.json` (versions, device, threads and
instruction sets, from which epoch on), and `state.safetensors`: everything that the next step depends on.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..contributions import apply_spcp
from ..data import Benchmark, Inputs, load_benchmark
from ..environment import environment
from ..errors import InputError, TrainingError, need
from ..files import sweep, written
from ..methods import Method
from ..networks import Network, adapt, trust
from ..networks.adapted import Adapted
from .settings import Config, build_method, build_network, is_own

GIVEN = {"custom_network", "custom_method"}  # what a config file holds besides the settings


class Run:
    """Where a run is, and its files.

    Args:
        folder: of the run.
        config: its settings.
        writes: whether this process writes files.
        given: what the caller gave in place of what the config names, in words.
    """

    def __init__(self, folder: Path, config: Config, writes: bool, given: Mapping[str, str]) -> None:
        self.folder, self.config, self.writes = folder, config, writes
        self.settings: dict[str, Any] = json.loads(json.dumps({**dataclasses.asdict(config), **given}, default=_plain))
        self.epoch, self.step, self.lr, self.seconds, self.best = 0, 0, 0.0, 0.0, -1.0
        self.sums = torch.zeros(3, dtype=torch.float64)  # of the epoch: loss, right, seen
        self.scaler: Any = None  # of float16 training

    def check(self) -> None:
        """See that the folder is free, or holds a run with these settings."""
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder}: is a file; name a folder for the run")
        if not (self.folder / "config.json").exists():
            return
        usual = json.loads(json.dumps(dataclasses.asdict(Config()), default=_plain))
        theirs = usual | _settings(self.folder)  # a setting that is newer than the run has the value that it had then
        for key in (self.settings | theirs).keys() - {"save_every", "root"}:
            if self.settings.get(key) != theirs.get(key):
                raise InputError(
                    f"{self.folder}: its run has {key} = {theirs.get(key)!r}, not {self.settings.get(key)!r}; choose "
                    "another folder"
                )

    def claim(self, inputs: Inputs) -> None:
        """Write the settings into a new folder, and clean up after processes that were killed."""
        if self.writes:
            weights = (f"{name}.safetensors" for name in ("state", "last", "best"))
            sweep(self.folder, *weights, "metrics.jsonl", "environment.json")
            with written(self.folder / "config.json") as file:
                file.write((json.dumps(self.settings, indent=2, sort_keys=True) + "\n").encode())
            with written(self.folder / "inputs.json") as file:
                file.write((json.dumps(inputs.as_json()) + "\n").encode())

    def record_environment(self) -> None:
        """Write what the epochs from here on are computed with, if that has changed since the last time."""
        if not self.writes:
            return
        path = self.folder / "environment.json"
        kept = json.loads(path.read_text()) if path.exists() else []
        if not kept or {**kept[-1], "epoch": 0} != {"epoch": 0, **environment()}:
            with written(path) as file:
                file.write((json.dumps([*kept, {"epoch": self.epoch, **environment()}], indent=2) + "\n").encode())

    def add(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """Add a batch to the epoch's sums, on its device."""
        right = (logits.argmax(1) == y).sum()
        dtype = torch.float32 if loss.device.type == "mps" else torch.float64  # which has no other
        self.sums = self.sums.to(loss.device, dtype)
        self.sums += torch.stack([own.to(dtype) for own in (loss * len(y), right, loss.new_tensor(len(y)))])

    def fail(self, reason: str) -> TrainingError:
        """The error that ends the run."""
        return TrainingError(
            f"{self.folder}: {reason} in epoch {self.epoch + 1}, at or before step {self.step}; the last state is from "
            "before; start anew with a smaller learning rate (lr) or a longer warm-up (warmup)"
        )

    def finish_epoch(self, trainee: Any, optimizer: torch.optim.Optimizer, line: Mapping[str, Any]) -> None:
        """Write the epoch's line, the weights and the state, in this order; then the next epoch begins."""
        model, momentum = self._finite(*_whole(trainee, optimizer))
        accuracy = line["val_accuracy"]
        better = accuracy is not None and accuracy > self.best
        if self.writes:
            path = self.folder / "metrics.jsonl"
            kept = [old for old in _lines(path) if old["epoch"] < self.epoch]
            with written(path) as file:
                file.write("".join(json.dumps(own) + "\n" for own in (*kept, line)).encode())
            transient = {f"method.{name}" for name in trainee.method.transient}
            weights = {name.removeprefix("network."): own for name, own in model.items() if name not in transient}
            notes = {"epoch": str(self.epoch), "accuracy": str(accuracy)}
            save(self.folder / "last.safetensors", weights, notes)
            if better:
                save(self.folder / "best.safetensors", weights, notes)
        self.best = accuracy if better else self.best
        self.epoch, self.step, self.seconds, self.sums = self.epoch + 1, 0, 0.0, torch.zeros_like(self.sums)
        self._save(model, momentum)

    def save(self, trainee: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the state."""
        self._save(*self._finite(*_whole(trainee, optimizer)))

    def _finite(self, *parts: dict[str, Tensor]) -> tuple[dict[str, Tensor], ...]:
        """What may be written."""
        if not all(bool(own.isfinite().all()) for own in parts[0].values() if own.is_floating_point()):
            raise self.fail("the weights are not finite")
        return parts

    def _save(self, model: Mapping[str, Tensor], momentum: Mapping[str, Tensor]) -> None:
        if not self.writes:
            return
        tensors = {f"trainee.{name}": value for name, value in model.items()}
        tensors |= {f"momentum.{name}": value for name, value in momentum.items()}
        tensors |= {"rng": torch.get_rng_state(), "sums": self.sums}
        if torch.cuda.is_available():
            tensors["cuda_rng"] = torch.cuda.get_rng_state()
        notes = {key: repr(getattr(self, key)) for key in ("epoch", "step", "lr", "seconds", "best")}
        if self.scaler is not None:
            notes["scaler"] = json.dumps(self.scaler.state_dict())
        save(self.folder / "state.safetensors", tensors, notes)

    def resume(self, trainee: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
        """Go back to the last state, if there is one."""
        path = self.folder / "state.safetensors"
        if not path.exists():
            return False
        tensors, notes = load(path)
        try:
            _restore(trainee, optimizer, _within(tensors, "trainee."), _within(tensors, "momentum."))
        except (RuntimeError, KeyError) as error:
            raise InputError(f"{path}: is of another network; build the one that the run was started with") from error
        torch.set_rng_state(tensors["rng"])
        if torch.cuda.is_available() and "cuda_rng" in tensors:
            torch.cuda.set_rng_state(tensors["cuda_rng"])
        if self.scaler is not None and "scaler" in notes:
            self.scaler.load_state_dict(json.loads(notes["scaler"]))
        self.sums = tensors["sums"].to(device) * self.writes  # one process holds what all have summed
        self.epoch, self.step = int(notes["epoch"]), int(notes["step"])
        self.lr, self.seconds, self.best = (float(notes[key]) for key in ("lr", "seconds", "best"))
        return True


def _within(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _whole(trainee: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The model's tensors and the momenta, by name, put together where processes hold a part of each (FSDP)."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.tensor import DTensor

    model: Any = get_model_state_dict(trainee, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    momentum = {}
    for name, p in trainee.named_parameters():
        own = optimizer.state.get(p, {}).get("momentum_buffer")
        if own is not None:
            momentum[name] = own.full_tensor() if isinstance(own, DTensor) else own
    return model, momentum


def _restore(
    trainee: nn.Module,
    optimizer: torch.optim.Optimizer,
    model: Mapping[str, Tensor],
    momentum: Mapping[str, Tensor],
) -> None:
    """The inverse of `_whole`, in every process."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.tensor import DTensor, distribute_tensor

    set_model_state_dict(trainee, dict(model), options=StateDictOptions(full_state_dict=True))
    for name, p in trainee.named_parameters():
        if name in momentum:
            own = momentum[name].to(p.device)
            if isinstance(p, DTensor):
                own = distribute_tensor(own, p.device_mesh, p.placements)
            optimizer.state[p]["momentum_buffer"] = torch.empty_like(p).copy_(own)  # in the parameter's layout


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of a safetensors file."""
    safetensors = need("safetensors", "safetensors")
    try:
        with safetensors.safe_open(path, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; name the weights of a finished run") from error
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: damaged ({error}); remove it and start again") from error


def save(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write tensors and notes into a safetensors file."""
    write = need("safetensors.torch", "safetensors").save
    contiguous = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    with written(path) as file:
        file.write(write(contiguous, dict(notes)))


def _plain(value: Any) -> Any:
    """Paths and numpy's numbers as JSON has them."""
    return value.item() if hasattr(value, "item") else str(value)


def _settings(folder: Path) -> dict[str, Any]:
    """What the config file of a run holds."""
    path = folder / "config.json"
    try:
        settings: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; name the folder of a run") from error
    except ValueError as error:
        raise InputError(f"{path}: is no JSON ({error}); mend it, or choose another folder") from error
    known = {own.name for own in dataclasses.fields(Config)} | GIVEN
    unknown = sorted(set(settings) - known)
    if unknown:
        raise InputError(f"{path}: there is no setting {unknown[0]!r}; there are {', '.join(sorted(known - GIVEN))}")
    return settings


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run, one an epoch."""
    return _lines(Path(folder).expanduser() / "metrics.jsonl")


def read_config(folder: str | Path) -> Config:
    """The settings of a run."""
    settings = _settings(Path(folder).expanduser())
    return Config(**{key: value for key, value in settings.items() if key not in GIVEN})


def read_inputs(folder: str | Path) -> Inputs:
    """What the network of a run expects."""
    path = Path(folder).expanduser() / "inputs.json"
    try:
        return Inputs.from_json(json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; name the folder of a run") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def read_environment(folder: str | Path) -> list[dict[str, Any]]:
    """What a run was computed with: a record for each change, with the epoch from which on it holds."""
    try:
        return json.loads((Path(folder).expanduser() / "environment.json").read_text())
    except (OSError, ValueError):
        return []  # a run may be older than this record


def benchmark_of(folder: str | Path) -> Benchmark:
    """The data of a run: as its folder describes it (`benchmark.toml`), or by the name in its settings."""
    folder = Path(folder).expanduser()
    config = read_config(folder)
    own = folder / "benchmark.toml"
    data = load_benchmark(own) if own.exists() else load_benchmark(config.benchmark, config.root)
    return data.fewer(config.images)


def load_weights(network: Network, path: Path) -> None:
    """Put the weights of a file, or of a run's folder, into a network that was built alike."""
    path = path / "last.safetensors" if path.is_dir() else path
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise InputError(
            f"{path}: is a pickle, which may run code; convert it: safetensors.torch.save_file(torch.load(path, "
            "weights_only=True), 'weights.safetensors')"
        )
    weights = {name: own for name, own in load(path)[0].items() if not name.startswith("method.")}
    if isinstance(network, Adapted) and not any(name.startswith(("body.", "classifier.")) for name in weights):
        weights = network.renamed(weights)  # of the model itself, not of a run
    if "classifier.threshold" in weights and type(network.classifier) is nn.Linear:
        apply_spcp(network, rho_norm=0.0, classifier="classifier")  # how it truncates is in the file
    own = network.state_dict()
    wrong = sorted(weights.keys() ^ own.keys()) or [
        key for key in own if isinstance(own[key], Tensor) and own[key].shape != weights[key].shape
    ]
    wrong = [key for key in wrong if not key.endswith("_extra_state")]
    if wrong:
        raise InputError(
            f"{path}: its weights are of another network ({wrong[0]} differs); name the network, width and method they "
            "were trained with"
        )
    network.load_state_dict(weights)


def load_network(
    folder: str | Path,
    which: str = "last",
    *,
    network: nn.Module | None = None,
    method: Method | None = None,
) -> tuple[Network, Method]:
    """The network of a run, with its `last` or `best` weights, in evaluation mode, and its method.

    The paper's rule is the last: the threshold is that of the end of training. The data is not needed. A network or
    method that `train` was given in place of the config's has to be given here too; the network stays as it is, and
    a copy comes back with the weights.
    """
    folder = Path(folder).expanduser()
    config = read_config(folder)
    net = build_network(config, read_inputs(folder)) if network is None else adapt(copy.deepcopy(network))
    method = copy.deepcopy(method) if method is not None else build_method(config)
    method.prepare(net, max(1, config.epochs))
    path = folder / f"{which}.safetensors"
    if which == "best" and not path.exists() and (folder / "last.safetensors").exists():
        raise InputError(f"{folder}: has no best weights, for it had no validation data; take the last")
    load_weights(net, path)
    missing, unknown = method.load_state_dict(_within(load(path)[0], "method."), strict=False)
    if unknown or set(missing) - set(method.transient):
        raise InputError(f"{path}: its weights are of another training method; give the one it was trained with")
    return net.eval(), method.eval()


def adopt(
    name: str,
    folder: str | Path,
    benchmark: Benchmark,
    *,
    source: str | None = None,
    weights: str | Path | None = None,
    root: str | Path | None = None,
) -> Path:
    """Make a run of a model that is trained already, so that all that works on runs works on it.

    Args:
        name: of the network: "package.module:function", "model.pt2", or one of this library's.
        folder: for the run; a new one.
        benchmark: the data it was trained for.
        source: what `load_benchmark` finds it by; by default its name.
        weights: a safetensors file of its state dict.
        root: where the benchmark's data is.
    """
    folder = Path(folder).expanduser()
    if (folder / "config.json").exists():
        raise InputError(f"{folder}: holds a run; choose another folder")
    given = {"start": weights, "root": root}
    words = {key: None if value is None else str(value) for key, value in given.items()}
    config = Config(benchmark=source or benchmark.name, network=name, epochs=0, **words)  # type: ignore[arg-type]
    inputs = benchmark.inputs()
    if is_own(name):
        trust(name)
    net = build_network(config, inputs)
    if net.classifier.out_features != len(inputs.class_names):
        raise InputError(
            f"{name}: has {net.classifier.out_features} outputs, but {benchmark.name} has {len(inputs.class_names)} "
            "classes; name the data it was trained for"
        )
    if weights is not None:
        load_weights(net, Path(weights).expanduser())
    run = Run(folder, config, True, {})
    run.claim(inputs)
    save(folder / "last.safetensors", net.state_dict(), {})
    return folder
