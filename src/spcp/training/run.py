"""A run is a folder, and resumes to the bit.

`config.json` (complete: the same command continues or repeats it), `metrics.jsonl` (a line an epoch),
`last.safetensors` and `best.safetensors` (by ID validation), and `state.safetensors`: everything that the next step
depends on.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..atomic import written
from ..data import Benchmark, load_benchmark
from ..errors import InputError, need
from ..networks import Network, adapt
from ..objectives import Objective
from .settings import Config, build_network, build_objective


class Run:
    """Where a run is, and its files."""

    def __init__(self, folder: Path, config: Config, writes: bool) -> None:
        self.folder, self.config, self.writes = folder, config, writes
        self.epoch, self.step, self.lr, self.seconds, self.best = 0, 0, 0.0, 0.0, -1.0
        self.sums = torch.zeros(3, dtype=torch.float64)  # of the epoch: loss, right, seen

    def claim(self) -> None:
        """Write the config into a new folder, or check that the folder's is the same."""
        text = json.dumps(dataclasses.asdict(self.config), indent=2, sort_keys=True) + "\n"
        path = self.folder / "config.json"
        if path.exists():
            ours, theirs = json.loads(text), json.loads(path.read_text())
            other = next((key for key in ours if ours[key] != theirs.get(key) and key != "save_every"), None)
            if other:
                raise InputError(
                    f"{self.folder}: its run has {other} = {theirs.get(other)!r}, not {ours[other]!r}; choose another "
                    "folder"
                )
        elif self.writes:
            with written(path) as file:
                file.write(text.encode())

    def add(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """Add a batch to the epoch's sums, on its device."""
        right = (logits.argmax(1) == y).sum()
        self.sums = self.sums.to(loss.device)
        self.sums += torch.stack([loss.double() * len(y), right.double(), loss.new_tensor(len(y)).double()])

    def finish_epoch(self, trainee: nn.Module, optimizer: torch.optim.Optimizer, line: Mapping[str, Any]) -> None:
        """Write the epoch's line, the weights and the state, in this order; then the next epoch begins."""
        model, momentum = _whole(trainee, optimizer)
        accuracy = line["val_accuracy"]
        better = accuracy is not None and accuracy > self.best
        if self.writes:
            path = self.folder / "metrics.jsonl"
            kept = [old for old in _lines(path) if old["epoch"] < self.epoch]
            with written(path) as file:
                file.write("".join(json.dumps(own) + "\n" for own in (*kept, line)).encode())
            weights = _within(model, "network.")
            notes = {"epoch": str(self.epoch), "accuracy": str(accuracy)}
            save(self.folder / "last.safetensors", weights, notes)
            if better:
                save(self.folder / "best.safetensors", weights, notes)
        self.best = accuracy if better else self.best
        self.epoch, self.step, self.seconds, self.sums = self.epoch + 1, 0, 0.0, torch.zeros_like(self.sums)
        self._save(model, momentum)

    def save(self, trainee: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the state."""
        self._save(*_whole(trainee, optimizer))

    def _save(self, model: Mapping[str, Tensor], momentum: Mapping[str, Tensor]) -> None:
        if not self.writes:
            return
        tensors = {f"trainee.{name}": value for name, value in model.items()}
        tensors |= {f"momentum.{name}": value for name, value in momentum.items()}
        tensors |= {"rng": torch.get_rng_state(), "sums": self.sums}
        notes = {key: repr(getattr(self, key)) for key in ("epoch", "step", "lr", "seconds", "best")}
        save(self.folder / "state.safetensors", tensors, notes)

    def resume(self, trainee: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
        """Go back to the last state, if there is one."""
        path = self.folder / "state.safetensors"
        if not path.exists():
            return False
        tensors, notes = load(path)
        _restore(trainee, optimizer, _within(tensors, "trainee."), _within(tensors, "momentum."))
        torch.set_rng_state(tensors["rng"])
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


def load_weights(network: nn.Module, path: Path) -> None:
    """Put the weights of a file into a network that was built alike."""
    weights, _ = load(path)
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
    benchmark: Benchmark | None = None,
    network: nn.Module | None = None,
    objective: Objective | None = None,
) -> tuple[Network, Objective]:
    """The network of a run, with its `last` or `best` weights, in evaluation mode, and its objective.

    The paper's rule is the last: the threshold is that of the end of training. A benchmark, network or objective that
    `train` was given in place of the config's has to be given here too.
    """
    folder = Path(folder).expanduser()
    config = read_config(folder)
    if network is None:
        net = build_network(config, benchmark or load_benchmark(config.benchmark, config.root))
    else:
        net = adapt(network)
    objective = objective or build_objective(config)
    objective.prepare(net, max(1, config.epochs))
    load_weights(net, folder / f"{which}.safetensors")
    state, _ = load(folder / "state.safetensors")
    objective.load_state_dict(_within(state, "trainee.objective."))
    return net.eval(), objective.eval()
