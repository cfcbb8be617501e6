"""The showcase: plain training against SPCP on the embedded digits, with a report, in under two minutes on two cores.

The network has little data and sees it often, so it is sure of itself. rho_norm is chosen by the paper's rule on
validation data (digits against Cyrillic letters, which are in no test set); the test sets are looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from .calibration import calibrate_run
from .config import config_for
from .data import load_benchmark
from .report import report
from .training import train
from .tuning import run_folder, tune, with_rho_norm

GRID = (0.1, 0.3, 1.0, 3.0)  # every other value of the paper's grid, for time's sake
WIDTH, EPOCHS = 8, 20


def demo(
    folder: str | Path,
    *,
    seeds: int = 3,
    epochs: int | None = None,
    grid: Sequence[float] = GRID,
    say: Callable[[str], None] = print,
) -> Path:
    """Train, choose, evaluate, calibrate, and write the report; return its page."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks are too small to share, and threads that wait for each other slow them down
    try:
        return _demo(Path(folder).expanduser(), seeds, epochs or EPOCHS, grid, say)
    finally:
        torch.set_num_threads(threads)


def _demo(folder: Path, seeds: int, epochs: int, grid: Sequence[float], say: Callable[[str], None]) -> Path:
    runs = folder / "runs"
    benchmark = load_benchmark("digits")
    config = config_for("digits", "spcp", width=WIDTH, epochs=epochs)
    say(f"train: {len(grid)} networks to choose rho_norm, then {seeds} plain ones and {seeds} with SPCP")
    chosen = tune(config, runs, grid=grid, seeds=(0,), benchmark=benchmark)
    say(f"chosen on validation data: rho_norm {chosen.best:g}")
    folders = []
    for rho_norm in (0.0, chosen.best):
        for seed in range(seeds):
            own = with_rho_norm(config, rho_norm, seed)
            folders.append(train(own, run_folder(runs, rho_norm, seed), benchmark=benchmark).folder)
    say("detect: every detector on every set")
    page = report(
        folders,
        folder / "report",
        title="Known digit, or something odd?",
        choice=chosen.rows,
        benchmark=benchmark,
        banks=folder / "banks",
    )
    detector, _ = calibrate_run(folders[-1], benchmark=benchmark)
    say(f"decide: a detector that flags at most {detector.alpha:.0%} of digits is in {folders[-1]}")
    say(f"report: {page}")
    return page
