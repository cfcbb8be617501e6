"""`spcp train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..errors import InputError
from .app import command
from .options import Alpha, check_alpha, key_values, method_option, option, training_option
from .output import note
from .training import TrainingOptions, calibrate_if_possible, warn_of_too_few
from .user_data import DataOptions


@command("train", panel="Train")
def train_command(
    data: DataOptions,
    options: TrainingOptions,
    rho_norm: Annotated[str | None, method_option("How much SPCP truncates: a number (`spcp tune`), or auto.")] = None,
    seed: Annotated[int, training_option("Seed of weights, order and augmentation.")] = 0,
    out: Annotated[Path | None, option("Folder of the run; default: runs/DATA-METHOD-SEED.", "--out", "-o")] = None,
    alpha: Alpha = 0.05,
) -> None:
    """Train a network, or continue its training, and calibrate it on its validation data.

    The same command continues a run that was interrupted (Ctrl-C); if folders were moved, with their new paths.

    [dim]spcp train                                            # SPCP on the embedded digits
    spcp train -b cifar10 -m logitnorm --rho-norm 0.5
    spcp train --id photos/ --ood-val none --network resnet18 --size 64
    spcp train --id photos/ --model mypackage.models:build[/dim]
    """
    check_alpha(alpha)
    truncated = "" if rho_norm is None or options.method in ("spcp", "fixed") else "-spcp"  # beside the run without
    folder = out or Path("runs") / f"{data.name}-{options.method}{truncated}-{seed}"
    with data.described_in(folder, options.flip) as benchmark:
        from ..training import train

        warn_of_too_few(benchmark, alpha)
        config = options.config(data, folder, seed=seed, rho_norm=rho_norm and _number_or_auto(rho_norm))
        note(f"network: {config.network}")
        given = rho_norm is not None or "rho_norm" in key_values(options.option)
        if config.truncation.rho_norm and not given:
            note(f"rho_norm: {config.truncation.rho_norm} by default; spcp tune chooses it on validation data")
        run = train(config, folder, benchmark=benchmark)
    note(f"run: {folder}")
    calibrate_if_possible(run, alpha)


def _number_or_auto(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        raise InputError(f"--rho-norm {text}: must be a number, or auto") from error
