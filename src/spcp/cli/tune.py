"""`spcp tune`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

from .app import command
from .options import Alpha, EngineOptions, Json, check_alpha, numbers, open_runs, option
from .output import note, percent, show
from .training import TrainingOptions, calibrate_if_possible
from .user_data import DataOptions


@command("tune", panel="Train")
def tune_command(
    data: DataOptions,
    options: TrainingOptions,
    many: EngineOptions,
    grid: Annotated[str | None, option("Values of rho_norm; default: 0 (no truncation), and the paper's.")] = None,
    seeds: Annotated[str, option("Seeds to train with; the mean over them counts.")] = "0",
    out: Annotated[Path | None, option("Folder for the runs; default: runs/DATA-METHOD-tune.", "--out", "-o")] = None,
    alpha: Alpha = 0.05,
    as_json: Json = False,
) -> None:
    """Choose rho_norm by the paper's rule: ID validation against OOD validation data, or noise where there is none.

    Trains a network for each value of the grid, several at a time; does not repeat runs that are complete. The ID
    samples that choose are one part of the validation data; the other part then calibrates the network of the chosen
    value.

    [dim]spcp tune -b digits --seeds 0,1,2
    spcp tune --id photos/ --size 64 --grid 0,0.1,0.5,1[/dim]
    """
    check_alpha(alpha)
    engine = many.engine_of()
    folder = out or Path("runs") / f"{data.name}-{options.method}-tune"
    chosen_seeds = numbers(seeds, "--seeds", int, "0,1,2")
    given: Any = {} if grid is None else {"grid": numbers(grid, "--grid", float, "0.1,0.5,1")}
    with data.described_in(folder, options.flip, options.network) as benchmark:
        from ..tuning import run_folder, tune

        config = options.config(data, folder)
        with engine.started():
            tuning = tune(config, folder, seeds=chosen_seeds, benchmark=benchmark, engine=engine, **given)
    rows = []
    for value in dict.fromkeys(row["rho_norm"] for row in tuning.rows):
        (auroc, deviation), (accuracy, _) = tuning.over_seeds(value), tuning.over_seeds(value, "accuracy")
        row = {"rho_norm": value, "validation_auroc": auroc, "deviation": deviation, "validation_accuracy": accuracy}
        rows.append(row | {"chosen": "*" if value == tuning.best else ""})
    title = f"AUROC of {tuning.score}: validation against {tuning.ood}, {len(chosen_seeds)} seed(s)"
    show(rows, as_json, title, percent("validation_auroc", "deviation", "validation_accuracy"))
    if tuning.outlook is not None and tuning.outlook.gain > 0:  # else it was a warning
        note(str(tuning.outlook))
    if tuning.best == 0:
        note("training without truncation separates ID from OOD validation data best")
    if max(row["validation_auroc"] for row in rows) < 0.5:
        logging.getLogger("spcp").warning("%s: scores OOD above ID samples, whatever rho_norm is", tuning.score)
    note(f"chosen: rho_norm {tuning.best:g}")
    (best,) = open_runs([run_folder(folder, tuning.best, chosen_seeds[0])], options.model)
    with engine.limited():  # as the runs were evaluated
        calibrate_if_possible(best, alpha, benchmark=benchmark)
