"""The showcase: plain training against SPCP on the embedded digits, with a report, in under two minutes on two cores.

The network has little data and sees it often, so it is overconfident. rho_norm is chosen by the paper's rule on
validation data (digits against Cyrillic letters, which are in no test set); the test sets are used once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from .calibration import calibrate_run
from .config import config_for
from .data import load_benchmark
from .evaluation import ALPHA
from .report import gather, write
from .report.study import decisions
from .training import train
from .tuning import run_folder, tune, validation_part, with_rho_norm

GRID = (0.1, 0.3, 1.0, 3.0)  # every other value of the paper's grid, for time's sake
WIDTH, EPOCHS = 8, 20


def demo(
    folder: str | Path,
    *,
    seeds: int = 3,
    epochs: int | None = None,
    grid: Sequence[float] = GRID,
    log: Callable[[str], None] = print,
) -> Path:
    """Train, choose, evaluate, calibrate, and write the report; return its page."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks are too small to share, and threads that wait for each other slow them down
    try:
        return _demo(Path(folder).expanduser(), seeds, epochs or EPOCHS, grid, log)
    finally:
        torch.set_num_threads(threads)


def _demo(folder: Path, seeds: int, epochs: int, grid: Sequence[float], log: Callable[[str], None]) -> Path:
    runs = folder / "runs"
    benchmark = load_benchmark("digits")
    config = config_for("digits", "spcp", width=WIDTH, epochs=epochs)
    log(f"train: {len(grid)} networks to choose rho_norm, then {seeds} plain ones and {seeds} with SPCP")
    chosen = tune(config, runs, grid=grid, seeds=(0,), benchmark=benchmark)
    log(f"chosen on validation data: rho_norm {chosen.best:g}")
    trained = [
        train(with_rho_norm(config, rho_norm, seed), run_folder(runs, rho_norm, seed), benchmark=benchmark)
        for rho_norm in (0.0, chosen.best)
        for seed in range(seeds)
    ]
    for run in trained:  # rho_norm was chosen for all of them
        run.note_choice(benchmark, validation_part(benchmark))
    log("detect: every score on every set")
    title = "A digit, or out of distribution?"
    study = gather(trained, title=title, choice=chosen.rows, benchmark=benchmark, banks=folder / "banks")
    detector, _ = calibrate_run(trained[-1], benchmark=benchmark)
    page = write(study, folder / "report")
    log(f"calibrate: a detector that flags at most {detector.alpha:.0%} of digits is in {trained[-1].folder}")
    log(f"report: {page}")
    log(f"decide: what is flagged when {ALPHA:.0%} of digits may be, in percent, over {seeds} seed(s)")
    made = decisions(study)
    header = ["", "digits", *(f"{group}-OOD" for group in study.groups)]
    lines = [header] + [
        [one.title, str(one.false_alarm_rate)] + [str(one.detection_rates[group, "mean"]) for group in study.groups]
        for one in reversed(made)
    ]
    for name, *cells in lines:
        log("  " + name.ljust(max(len(line[0]) for line in lines)) + "".join(cell.rjust(15) for cell in cells))
    return page
