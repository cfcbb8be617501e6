"""spcp: out-of-distribution detection by shaping parameter contribution patterns.

What is below is imported when it is first used, so that the command line can answer without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__: str  # the installed one, see __getattr__

if TYPE_CHECKING:
    from . import data as data
    from .config import Config as Config
    from .config import config_for as config_for
    from .contributions import Explanation as Explanation
    from .contributions import Pattern as Pattern
    from .contributions import Sparsity as Sparsity
    from .contributions import SPCPLinear as SPCPLinear
    from .contributions import Truncation as Truncation
    from .contributions import apply_spcp as apply_spcp
    from .contributions import clip_contributions as clip_contributions
    from .contributions import contribution_pattern as contribution_pattern
    from .contributions import contribution_quantile as contribution_quantile
    from .contributions import explain as explain
    from .contributions import find_classifier as find_classifier
    from .contributions import fit_threshold as fit_threshold
    from .contributions import remove_spcp as remove_spcp
    from .contributions import sparsity as sparsity
    from .contributions.sharded import gather_classes as gather_classes
    from .contributions.sharded import shard_classes as shard_classes
    from .detector import Detection as Detection
    from .detector import Detector as Detector
    from .engines.runs import Engine as Engine
    from .evaluation import evaluate as evaluate
    from .model import ScoredModel as ScoredModel
    from .monitoring import Monitor as Monitor
    from .runs import Run as Run
    from .runs import adopt as adopt
    from .training import train as train
    from .tuning import tune as tune

_METHOD = (
    *("Explanation", "Pattern", "Sparsity", "SPCPLinear", "apply_spcp", "clip_contributions", "contribution_pattern"),
    *("contribution_quantile", "explain", "find_classifier", "fit_threshold", "remove_spcp", "sparsity", "Truncation"),
)
_HOME = dict.fromkeys(_METHOD, "contributions") | {
    "gather_classes": "contributions.sharded",
    "shard_classes": "contributions.sharded",
    "Detection": "detector",
    "Detector": "detector",
    "Engine": "engines.runs",
    "Monitor": "monitoring",
    "ScoredModel": "model",
    "evaluate": "evaluation",
    "Config": "config",
    "config_for": "config",
    "Run": "runs",
    "adopt": "runs",
    "train": "training",
    "tune": "tuning",
}
_MODULES = (
    *(
        "bank",
        "calibration",
        "choice",
        "config",
        "conformal",
        "contributions",
        "data",
        "detection",
        "detector",
        "engines",
        "evaluation",
        "exported",
    ),
    *(
        "experiments",
        "metrics",
        "methods",
        "model",
        "moments",
        "monitoring",
        "networks",
        "processes",
        "scores",
        "report",
        "runs",
        "shipping",
        "training",
        "tuning",
    ),
)

__all__ = ["__version__", "data", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata  # takes a while, and few ask

        try:
            return metadata.version("spcp")
        except metadata.PackageNotFoundError:  # run from the sources, without an installation
            return "0+unknown"
    if name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value  # asked for once
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
