"""How much an experiment may cost: the paper's settings to the letter, or what fits a machine without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import GRID

# The paper's runs have 39 100 steps; in shorter ones a factor counts for the same share of the run, as beta does.
BETAS = (0.0, 0.9, 0.99, 0.999, 0.9999, 1.0)
THRESHOLDS = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
PENALTIES = (0.1, 0.01, 0.001, 0.0001, 0.00001)
Backbones = Mapping[str, tuple[str, Mapping[str, Any]]]  # by the paper's network: what is trained for it, and how
BACKBONES: Backbones = {
    "ResNet-18": ("ResNet-18", {}),  # the main one
    "WideResNet-28-10": ("WideResNet-28-10", {"network": "wideresnet28"}),
    "DenseNet-101": ("DenseNet-BC-100", {"network": "densenet100"}),
}


@dataclass(frozen=True)
class Budget:
    """What runs cost, and how many there are."""

    description: str
    seeds: int
    stand_in: str | None = None  # the benchmark that all experiments run on; None: the paper's
    audio: str = "spoken-digits"
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by benchmark, where not the paper's
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by method, where those do not suit it
    tunes: bool = True  # choose rho_norm by the paper's rule; otherwise take the paper's, where it has one
    grid: tuple[float, ...] = GRID
    betas: tuple[float, ...] = BETAS
    thresholds: tuple[float, ...] = THRESHOLDS
    penalties: tuple[float, ...] = PENALTIES
    backbones: Backbones = field(default_factory=lambda: BACKBONES)
    lengths: tuple[int, ...] = ()  # epochs to compare
    variants: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # by benchmark: networks
    verdicts: bool = True  # whether what comes out means anything
    samples: int | None = None  # of each set to test on; None: all


_PAPER = {"beta": 0.999}  # at any length: what is not truncated has none
_FAST = {"network": "whitened_cnn", "epochs": 12, "batch_size": 256, "lr": 0.2, "warmup": 2, "schedule": "linear"}
_FAST |= {"augment": "reflect", "precision": "bf16-mixed"}
_SMALL = {"width": 8, "epochs": 20}
_MLP = {"network": "mlp"}
_TINY = {"width": 8, "epochs": 2, "images": 200}

BUDGETS: Mapping[str, Budget] = {
    "full": Budget(
        "the paper's settings, 3 seeds; for a GPU",
        3,
        audio="kinetics-sound",
        settings={
            "cifar10": _PAPER,
            "cifar100": _PAPER,
            "imagenet200": {**_PAPER, "epochs": 100},  # so the text; the released scripts have 90
            "kinetics-sound": {**_PAPER, "network": "resnet18", "epochs": 100, "batch_size": 128, "lr": 0.1},
        },
        tunes=False,
        lengths=(30, 100),
        variants={name: {"ResNet-18": {}} for name in ("cifar10", "cifar100", "imagenet200")},
    ),
    "cpu": Budget(
        "real data reduced to minutes a run on two cores, 3 seeds; ablations on CIFAR-10",
        3,
        settings={
            "cifar10": _FAST,
            "cifar100": _FAST,
            "imagenet200": {"width": 16, "images": 20_000, "epochs": 10},
            "spoken-digits": {"network": "audio_cnn", "width": 16, "epochs": 30},
        },
        methods={"cider": {"batch_size": 512, "lr": 0.5}, "umap": {"lr": 0.1}},  # their own
        grid=(0.1, 0.3, 0.5, 1.0, 2.0, 3.0),
        backbones={
            "ResNet-18": ("whitened CNN", {}),
            "WideResNet-28-10": (
                "WideResNet-28-1 on 5000 images",
                {"network": "wideresnet28", "width": 1, "images": 5_000},
            ),
            "DenseNet-101": (
                "DenseNet-BC-100 of growth 6 on 2500 images",
                {"network": "densenet100", "width": 6, "images": 2_500, "batch_size": 64},
            ),
        },
        lengths=(12, 30, 60),
        variants={
            "cifar10": {"whitened CNN": {}, "whitened CNN, not augmented": {"augment": "none"}},
            "cifar100": {"whitened CNN": {}},
            "spoken-digits": {"CNN": {}},
        },
    ),
    "small": Budget(
        "the embedded digits, seconds a run, 5 seeds",
        5,
        stand_in="digits",
        settings={"digits": _SMALL, "spoken-digits": {"network": "audio_cnn", "width": 8, "epochs": 20}},
        methods={"logitnorm": {"epochs": 200}},  # it learns slowly, some seeds above all
        backbones={
            "ResNet-18": ("CNN of width 8", {}),
            "WideResNet-28-10": (
                "WideResNet-28-1 on 300 images",
                {"network": "wideresnet28", "width": 1, "images": 300, "batch_size": 30, "epochs": 15},
            ),
            # DenseNet has a hundred layers at any width, which takes minutes
        },
        lengths=(20, 60),
        variants={
            "digits": {
                "CNN of width 8": {},
                "CNN of width 16": {"width": 16},
                **{f"perceptron of width {width}": {**_MLP, "width": width} for width in (32, 64, 256)},
                "perceptron of width 64, 5 epochs": {**_MLP, "width": 64, "epochs": 5},
            },
            "spoken-digits": {"CNN of width 8": {}, "perceptron of width 64": {**_MLP, "width": 64}},
        },
    ),
    "smoke": Budget(
        "seconds in all, on the embedded digits: whether it runs, not what comes out",
        2,
        stand_in="digits",
        audio="tones",
        settings={"digits": _TINY, "tones": {"network": "audio_cnn", "width": 8, "epochs": 2}},
        grid=(0.3, 1.0),
        betas=(0.9, 1.0),
        thresholds=(0.1, 1000.0),
        penalties=(0.001,),
        backbones={"ResNet-18": ("CNN", {}), "WideResNet-28-10": ("ResNet-10", {"network": "resnet10"})},
        lengths=(1, 2),
        variants={"digits": {"CNN": {}, "perceptron": {**_MLP, "width": 16}}},
        verdicts=False,  # in four steps nothing is learnt
        samples=100,
    ),
}
