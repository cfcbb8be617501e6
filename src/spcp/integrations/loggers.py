"""Where a training is logged beside its own folder: TensorBoard and MLflow, as loggers of Lightning Fabric."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..errors import InputError, need
from ..files import written

if TYPE_CHECKING:
    from lightning_fabric.loggers.logger import Logger
else:
    Logger = need("lightning_fabric.loggers", "lightning-fabric", "train").Logger


def build_loggers(names: Sequence[str], folder: Path, config: Config) -> list[Logger]:
    """Return loggers by name for `train(..., loggers=...)`, told the settings of the run.

    "tensorboard" writes below `folder/tensorboard`; "mlflow" to the server or folder that MLFLOW_TRACKING_URI names,
    and goes on with the same MLflow run when the training is resumed.
    """
    loggers: list[Logger] = []
    for name in names:
        if name not in LOGGERS:
            raise InputError(f"no logger {name!r}; there are {', '.join(LOGGERS)}")
        loggers.append(LOGGERS[name](folder))
        loggers[-1].log_hyperparams(_flat(config.as_json()))
    return loggers


def _tensorboard(folder: Path) -> Logger:
    need("tensorboard", "tensorboard", "tensorboard")
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    return TensorBoardLogger(folder, name="tensorboard", version="")


class MLflowLogger(Logger):
    """One MLflow run for one run folder, whose `mlflow.json` names it."""

    def __init__(self, folder: Path) -> None:
        self._mlflow: Any = need("mlflow", "mlflow", "mlflow")
        path = folder / "mlflow.json"
        run_id = json.loads(path.read_text())["run_id"] if path.exists() else None
        run = self._mlflow.start_run(run_id=run_id, run_name=folder.name)
        self._run_id: str = run.info.run_id
        with written(path) as file:
            file.write(json.dumps({"run_id": self._run_id}).encode())

    @property
    def name(self) -> str:
        """The kind of the logger."""
        return "mlflow"

    @property
    def version(self) -> str:
        """The id of the MLflow run."""
        return self._run_id

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Log the settings; those of a resumed run are the same, and MLflow takes them again."""
        values = vars(params) if isinstance(params, Namespace) else params
        self._mlflow.log_params(values, run_id=self._run_id)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log what an epoch came out with."""
        self._mlflow.log_metrics(dict(metrics), step=step, run_id=self._run_id)

    def finalize(self, status: str) -> None:
        """End the MLflow run."""
        self._mlflow.end_run("FINISHED" if status == "success" else "FAILED")


LOGGERS = {"tensorboard": _tensorboard, "mlflow": MLflowLogger}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level, by dotted names.

    >>> _flat({"lr": 0.1, "truncation": {"rho_norm": 1.0}})
    {'lr': 0.1, 'truncation.rho_norm': 1.0}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
