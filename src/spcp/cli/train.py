"""`spcp train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..errors import InputError
from .app import command
from .options import Alpha, ScoreName, check_alpha, key_values, method_option, option, training_option
from .output import note
from .training import TrainingOptions, calibrate_if_possible, warn_of_too_few
from .user_data import DataOptions

if TYPE_CHECKING:
    from lightning_fabric.loggers.logger import Logger

    from ..config import Config
    from ..data import Benchmark

FEW = 1000  # images


@command("train", panel="Train")
def train_command(
    data: DataOptions,
    options: TrainingOptions,
    rho_norm: Annotated[str | None, method_option("How much SPCP truncates: a number (`spcp tune`), or auto.")] = None,
    seed: Annotated[int, training_option("Seed of weights, order and augmentation.")] = 0,
    out: Annotated[Path | None, option("Folder of the run; default: runs/DATA-METHOD-SEED.", "--out", "-o")] = None,
    alpha: Alpha = 0.05,
    score: ScoreName = None,
    log: Annotated[list[str] | None, training_option("Log to tensorboard or mlflow, too; may be repeated.")] = None,
) -> None:
    """Train a network, or continue its training, and calibrate it on its validation data.

    The same command continues a run that was interrupted (Ctrl-C); if folders were moved, with their new paths.

    [dim]spcp train                                            # SPCP on the embedded digits
    spcp train -b cifar10 -m logitnorm --rho-norm 0.5
    spcp train --id photos/ --network timm:resnet18.a1_in1k    # trained already, prepares the images as it expects
    spcp train --id photos/ --model mypackage.models:build[/dim]
    """
    check_alpha(alpha)
    truncated = "" if rho_norm is None or options.method in ("spcp", "fixed") else "-spcp"  # beside the run without
    folder = out or Path("runs") / f"{data.name}-{options.method}{truncated}-{seed}"
    with data.described_in(folder, options.flip, options.network) as benchmark:
        from ..training import train

        warn_of_too_few(benchmark, alpha)
        config = options.config(data, folder, seed=seed, rho_norm=rho_norm and _number_or_auto(rho_norm))
        note(f"network: {config.network}")
        _advise(config, benchmark)
        given = rho_norm is not None or "rho_norm" in key_values(options.option)
        if config.truncation.rho_norm and not given:
            note(f"rho_norm: {config.truncation.rho_norm} by default; spcp tune chooses it on validation data")
        run = train(config, folder, benchmark=benchmark, loggers=_loggers(log, folder, config))
    note(f"run: {folder}")
    if run.is_calibrated:  # by whoever finished the run, or by hand since
        note(f"calibrated already: {run.detector_path}; to replace it: spcp calibrate {folder}")
    else:
        calibrate_if_possible(run, alpha, score, benchmark=benchmark)


def _loggers(names: list[str] | None, folder: Path, config: Config) -> list[Logger]:
    if not names:
        return []
    from ..integrations.loggers import build_loggers

    return build_loggers(names, folder, config)


def _advise(config: Config, benchmark: Benchmark | None) -> None:
    """Say that few photos are better learned from by a network that has seen others."""
    from ..data import ImageTransform
    from ..networks import NETWORKS

    if benchmark is None or benchmark.train is None or not isinstance(benchmark.transform, ImageTransform):
        return
    few = len(benchmark.train) < FEW and benchmark.transform.channels == 3
    if few and config.network in NETWORKS and config.start is None:
        note(
            f"{len(benchmark.train)} images are few to train {config.network} from scratch; a pretrained network "
            "learns more from them: --network timm:resnet18.a1_in1k (pip install 'spcp[pretrained]')"
        )


def _number_or_auto(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        raise InputError(f"--rho-norm {text}: must be a number, or auto") from error
