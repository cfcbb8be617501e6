"""The settings of a run, and the paper's, benchmark by benchmark."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import networks
from ..data import AudioTransform, Benchmark
from ..errors import InputError
from ..networks import Network
from ..objectives import METHODS, Objective


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
    batch_size: int = 100  # of all processes together
    lr: float = 0.05
    min_lr: float = 1e-6
    warmup: int = 0  # epochs over which the learning rate rises
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 0
    precision: str = "auto"  # or as Fabric's: "32-true", "bf16-mixed", ...
    save_every: float = 60.0  # seconds between two saves within an epoch


# The paper's settings, and the embedded data's. SGD with Nesterov momentum and a cosine per iteration everywhere;
# `rho_norm` is for the methods that bound contributions.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {"network": "resnet18", "epochs": 100, "batch_size": 128, "lr": 0.1, "rho_norm": 3.0},
    "cifar100": {"network": "resnet18", "epochs": 100, "batch_size": 128, "lr": 0.1, "rho_norm": 0.5},
    "imagenet200": {"network": "resnet18_224", "epochs": 90, "batch_size": 256, "lr": 0.1, "rho_norm": 0.4},
    "imagenet": {"network": "resnet18_224", "epochs": 90, "batch_size": 256, "lr": 0.1, "rho_norm": 0.4},
    "digits": {"network": "cnn", "epochs": 40, "batch_size": 100, "lr": 0.05, "rho_norm": 1.0},
}
OTHERS: Mapping[str, Any] = {**DEFAULTS["digits"], "network": "resnet18"}  # for a user's own data

# Where a method departs from them: on all benchmarks (None), then on one; with SPCP as without, if not said otherwise.
DEPARTURES: Mapping[tuple[str, str | None], Mapping[str, Any]] = {
    ("cider", None): {"batch_size": 512, "lr": 0.5, "warmup": 10, "weight_decay": 1e-4},
    ("cider", "cifar100"): {"options": {"momentum": 0.5}},
    ("cider", "digits"): {"batch_size": 200, "lr": 0.1, "warmup": 2},
    ("logitnorm+spcp", "imagenet200"): {"options": {"rho_norm": 2.0}},
}


def config_for(benchmark: str, method: str = "plain", **changes: Any) -> Config:
    """The paper's settings for a benchmark and a method, but for the changes.

    >>> config_for("cifar10", "spcp", epochs=10).options["rho_norm"]
    3.0
    """
    known = {own.name for own in dataclasses.fields(Config)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise InputError(f"a run has no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    settings = dict(DEFAULTS.get(benchmark, OTHERS))
    rho_norm = settings.pop("rho_norm")
    options = {key: rho_norm if value is None else value for key, value in _method(method)[1].items()}
    alone = method.removesuffix("+spcp")
    for key in ((alone, None), (alone, benchmark), (method, benchmark)):
        departure = dict(DEPARTURES.get(key, {}))
        options |= departure.pop("options", {})
        settings |= departure
    options |= changes.pop("options", {})
    return Config(**(settings | {"benchmark": benchmark, "method": method, "options": options} | changes))


def _method(name: str) -> tuple[type[Objective], Mapping[str, Any]]:
    if name not in METHODS:
        raise InputError(f"no method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


def build_objective(config: Config) -> Objective:
    """The training method of a run."""
    objective, _ = _method(config.method)
    try:
        return objective(**config.options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{config.method}: {error}") from error


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


def precision_of(config: Config) -> str:
    """Fabric's name for the precision; "auto" is bfloat16 where the device computes in it, else float32."""
    if config.precision != "auto":
        return config.precision
    if torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported()
    else:
        fast = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
    return "bf16-mixed" if fast else "32-true"
