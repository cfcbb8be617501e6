"""`spcp train`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..errors import InputError
from ..progress import printable
from .app import command
from .options import (
    Alpha,
    EngineOptions,
    ScoreName,
    check_alpha,
    key_values,
    method_option,
    numbers,
    option,
    runs_option,
    training_option,
)
from .output import note
from .training import TrainingOptions, calibrate_if_possible, note_detector, warn_of_too_few
from .user_data import DataOptions

if TYPE_CHECKING:
    from lightning_fabric.loggers.logger import Logger

    from ..config import Config
    from ..data import Benchmark
    from ..engines.runs import Engine

FEW = 1000  # images


@command("train", panel="Train")
def train_command(
    data: DataOptions,
    options: TrainingOptions,
    many: EngineOptions,
    rho_norm: Annotated[str | None, method_option("How much SPCP truncates: a number (`spcp tune`), or auto.")] = None,
    seed: Annotated[int | None, training_option("Seed of weights, order and augmentation; default: 0.")] = None,
    seeds: Annotated[str | None, runs_option("Seeds of several runs, such as 0,1,2, in place of --seed.")] = None,
    out: Annotated[
        Path | None,
        option(
            "Folder of the run; default: runs/DATA-METHOD-SEED; for several: runs/DATA-METHOD-seeds.", "--out", "-o"
        ),
    ] = None,
    alpha: Alpha = 0.05,
    score: ScoreName = None,
    log: Annotated[list[str] | None, training_option("Log to tensorboard or mlflow, too; may be repeated.")] = None,
) -> None:
    """Train a network, or continue its training, and calibrate it on its validation data.

    The same command continues a run that was interrupted (Ctrl-C); if folders were moved, with their new paths.
    With --seeds, several networks are trained, some at a time.

    [dim]spcp train                                            # SPCP on the embedded digits
    spcp train --seeds 0,1,2 --jobs 2
    spcp train -b cifar10 -m logitnorm --rho-norm 0.5
    spcp train --id photos/ --network timm:resnet18.a1_in1k    # trained already, prepares the images as it expects
    spcp train --id photos/ --model mypackage.models:build[/dim]
    """
    check_alpha(alpha)
    truncated = "" if rho_norm is None or options.method in ("spcp", "fixed") else "-spcp"  # beside the run without
    engine, several = many.engine_of(), None if seeds is None else numbers(seeds, "--seeds", int, "0,1,2")
    _check_seeds(seed, several, many)
    folder = out or Path("runs") / f"{data.name}-{options.method}{truncated}-{'seeds' if several else seed or 0}"
    with data.described_in(folder, options.flip, options.network) as benchmark:
        from ..training import train

        warn_of_too_few(benchmark, alpha)
        config = options.config(data, folder, seed=seed or 0, rho_norm=rho_norm and _number_or_auto(rho_norm))
        note(f"network: {config.network}")
        _advise(config, benchmark)
        given = rho_norm is not None or "rho_norm" in key_values(options.option)
        if config.truncation.rho_norm and not given:
            note(f"rho_norm: {config.truncation.rho_norm} by default; spcp tune chooses it on validation data")
        if several:
            _train_several(
                [replace(config, seed=each) for each in several], folder, engine, benchmark, alpha, score, log
            )
            return
        run = train(config, folder, benchmark=benchmark, loggers=_loggers(log, folder, config))
    note(f"run: {folder}")
    if run.is_calibrated:  # by whoever finished the run, or by hand since
        note(f"calibrated already: {run.detector_path}; to replace it: spcp calibrate {folder}")
    else:
        calibrate_if_possible(run, alpha, score, benchmark=benchmark)


def _check_seeds(seed: int | None, seeds: list[int] | None, many: EngineOptions) -> None:
    """Raise an error for options that do not go together."""
    if seeds is None:
        given = {"--jobs": many.jobs is not None, "--threads": many.threads != 1, "--engine": many.engine != "local"}
        wrong = next((option for option, was_given in given.items() if was_given), None)
        if wrong:
            raise InputError(f"{wrong}: is for several runs; name their seeds (--seeds 0,1,2)")
    elif seed is not None:
        raise InputError("--seed and --seeds: give one of them")
    elif not seeds:
        raise InputError("--seeds: names no seed; give some, such as 0,1,2")


def _train_several(
    configs: list[Config],
    folder: Path,
    engine: Engine,
    benchmark: Benchmark | None,
    alpha: float,
    score: str | None,
    log: list[str] | None,
) -> None:
    """Train and calibrate a run for each config, and tell about each."""
    from ..engines.job import Job
    from ..engines.runs import results, run_jobs
    from ..runs import Run

    folders = [folder / f"seed-{config.seed}" for config in configs]
    jobs = [
        Job(
            f"seed-{config.seed}",
            _train_and_calibrate,
            (config, run_folder, alpha, score, log),
            run_folder,
            config.epochs,
        )
        for config, run_folder in zip(configs, folders, strict=True)
    ]
    problems = results(run_jobs(jobs, engine, shared=benchmark))
    for config, run_folder, problem in zip(configs, folders, problems, strict=True):
        note(f"run: {run_folder}")
        if problem:
            print(printable(f"spcp: not calibrated: {problem}"), file=sys.stderr)
        else:
            run = Run.open(run_folder, network=config.network)
            note_detector(run, run.detector())


def _train_and_calibrate(
    benchmark: Benchmark | None, config: Config, folder: Path, alpha: float, score: str | None, log: list[str] | None
) -> str | None:
    """Train a run, in whatever process, and calibrate it unless it is; return why that is not possible."""
    from ..calibration import calibrate_run
    from ..training import train

    run = train(config, folder, benchmark=benchmark, loggers=_loggers(log, folder, config))
    try:
        if not run.is_calibrated:
            calibrate_run(run, score, alpha=alpha, benchmark=benchmark)
    except InputError as error:
        return str(error)
    return None


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
