"""A run is a folder.

`config.json` (complete: the same command continues or repeats it), `inputs.json` (what the network expects, and what
its classes are called), `metrics.jsonl` (a line an epoch), `last.safetensors` and `best.safetensors` (by ID
validation), `environment.json` (versions, device, threads and instruction sets, from which epoch on),
`state.safetensors` (everything that the next step depends on), `chosen_on.json`, if it was chosen among others on
validation data, and `detector.safetensors`, once it is calibrated.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .config import Config, build_method, build_network
from .data import Benchmark, Inputs, load_benchmark
from .data.folders import Bad
from .detector import Detector
from .environment import KINDS
from .errors import LARGEST, InputError, Rule, check_numbers
from .files import locked, read_json, read_tensors, write_tensors, written
from .methods import Method
from .model import ScoredModel
from .networks import Network, adapt, architecture_of, is_pretrained, put_weights

_log = logging.getLogger("spcp")

GIVEN = {"custom_network", "custom_method"}  # what a config file holds besides the settings


@dataclass(frozen=True)
class Run:
    """A trained, or adopted, network with all that belongs to it.

    Open one by `Run.open(folder)`; `train` and `adopt` return one too.

    Attributes:
        folder: where its files are.
        config: its settings.
        network: in place of the one that the config names: a model built alike, or the name of the code that builds it.
        method: in place of the one that the config names.
    """

    folder: Path
    config: Config
    network: nn.Module | str | None = None
    method: Method | None = None

    @classmethod
    def open(cls, folder: str | Path, *, network: nn.Module | str | None = None, method: Method | None = None) -> Run:
        """Open the run in a folder.

        Args:
            folder: of the run.
            network: in place of the one that the config names, as `train` was given it. If the config names code
                ("package.module:function"), the same name has to be given here, or to `load`: a file alone does not run
                code.
            method: in place of the one that the config names, as `train` was given it.
        """
        folder = Path(folder).expanduser()
        settings = {key: value for key, value in read_settings(folder).items() if key not in GIVEN}
        with _about(folder / "config.json"):
            return cls(folder, Config.from_json(settings), network, method)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record an epoch: loss, accuracy, val_accuracy, lr, seconds; with truncation, threshold and truncated."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        records: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                if number == len(lines):  # the copy of a disk that was full, or cut off
                    _log.warning("%s: its last line is cut off, and left out", path)
                    break
                raise InputError(f"{path}: line {number} is not valid JSON ({error}); remove it") from error
            with _about(path, f"; remove line {number}"):
                _check_epoch(record, records)
            records.append(record)
        return records

    @property
    def environment(self) -> list[dict[str, Any]]:
        """What the run was computed with: a record for each change, with the epoch from which on it holds."""
        path = self.folder / "environment.json"
        if not path.exists():
            return []
        records = read_json(path, "delete it")
        with _about(path, "; delete it"):
            for record in records if isinstance(records, list) else [records]:
                if not isinstance(record, dict) or not all(isinstance(record.get(key), KINDS[key]) for key in KINDS):
                    raise InputError(f"must be a list of records with {', '.join(KINDS)}")
                check_numbers(record, {"epoch": (int, 0, math.inf)})
        return list(records)

    @property
    def inputs(self) -> Inputs:
        """What the network expects, and what its classes are called."""
        path = self.folder / "inputs.json"
        with _about(path):
            return Inputs.from_json(read_json(path, "name the folder of a run"))

    @property
    def detector_path(self) -> Path:
        """Where the calibrated detector is, once there is one."""
        return self.folder / "detector.safetensors"

    @property
    def is_calibrated(self) -> bool:
        """Whether there is a detector of the last weights."""
        try:
            detector, last = (read_tensors(path)[0] for path in (self.detector_path, self.folder / "last.safetensors"))
        except InputError:  # there is none, or a damaged one
            return False
        weights = {name: value for name, value in last.items() if not name.startswith("method.")}
        theirs = within(detector, "model.network.")
        return all(name in theirs and torch.equal(theirs[name], value) for name, value in weights.items())

    def note_choice(self, benchmark: Benchmark, rows: Tensor) -> None:
        """Keep which validation samples the run's settings were chosen on: those cannot calibrate it any more."""
        record = {"benchmark": benchmark.name, "samples": len(benchmark.val or ()), "rows": rows.tolist()}
        with written(self.folder / "chosen_on.json") as file:
            file.write((json.dumps(record) + "\n").encode())

    def chosen_on(self, benchmark: Benchmark) -> Tensor | None:
        """Return the validation samples that the run's settings were chosen on; None if they were not, or on others."""
        path = self.folder / "chosen_on.json"
        if not path.exists():
            return None
        try:
            record = json.loads(path.read_text())
            name, samples, rows = record["benchmark"], int(record["samples"]), torch.tensor(record["rows"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); run spcp tune again") from error
        if name != benchmark.name:
            return None
        if samples != len(benchmark.val or ()):
            raise InputError(
                f"{self.folder}: its settings were chosen on a part of {samples} validation samples, but {name} has "
                f"{len(benchmark.val or ())} now; calibrate with the data of then, or run spcp tune again"
            )
        return rows.long()

    def benchmark(self, *, bad: Bad | None = None) -> Benchmark:
        """Load the data: as the folder describes it (`benchmark.toml`), or by the name in the settings.

        `bad="skip"` leaves out files of a user's data that cannot be read, see `make_benchmark`.
        """
        source = self.description or self.config.benchmark
        return load_benchmark(source, self.config.root, bad=bad).fewer(self.config.images)

    @property
    def description(self) -> Path | None:
        """The file that describes a user's data: in the folder, or in that of the tuning that the run belongs to."""
        named = Path(self.config.benchmark)
        above = self.folder.absolute().parents[:2] if named.name == "benchmark.toml" else ()
        candidates = (folder / "benchmark.toml" for folder in (self.folder, *above))
        return next((file for file in candidates if file.exists()), named if named.suffix == ".toml" else None)

    def load(
        self,
        which: str = "last",
        *,
        network: nn.Module | str | None = None,
        method: Method | None = None,
        truncate: bool = True,
    ) -> ScoredModel:
        """Load the network, with its `last` or `best` weights, in evaluation mode; the data is not needed.

        The paper's rule is the last: the threshold is that of the end of training. `network` and `method` are as in
        `open`; a network that is given stays as it is, and a copy gets the weights. `truncate` is as in `ScoredModel`.
        """
        net = self._built(network)
        with _about(self.folder / "config.json"):
            method = self.method if method is None else method
            method = build_method(self.config) if method is None else copy.deepcopy(method)
            method.prepare(net, max(1, self.config.epochs))
        path = self.folder / f"{which}.safetensors"
        if which == "best" and not path.exists() and (self.folder / "last.safetensors").exists():
            raise InputError(f"{self.folder}: has no best weights, because it had no validation data; take the last")
        tensors = load_weights(net, path)
        try:
            missing, unknown = method.load_state_dict(within(tensors, "method."), strict=False)
        except RuntimeError:  # of another shape
            missing, unknown = [], ["all"]
        if unknown or set(missing) - set(method.transient):
            raise InputError(f"{path}: its weights belong to another training method; give the one it was trained with")
        return ScoredModel(net.eval(), method.eval(), classifier="classifier", truncate=truncate)

    def detector(self, *, network: nn.Module | str | None = None) -> Detector:
        """Load the calibrated detector; neither the data nor other weights are needed. `network` is as in `open`."""
        if not self.detector_path.exists():
            raise InputError(f"{self.folder}: holds no calibrated detector; make one: spcp calibrate {self.folder}")
        return Detector.load(self.detector_path, self._built(network))

    def _built(self, network: nn.Module | str | None) -> Network:
        """Build the network, as it was before training."""
        network = self.network if network is None else network
        if isinstance(network, nn.Module):
            return adapt(copy.deepcopy(network))
        if network not in (None, self.config.network):
            raise InputError(f"{self.folder}: its network is {self.config.network}, not {network}; name that one")
        inputs = self.inputs
        with _about(self.folder / "config.json"):
            return build_network(self.config, inputs, code=network)


def adopt(
    name: str,
    folder: str | Path,
    benchmark: Benchmark,
    *,
    source: str | None = None,
    weights: str | Path | None = None,
    root: str | Path | None = None,
) -> Run:
    """Make a run of a model that is trained already, so that all that works on runs works on it.

    Args:
        name: of the network: "package.module:function", "timm:...", "hf:..." (also a folder of `save_pretrained`),
            "torchvision:...", or one of this library's.
        folder: for the run; a new one.
        benchmark: the data it was trained for.
        source: what `load_benchmark` finds it by; by default its name.
        weights: a safetensors file of its state dict.
        root: where the benchmark's data is.
    """
    folder = Path(folder).expanduser()
    if (folder / "config.json").exists():
        raise InputError(f"{folder}: holds a run; choose another folder")
    start, where = (None if path is None else str(path) for path in (weights, root))
    architecture = architecture_of(name) if is_pretrained(name) else None
    config = Config(
        benchmark=source or benchmark.name,
        network=name,
        architecture=architecture,
        epochs=0,
        start=start,
        root=where,
    )
    inputs = benchmark.inputs()
    network = build_network(config, inputs, code=name, weights="none" if weights else "all")
    if network.num_classes != len(inputs.class_names):
        raise InputError(
            f"{name}: has {network.num_classes} outputs, but {benchmark.name} has {len(inputs.class_names)} classes; "
            "name the data it was trained for"
        )
    if weights is not None:
        load_weights(network, Path(weights).expanduser())
    with locked(folder):
        write_settings(folder, config.as_json(), inputs)
        write_tensors(folder / "last.safetensors", network.state_dict())
    return Run.open(folder, network=name)


def load_weights(network: Network, path: Path, *, new_classifier: bool = False) -> dict[str, Tensor]:
    """Put the weights of a file, or of a run's folder, into a network, see `put_weights`; return all its tensors."""
    path = path / "last.safetensors" if path.is_dir() else path
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise InputError(
            f"{path}: is a pickle, which may run code; convert it: safetensors.torch.save_file(torch.load(path, "
            "weights_only=True), 'weights.safetensors')"
        )
    tensors, _ = read_tensors(path)
    kept = put_weights(network, tensors, str(path), new_classifier=new_classifier)
    if not kept:
        _log.warning("%s: its classifier is for other classes; a new one is trained for %d", path, network.num_classes)
    return tensors


@contextlib.contextmanager
def _about(path: Path, cure: str = "") -> Iterator[None]:
    """Name the file in errors about what it holds."""
    try:
        yield
    except (ValueError, TypeError) as error:
        text = str(error)
        raise InputError(text if text.startswith(str(path.parent)) else f"{path}: {text}{cure}") from error


_EPOCH: Mapping[str, Rule] = {
    "epoch": (int, 0, math.inf),
    "loss": (float, -LARGEST, LARGEST),
    "accuracy": (float, 0, 1),
    "lr": (float, 0, LARGEST),
    "seconds": (float, 0, LARGEST),
}
_TRUNCATING: Mapping[str, Rule] = {"threshold": (float, -math.inf, math.inf), "truncated": (float, 0, 1)}


def _check_epoch(record: Any, before: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error for a record of the history that cannot follow those before."""
    if not isinstance(record, dict):
        raise InputError(f"{record!r:.60} is no record of an epoch")
    validated = {"val_accuracy": (float, 0, 1)} if record.get("val_accuracy") is not None else {}
    check_numbers(record, {**_EPOCH, **validated, **(_TRUNCATING if "threshold" in record else {})})
    if before and (record.keys() != before[0].keys() or record["epoch"] <= before[-1]["epoch"]):
        raise InputError(f"the record of epoch {record['epoch']} does not fit those before")


def within(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def read_settings(folder: Path) -> dict[str, Any]:
    """Return what the config file of a run holds: the settings, and what `train` was given in their place."""
    path = folder / "config.json"
    cure = "correct it, or choose another folder" if path.exists() else "name the folder of a run"
    settings = read_json(path, cure)
    if not isinstance(settings, dict):
        raise InputError(f"{path}: must hold the settings by name; {cure}")
    return settings


def write_settings(folder: Path, settings: Mapping[str, Any], inputs: Inputs) -> None:
    """Write the files that make a folder a run."""
    with written(folder / "config.json") as file:
        file.write((json.dumps(settings, indent=2, sort_keys=True) + "\n").encode())
    with written(folder / "inputs.json") as file:
        file.write((json.dumps(inputs.as_json()) + "\n").encode())
