"""The settings of a run: the paper's, benchmark by benchmark, and defaults for a user's data."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import networks
from .contributions import RhoNorm, Truncation
from .data import AudioTransform, Benchmark, Inputs, load_benchmark
from .errors import InputError, Rule, check_numbers, did_you_mean
from .methods import METHODS, TRUNCATING, Method
from .methods.base import NO_TRUNCATION
from .networks import Network


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    benchmark: str = "digits"
    root: str | None = None
    method: str = "plain"
    truncation: Truncation = NO_TRUNCATION
    images: int | None = None  # to train on, the first ones of each class; None: all
    augment: str = "full"  # as the benchmark has it; "reflect": shifted by 3 pixels at most, with a reflected border;
    # "flip": mirrored, not shifted; "none"
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's: tau, penalty, ...
    network: str = "cnn"  # or "timm:...", "hf:...", "torchvision:..."; or code: "package.module:function"
    architecture: Mapping[str, Any] | None = None  # of a network of Hugging Face; None: as its name says
    width: int | None = None  # None: the network's default
    start: str | None = None  # weights to start from (safetensors), as UMAP needs them
    epochs: int = 40
    batch_size: int = 100  # of all processes together
    lr: float = 0.05
    min_lr: float = 1e-6
    warmup: int = 0  # epochs over which the learning rate rises
    schedule: str = "cosine"  # how it falls from there; or "linear"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 0
    precision: str = "32-true"  # everywhere, GPUs too: one command, one result; or "bf16-mixed", "16-mixed"
    save_every: float = 60.0  # seconds between two saves within an epoch

    def check(self, *, adopted: bool = False) -> None:
        """Raise an `InputError` for a setting that is out of range; a run that was `adopted` has no epochs."""
        numbers: dict[str, Rule] = {
            "epochs": (int, 0 if adopted else 1, math.inf),
            "batch_size": (int, 1, math.inf),
            "lr": (float, 0, math.inf),
            "min_lr": (float, 0, math.inf),
            "warmup": (int, 0, max(0, self.epochs - 1) if isinstance(self.epochs, int) else math.inf),
            "momentum": (float, 0, 1),
            "weight_decay": (float, 0, math.inf),
            "seed": (int, 0, 2**63 - 1),
            "save_every": (float, 0, math.inf),
        }
        for name in ("images", "width"):
            if getattr(self, name) is not None:
                numbers[name] = (int, 1, math.inf)
        check_numbers(vars(self), numbers)
        for name in ("benchmark", "method", "network", "precision", "root", "start"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name not in ("root", "start")):
                raise InputError(f"{name} = {value!r:.60} must be text")
        for name, kinds in (("augment", ("full", "reflect", "flip", "none")), ("schedule", ("cosine", "linear"))):
            if getattr(self, name) not in kinds:
                raise InputError(f"{name} = {getattr(self, name)!r} must be one of {', '.join(kinds)}")
        if not isinstance(self.architecture, Mapping | None):
            raise InputError(f"architecture = {self.architecture!r:.60} must be a dictionary, or nothing")
        if not isinstance(self.options, Mapping):
            raise InputError(f"options = {self.options!r} must be a dictionary of the method's options, such as tau")

    def as_json(self) -> dict[str, Any]:
        """Return what a JSON file can hold.

        >>> Config.from_json(Config(seed=3).as_json()).seed
        3
        """
        table: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=_plain))
        return table

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Config:
        """Rebuild the settings from what `as_json` returned."""
        _check_names(table, cls)
        try:
            config = cls(**{**table, "truncation": Truncation(**table.get("truncation", {}))})
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"truncation: {error}") from error
        config.check(adopted=True)
        return config


# The paper's settings, and the embedded data's. SGD with Nesterov momentum and a cosine per iteration everywhere;
# `rho_norm` and `subset` are for runs that truncate.
LARGE = {"rho_norm": 0.4, "subset": 16}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {"network": "resnet18", "epochs": 100, "batch_size": 128, "lr": 0.1, "rho_norm": 3.0},
    "cifar100": {"network": "resnet18", "epochs": 100, "batch_size": 128, "lr": 0.1, "rho_norm": 0.5},
    "imagenet200": {"network": "resnet18_224", "epochs": 90, "batch_size": 256, "lr": 0.1, **LARGE},
    "imagenet": {"network": "resnet18_224", "epochs": 90, "batch_size": 256, "lr": 0.1, **LARGE},
    "digits": {"network": "cnn", "epochs": 40, "batch_size": 100, "lr": 0.05, "rho_norm": 1.0},
}

# Where a method departs from them: on all benchmarks (None), then on one.
DEPARTURES: Mapping[tuple[str, str | None], Mapping[str, Any]] = {
    ("fixed", None): {"beta": 1.0},
    ("cider", None): {"batch_size": 512, "lr": 0.5, "warmup": 10, "weight_decay": 1e-4},
    ("cider", "cifar100"): {"options": {"momentum": 0.5}},
    ("cider", "digits"): {"batch_size": 200, "lr": 0.1, "warmup": 2},
    ("umap", None): {"batch_size": 256, "weight_decay": 1e-4},
    ("umap", "digits"): {"batch_size": 100},
    ("snn", "cifar100"): {"options": {"share": 0.05}},
    ("snn", "imagenet200"): {"options": {"share": 0.35}},
    ("snn", "imagenet"): {"options": {"share": 0.35}},
    ("logitnorm", "imagenet200"): {"rho_norm": 2.0},
}

# For a network that is trained already, where the benchmark's own settings are for one that is not.
FINE_TUNING = {"epochs": 10, "lr": 0.01}

GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0, 3.0, 5.0)  # the paper's values of rho_norm
LARGE_SIDE = 64  # pixels, above which a network for 224 x 224 pixels is faster and better


def config_for(
    benchmark: str | Benchmark, method: str = "plain", *, rho_norm: RhoNorm | None = None, **changes: Any
) -> Config:
    """Return the paper's settings for a benchmark and a method, with changes.

    Args:
        benchmark: a name, a TOML file, or a benchmark of the user's data, whose kind and classes the defaults fit.
        method: a name, see `spcp.methods.METHODS`.
        rho_norm: how much SPCP truncates, with any method. By default "spcp" and "fixed" truncate as much as the paper
            does on this benchmark, and the others do not.
        changes: other settings of `Config`, or hyperparameters of `Truncation`.

    >>> config_for("cifar10", "spcp", epochs=10).truncation.rho_norm
    3.0
    >>> config_for("cifar10", "logitnorm", rho_norm=0.5).truncation.rho_norm
    0.5
    """
    _check_names(changes, Config, Truncation)
    name, settings = _settings(benchmark, method)
    hyperparameters = _names(Truncation)
    truncation = {key: settings.pop(key) for key in hyperparameters & settings.keys()}
    truncation |= {key: changes.pop(key) for key in hyperparameters & changes.keys()}
    if rho_norm is not None:
        truncation["rho_norm"] = rho_norm
    if rho_norm == 0 or (rho_norm is None and method not in TRUNCATING):
        truncation = {}
    if "warmup" in settings:  # the same share of a shorter or longer run
        settings["warmup"] = round(settings["warmup"] * changes.get("epochs", settings["epochs"]) / settings["epochs"])
    settings["options"] = settings.get("options", {}) | changes.pop("options", {})
    if networks.is_pretrained(changes.get("network", "")):
        settings |= {"architecture": networks.architecture_of(changes["network"]), **FINE_TUNING}
    try:
        settings["truncation"] = Truncation(**truncation)
    except (TypeError, ValueError) as error:
        raise InputError(f"{method}: {error}") from error
    return Config(**(settings | {"benchmark": name, "method": method} | changes))


def rho_norm_for(benchmark: str | Benchmark, method: str = "spcp") -> float:
    """Return how much the paper truncates on a benchmark; a tenth of all contributions with fewer than ten classes.

    >>> rho_norm_for("imagenet200"), rho_norm_for("imagenet200", "logitnorm")
    (0.4, 2.0)
    """
    return float(_settings(benchmark, method)[1]["rho_norm"])


def _settings(benchmark: str | Benchmark, method: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a benchmark, and the settings and hyperparameters for it and a method."""
    _method(method)
    if isinstance(benchmark, Benchmark):
        name = benchmark.name
    else:
        name = benchmark if benchmark.endswith(".toml") else benchmark.lower()
    if name.endswith(".toml"):
        benchmark = load_benchmark(name)
    settings = dict(DEFAULTS.get(name, {}) or _user_defaults(benchmark))
    for key in ((method, None), (method, name)):
        settings |= DEPARTURES.get(key, {})
    return name, settings


def _user_defaults(benchmark: str | Benchmark) -> dict[str, Any]:
    """Return settings for a user's data."""
    settings = {**DEFAULTS["digits"], "network": "resnet18"}
    if isinstance(benchmark, Benchmark):
        shape, num_classes = benchmark.inputs().shape, len(benchmark.class_names)
        if isinstance(benchmark.transform, AudioTransform):
            settings["network"] = "audio_cnn"
        elif len(shape) == 1:
            settings["network"] = "mlp"
        elif max(shape[1:]) > LARGE_SIDE:
            settings["network"] = "resnet18_224"
        if benchmark.train is not None:  # few samples would make an epoch of one step
            settings["batch_size"] = min(settings["batch_size"], max(16, len(benchmark.train) // 20))
        if num_classes < 10:
            settings["rho_norm"] = num_classes / 10  # more might truncate at a threshold below 0
    return settings


def build_method(config: Config) -> Method:
    """Build the training method of a run."""
    kind, options = _method(config.method)
    if config.method in TRUNCATING and not config.truncation.rho_norm:
        raise InputError(f"{config.method}: needs a truncation with rho_norm above 0; config_for gives the paper's")
    if config.method == "plain" and config.truncation.rho_norm:
        raise InputError("plain: trains without truncation; choose the method spcp, or leave out rho_norm")
    try:
        return kind(**{**options, **config.options}, truncation=config.truncation)
    except (TypeError, ValueError) as error:
        raise InputError(f"{config.method}: {error}") from error


def build_network(
    config: Config, inputs: Inputs, *, code: str | None = None, weights: networks.Weights = "none"
) -> Network:
    """Build the network of a run, for the classes and channels of its data (`Benchmark.inputs`).

    A config may name code: "package.module:function". It comes from a file, maybe of somebody else, so code is run only
    if the caller names the same in `code`. `weights` are those that a pretrained network comes with, see
    `spcp.networks.build_pretrained`.
    """
    name, num_classes = config.network, len(inputs.class_names)
    if networks.is_pretrained(name):
        if config.width is not None:
            raise InputError(f"{name}: is trained already, and has no width to set; leave it out")
        built = networks.build_pretrained(name, num_classes, architecture=config.architecture, weights=weights)
        return networks.tried(built, name, inputs.shape)
    if networks.is_code(name):
        if name != code:
            raise InputError(
                f"{name}: is code, which a file asks to run; if you trust it, name it in the call (network={name!r}, "
                f"or --model {name})"
            )
        if config.width is not None:
            raise InputError(f"{name}: is your code, and has no width to set; leave it out")
        return networks.load_model(name, num_classes, inputs.shape)
    if name.endswith((".pt2", ".pt", ".pth")):
        raise InputError(
            f"{name}: may run code when it is read, so it is not; name the function that builds the model "
            "(package.module:function), and give its weights as safetensors"
        )
    if name not in networks.NETWORKS:
        names = ", ".join(networks.NETWORKS)
        raise InputError(
            f"no network {name!r}{did_you_mean(name, networks.NETWORKS)}; there are {names}; pretrained ones as "
            "timm:NAME, hf:NAME or torchvision:NAME; or your code as package.module:function"
        )
    build: Any = networks.NETWORKS[name]
    options: dict[str, Any] = {} if config.width is None else {"width": config.width}
    if "inputs" in inspect.signature(build).parameters:
        options["inputs"] = math.prod(inputs.shape)
    elif len(inputs.shape) != 3:
        raise InputError(f"the samples are {inputs.shape}, not images, which {name} is for; choose the network mlp")
    else:
        options["channels"] = inputs.shape[0]
    try:
        network: Network = build(num_classes, **options)
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{name}: cannot be built for {options} ({reason}); choose another width") from error
    return network


def _method(name: str) -> tuple[type[Method], Mapping[str, Any]]:
    if name not in METHODS:
        raise InputError(f"no method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


def _names(kind: Any) -> set[str]:
    return {setting.name for setting in dataclasses.fields(kind)}


def _check_names(settings: Mapping[str, Any], *kinds: Any) -> None:
    names = set().union(*map(_names, kinds))
    unknown = sorted(settings.keys() - names)
    if unknown:
        raise InputError(f"a run has no setting {unknown[0]!r}; there are {', '.join(sorted(names))}")


def _plain(value: Any) -> Any:
    """Turn paths and numpy's numbers into what JSON has."""
    return value.item() if hasattr(value, "item") else str(value)
