"""The settings of a run, and the paper's, benchmark by benchmark."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import networks
from ..data import Benchmark, ImageTransform, Inputs
from ..errors import InputError
from ..methods import METHODS, Method
from ..networks import Network


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    benchmark: str = "digits"
    root: str | None = None
    method: str = "plain"
    images: int | None = None  # to train on, the first ones of each class; None: all
    augment: str = "full"  # as the benchmark has it; "flip": mirrored, not shifted; "none"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method: rho_norm, tau, ...
    network: str = "cnn"  # or one's own: "package.module:function", "model.pt2"
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
    precision: str = "32-true"  # everywhere, GPUs too: one command, one result; or "bf16-mixed", "16-mixed"
    save_every: float = 60.0  # seconds between two saves within an epoch


# The paper's settings, and the embedded data's. SGD with Nesterov momentum and a cosine per iteration everywhere;
# `rho_norm` and `subset` are for the methods that bound contributions.
LARGE = {"rho_norm": 0.4, "subset": 16}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {"network": "resnet18", "epochs": 100, "batch_size": 128, "lr": 0.1, "rho_norm": 3.0},
    "cifar100": {"network": "resnet18", "epochs": 100, "batch_size": 128, "lr": 0.1, "rho_norm": 0.5},
    "imagenet200": {"network": "resnet18_224", "epochs": 90, "batch_size": 256, "lr": 0.1, **LARGE},
    "imagenet": {"network": "resnet18_224", "epochs": 90, "batch_size": 256, "lr": 0.1, **LARGE},
    "digits": {"network": "cnn", "epochs": 40, "batch_size": 100, "lr": 0.05, "rho_norm": 1.0},
}
OTHERS: Mapping[str, Any] = {**DEFAULTS["digits"], "network": "resnet18"}  # for a user's own data

# Where a method departs from them: on all benchmarks (None), then on one; with SPCP as without, if not said otherwise.
DEPARTURES: Mapping[tuple[str, str | None], Mapping[str, Any]] = {
    ("cider", None): {"batch_size": 512, "lr": 0.5, "warmup": 10, "weight_decay": 1e-4},
    ("cider", "cifar100"): {"options": {"momentum": 0.5}},
    ("cider", "digits"): {"batch_size": 200, "lr": 0.1, "warmup": 2},
    ("snn", "cifar100"): {"options": {"share": 0.05}},
    ("snn", "imagenet200"): {"options": {"share": 0.35}},
    ("snn", "imagenet"): {"options": {"share": 0.35}},
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
    benchmark = benchmark if benchmark.endswith(".toml") else benchmark.lower()
    settings = dict(DEFAULTS.get(benchmark, OTHERS))
    bound: dict[str, Any] = {key: settings.pop(key) for key in ("rho_norm", "subset") if key in settings}
    options = {key: bound[key] if value is None else value for key, value in _method(method)[1].items()}
    if "rho_norm" in options:
        options = bound | options
    alone = method.removesuffix("+spcp")
    for key in ((alone, None), (alone, benchmark), (method, benchmark)):
        departure = dict(DEPARTURES.get(key, {}))
        options |= departure.pop("options", {})
        settings |= departure
    options |= changes.pop("options", {})
    if "warmup" in settings:  # the same share of a shorter or longer run
        settings["warmup"] = round(settings["warmup"] * changes.get("epochs", settings["epochs"]) / settings["epochs"])
    return Config(**(settings | {"benchmark": benchmark, "method": method, "options": options} | changes))


def _method(name: str) -> tuple[type[Method], Mapping[str, Any]]:
    if name not in METHODS:
        raise InputError(f"no method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


def check(config: Config) -> None:
    """Say which setting cannot be."""
    numbers: dict[str, tuple[Any, float, float]] = {
        "epochs": (int, 1, math.inf),
        "batch_size": (int, 1, math.inf),
        "lr": ((int, float), 0, math.inf),
        "min_lr": ((int, float), 0, math.inf),
        "warmup": (int, 0, config.epochs - 1 if isinstance(config.epochs, int) else math.inf),
        "momentum": ((int, float), 0, 1),
        "weight_decay": ((int, float), 0, math.inf),
        "seed": (int, 0, 2**63 - 1),
        "save_every": ((int, float), 0, math.inf),
    }
    if config.images is not None:
        numbers["images"] = (int, 1, math.inf)
    if config.width is not None:
        numbers["width"] = (int, 1, math.inf)
    for name, (kind, low, high) in numbers.items():
        value: Any = getattr(config, name)
        if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
            what = "a whole number" if kind is int else "a number"
            limit = f"at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise InputError(f"{name} = {value!r} must be {what}, {limit}")
    if config.augment not in ("full", "flip", "none"):
        raise InputError(f'augment = {config.augment!r} must be "full", "flip" or "none"')
    if not isinstance(config.options, Mapping):
        raise InputError(f"options = {config.options!r} must be a dictionary of the method's options, such as rho_norm")


def build_method(config: Config) -> Method:
    """The training method of a run."""
    method, own = _method(config.method)
    options = {**own, **config.options}
    missing = next((key for key, value in options.items() if value is None and own.get(key, 0) is None), None)
    if missing:
        raise InputError(f"{config.method}: needs {missing} among its options; config_for gives the paper's")
    try:
        return method(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{config.method}: {error}") from error


def augmented(benchmark: Benchmark, augment: str) -> Benchmark:
    """The same benchmark, whose training images are changed less, or not at all."""
    transform = benchmark.transform
    if augment == "full" or not isinstance(transform, ImageTransform):
        return benchmark
    kind: Literal["crop", "none"] = "crop" if augment == "flip" and transform.flip else "none"
    return dataclasses.replace(benchmark, transform=dataclasses.replace(transform, augment=kind, padding=0))


def is_own(network: str) -> bool:
    """Whether a network is named as a model of one's own."""
    return ":" in network or network.endswith(".pt2")


def build_network(config: Config, inputs: Inputs) -> Network:
    """The network of a run, for the classes and channels of its data (`Benchmark.inputs`)."""
    classes = len(inputs.class_names)
    if is_own(config.network):
        if config.width is not None:
            raise InputError(f"{config.network}: is of your own, and has no width to set; leave it out")
        return networks.own_network(config.network, classes, inputs.shape)
    if config.network not in networks.NETWORKS:
        known = ", ".join(networks.NETWORKS)
        raise InputError(f"no network {config.network!r}; there are {known}, or package.module:function of your own")
    build: Any = networks.NETWORKS[config.network]
    options: dict[str, Any] = {} if config.width is None else {"width": config.width}
    if "inputs" in inspect.signature(build).parameters:
        options["inputs"] = math.prod(inputs.shape)
    elif len(inputs.shape) != 3:
        raise InputError(
            f"the samples are {inputs.shape}, no images, for which {config.network} is; choose the network mlp"
        )
    else:
        options["channels"] = inputs.shape[0]
    network: Network = build(classes, **options)
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
