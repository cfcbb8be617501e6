"""How much to cut: rho_norm by the paper's rule, one training for each value of a grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .data import Benchmark, load_benchmark
from .errors import InputError
from .evaluation import Evaluation
from .methods import METHODS
from .metrics import mean_and_deviation
from .training import Config, train

GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0, 3.0, 5.0)  # the paper's


@dataclass(frozen=True)
class Tuning:
    """What each value came to: rows with rho_norm, seed, auroc (validation, in percent), accuracy, folder."""

    rows: tuple[Mapping[str, Any], ...]
    best: float  # rho_norm with the largest mean AUROC; the first on ties
    odd: str  # the role of the odd validation set
    detector: str

    def over_seeds(self, rho_norm: float, measure: str = "auroc") -> tuple[float, float]:
        """Mean and deviation of a measure for one value."""
        return mean_and_deviation([row[measure] for row in self.rows if row["rho_norm"] == rho_norm])


def tune(
    config: Config,
    folder: str | Path,
    *,
    grid: Sequence[float] = GRID,
    seeds: Sequence[int] = (0,),
    benchmark: Benchmark | None = None,
    odd: str | None = None,
) -> Tuning:
    """Train a network for each rho_norm, and choose the one that tells ID validation from OOD validation best.

    The rule is the paper's: largest AUROC of the method's own detector (energy for SPCP), never on a test set. Where
    there is no OOD validation set, Gaussian noise like the validation set stands in. A value of 0 is the method without
    a bound, for comparison: it is shown, and wins if it is best. Runs that are done are not repeated.

    Args:
        config: of the runs, with a method that bounds contributions, such as "spcp".
        folder: for the runs, `rho_norm-0.3/seed-0` and so on.
        grid: the values; those above the number of classes are left out.
        seeds: of the runs; the mean over them counts.
        benchmark: instead of the one the config names.
        odd: the role of the odd validation set, such as "ood_val/tin".
    """
    if "rho_norm" not in METHODS.get(config.method, (None, {}))[1]:
        bounded = ", ".join(name for name, (_, options) in METHODS.items() if "rho_norm" in options)
        raise InputError(f"{config.method}: has no rho_norm to tune; choose one of {bounded}")
    benchmark = benchmark or load_benchmark(config.benchmark, config.root)
    if benchmark.val is None:
        raise InputError(f"{benchmark.name}: has no validation set to tune on; give it one (val)")
    values = [value for value in grid if 0 <= value <= len(benchmark.class_names)]
    if not values or not seeds:
        raise InputError(f"there is no value of rho_norm from 0 to {len(benchmark.class_names)}, or no seed; name some")
    detector = METHODS[config.method][0].detector
    rows: list[dict[str, Any]] = []
    for value in values:
        for seed in seeds:
            run = train(with_rho(config, value, seed), run_folder(folder, value, seed), benchmark=benchmark)
            own = Evaluation(run, benchmark)
            odd = odd or own.odd_validation
            area = own.validation_auroc(detector, odd)
            accuracy = own.features("val").accuracy() * 100
            rows.append({"rho_norm": value, "seed": seed, "auroc": area, "accuracy": accuracy, "folder": str(run)})
    assert odd is not None
    areas = {value: [row["auroc"] for row in rows if row["rho_norm"] == value] for value in values}
    return Tuning(tuple(rows), choose(areas), odd, detector)


def choose(areas: Mapping[float, Sequence[float]]) -> float:
    """The value with the largest mean AUROC; the first on ties.

    >>> choose({0.3: [90.0, 92.0], 1.0: [91.0, 91.0], 3.0: [80.0, 90.0]})
    0.3
    """
    return max(areas, key=lambda value: mean_and_deviation(areas[value])[0])


def run_folder(folder: str | Path, rho_norm: float, seed: int) -> Path:
    """Where the run of a value and a seed is."""
    return Path(folder).expanduser() / f"rho_norm-{rho_norm:g}" / f"seed-{seed}"


def with_rho(config: Config, rho_norm: float, seed: int) -> Config:
    """The config with another rho_norm and seed; 0 is the same method without a bound."""
    options: dict[str, Any] = dict(config.options) | {"rho_norm": rho_norm}
    method = config.method
    if rho_norm == 0:
        method = "plain" if method in ("spcp", "fixed") else method.removesuffix("+spcp")
        bound = ("rho_norm", "subset", "beta", "initial_threshold")
        options = {key: value for key, value in options.items() if key not in bound}
    return dataclasses.replace(config, method=method, options=options, seed=seed)
