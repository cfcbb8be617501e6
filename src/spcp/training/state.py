"""What a training run depends on from step to step, and how its folder keeps it: a run resumes to the bit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import files
from ..config import Config
from ..data import Inputs
from ..environment import environment
from ..errors import LARGEST, InputError, TrainingError, check_numbers
from ..files import written
from ..runs import Run, read_settings, within, write_settings


class TrainingState:
    """Where training is, and the files that it writes.

    Args:
        folder: of the run.
        config: its settings.
        writes: whether this process writes files.
        given: what the caller gave in place of what the config names, in words.
    """

    def __init__(self, folder: Path, config: Config, writes: bool, given: Mapping[str, str]) -> None:
        self.folder, self.config, self.writes = folder, config, writes
        self.settings = {**config.as_json(), **given}
        self.epoch, self.step, self.lr, self.seconds, self.best = 0, 0, 0.0, 0.0, -1.0
        self.sums = torch.zeros(3, dtype=torch.float64)  # of the epoch: loss, correct, seen
        self.scaler: Any = None  # of float16 training

    def check(self) -> None:
        """Check that the folder is free, or holds a run with these settings."""
        if not (self.folder / "config.json").exists():
            return
        Run.open(self.folder)  # which refuses an unknown setting
        theirs = read_settings(self.folder)
        for key in (self.settings | theirs).keys() - {"save_every", "root"}:
            if _but_for_folder(key, self.settings) != _but_for_folder(key, theirs):
                raise InputError(
                    f"{self.folder}: its run has {key} = {theirs.get(key)!r}, not {self.settings.get(key)!r}; choose "
                    "another folder"
                )

    @property
    def resumable(self) -> bool:
        """Whether the folder holds a state to go on from."""
        return (self.folder / "state.safetensors").exists()

    def claim(self, inputs: Inputs) -> None:
        """Write the settings into the folder; data that was moved must still be the same."""
        if self.writes:
            if (self.folder / "inputs.json").exists() and not Run.open(self.folder).inputs.alike(inputs):
                raise InputError(
                    f"{self.folder}: its run is on data with other classes, another shape, or another mean; name the "
                    "data that it began with, or choose another folder"
                )
            write_settings(self.folder, self.settings, inputs)

    def record_environment(self) -> None:
        """Write what the epochs from here on are computed with, if that has changed since the last time."""
        if not self.writes:
            return
        kept = Run.open(self.folder).environment
        if not kept or {**kept[-1], "epoch": 0} != {"epoch": 0, **environment()}:
            with written(self.folder / "environment.json") as file:
                file.write((json.dumps([*kept, {"epoch": self.epoch, **environment()}], indent=2) + "\n").encode())

    def add(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """Add a batch to the epoch's sums, on its device."""
        correct = (logits.argmax(1) == y).sum()
        dtype = torch.float32 if loss.device.type == "mps" else torch.float64  # MPS has no float64
        self.sums = self.sums.to(loss.device, dtype)
        self.sums += torch.stack([part.to(dtype) for part in (loss * len(y), correct, loss.new_tensor(len(y)))])

    def fail(self, reason: str) -> TrainingError:
        """Return the error that ends the run."""
        return TrainingError(
            f"{self.folder}: {reason} in epoch {self.epoch + 1}, at or before step {self.step}; the last state is from "
            "before; start anew with a smaller learning rate (lr) or a longer warm-up (warmup)"
        )

    def finish_epoch(self, trainee: Any, optimizer: torch.optim.Optimizer, record: Mapping[str, Any]) -> None:
        """Write the epoch's record, the weights and the state, in this order; then the next epoch begins."""
        model, momentum = self._finite(*_whole(trainee, optimizer))
        accuracy = record["val_accuracy"]
        better = accuracy is not None and accuracy > self.best
        if self.writes:
            kept = [old for old in Run.open(self.folder).history if old["epoch"] < self.epoch]
            with written(self.folder / "metrics.jsonl") as file:
                file.write("".join(json.dumps(each) + "\n" for each in (*kept, record)).encode())
            transient = {f"method.{name}" for name in trainee.method.transient}
            weights = {name.removeprefix("network."): value for name, value in model.items() if name not in transient}
            notes = {"epoch": str(self.epoch), "accuracy": str(accuracy)}
            if better:  # before the last: by that one a run is done
                files.write_tensors(self.folder / "best.safetensors", weights, notes)
            files.write_tensors(self.folder / "last.safetensors", weights, notes)
        self.best = accuracy if better else self.best
        self.epoch, self.step, self.seconds, self.sums = self.epoch + 1, 0, 0.0, torch.zeros_like(self.sums)
        self._save(model, momentum)

    def save(self, trainee: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the state."""
        self._save(*self._finite(*_whole(trainee, optimizer)))

    def _finite(self, *parts: dict[str, Tensor]) -> tuple[dict[str, Tensor], ...]:
        """Return the tensors, the first of which are weights, if they may be written."""
        if not all(bool(value.isfinite().all()) for value in parts[0].values() if value.is_floating_point()):
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
        files.write_tensors(self.folder / "state.safetensors", tensors, notes)

    def resume(self, trainee: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
        """Go back to the last state, if there is one."""
        path = self.folder / "state.safetensors"
        if not self.resumable:
            return False
        tensors, notes = files.read_tensors(path, ours=True, cure="delete it to train from the start")
        try:
            _restore(trainee, optimizer, within(tensors, "trainee."), within(tensors, "momentum."))
        except (RuntimeError, KeyError) as error:
            raise InputError(f"{path}: belongs to another network; build the one that the run began with") from error
        try:
            self._take(tensors, notes, device)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise InputError(f"{path}: is no state of a run ({error}); delete it to train from the start") from error
        return True

    def _take(self, tensors: Mapping[str, Tensor], notes: Mapping[str, str], device: torch.device) -> None:
        """Take what the state holds besides the weights."""
        torch.set_rng_state(tensors["rng"])
        if torch.cuda.is_available() and "cuda_rng" in tensors:
            torch.cuda.set_rng_state(tensors["cuda_rng"])
        if self.scaler is not None and "scaler" in notes:
            self.scaler.load_state_dict(json.loads(notes["scaler"]))
        self.sums = tensors["sums"].to(device) * self.writes  # one process holds what all have summed
        self.epoch, self.step = int(notes["epoch"]), int(notes["step"])
        self.lr, self.seconds, self.best = (float(notes[key]) for key in ("lr", "seconds", "best"))
        whole = {"epoch": (int, 0, self.config.epochs), "step": (int, 0, math.inf)}
        check_numbers(vars(self), {**whole, **dict.fromkeys(("lr", "seconds", "best"), (float, -1, LARGEST))})
        if self.sums.shape != (3,) or not self.sums.isfinite().all():
            raise ValueError("its sums are no numbers")


def _but_for_folder(key: str, settings: Mapping[str, Any]) -> Any:
    """Return a setting; of the file that describes a user's data the name only, since folders may be moved."""
    value: Any = settings.get(key)
    return Path(value).name if key == "benchmark" and str(value).endswith(".toml") else value


def _whole(trainee: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the model's tensors and the momenta, by name, put together where each process holds a part (FSDP)."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.tensor import DTensor

    model: Any = get_model_state_dict(trainee, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    momentum = {}
    for name, p in trainee.named_parameters():
        buffer = optimizer.state.get(p, {}).get("momentum_buffer")
        if buffer is not None:
            momentum[name] = buffer.full_tensor() if isinstance(buffer, DTensor) else buffer
    return model, momentum


def _restore(
    trainee: nn.Module,
    optimizer: torch.optim.Optimizer,
    model: Mapping[str, Tensor],
    momentum: Mapping[str, Tensor],
) -> None:
    """Invert `_whole`, in every process."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.tensor import DTensor, distribute_tensor

    set_model_state_dict(trainee, dict(model), options=StateDictOptions(full_state_dict=True))
    for name, p in trainee.named_parameters():
        if name in momentum:
            buffer = momentum[name].to(p.device)
            if isinstance(p, DTensor):
                buffer = distribute_tensor(buffer, p.device_mesh, p.placements)
            optimizer.state[p]["momentum_buffer"] = torch.empty_like(p).copy_(buffer)  # in the parameter's layout
