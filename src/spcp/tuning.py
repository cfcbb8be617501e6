"""How much to truncate: rho_norm by the paper's rule, one training for each value of a grid."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import GRID, Config, build_method
from .conformal import samples_needed, split
from .contributions import Truncation, clip_contributions, mean_support, positive_share
from .data import Benchmark
from .engines.job import Job
from .engines.runs import Engine, results, run_jobs
from .errors import InputError
from .evaluation import ALPHA, Evaluation
from .methods import TRUNCATING
from .metrics import mean_and_deviation, metrics
from .runs import Run
from .training import train

_log = logging.getLogger("spcp")


@dataclass(frozen=True)
class Outlook:
    """What a plain network tells of what SPCP would do to one like it, on validation data.

    In most cases of docs/results.md (`prediction`) the sign of the gain told whether SPCP with rho_norm 3 or "auto"
    raised or lowered the AUROC on test sets. A small rho_norm, chosen on validation data, did little harm either way.
    """

    positive: float  # share of its contributions that are positive
    ratio: float  # mean length of OOD features over that of ID features
    gain: float  # of the AUROC of energy if the network is truncated as it is, at the mean support
    num_classes: int

    def __str__(self) -> str:
        most = self.positive * self.num_classes
        advice = (
            "SPCP is likely to help"
            if self.gain > 0
            else "much truncation (rho_norm auto, or 1 and more) is likely to hurt, and "
            f"rho_norm {most:.1f} leaves nothing that speaks for a class; a small rho_norm may still help"
        )
        return (
            f"of the plain network's contributions {100 * self.positive:.0f} % are positive, its OOD features are "
            f"{self.ratio:.2f} times as long as its ID features, and truncating it as it is changes the validation "
            f"AUROC by {100 * self.gain:+.1f} points: {advice}"
        )


@torch.no_grad()
def outlook_of(evaluation: Evaluation, ood: str | None = None) -> Outlook:
    """Return what a network that was trained without truncation tells of SPCP, on its validation data."""
    head = evaluation.model.head
    id_features, ood_features = (evaluation.bank(role).features for role in ("val", ood or evaluation.ood_validation))
    threshold = mean_support(id_features, head.weight, head.bias).mean()
    areas = []
    for at in (torch.tensor(math.inf), threshold):
        energies = [clip_contributions(h, head.weight, head.bias, at).logsumexp(1) for h in (id_features, ood_features)]
        areas.append(metrics(*energies, resamples=1).auroc)
    ratio = ood_features.norm(dim=1).mean() / id_features.norm(dim=1).mean()
    positive = positive_share(id_features, head.weight)
    return Outlook(positive, float(ratio), areas[1] - areas[0], head.out_features)


@dataclass(frozen=True)
class Tuning:
    """What each value came to: rows with rho_norm, seed, auroc (validation), accuracy, folder."""

    rows: tuple[Mapping[str, Any], ...]
    best: float  # rho_norm with the largest mean AUROC; the first on ties
    ood: str  # the role of the OOD validation set
    score: str
    outlook: Outlook | None = None  # by the plain network, where the grid has one

    def over_seeds(self, rho_norm: float, measure: str = "auroc") -> tuple[float, float | None]:
        """Return mean and deviation of a measure for one value; no deviation for a single seed."""
        values = [row[measure] for row in self.rows if row["rho_norm"] == rho_norm]
        mean, deviation = mean_and_deviation(values)
        return mean, deviation if len(values) > 1 else None


def tune(
    config: Config,
    folder: str | Path,
    *,
    grid: Sequence[float] = (0.0, *GRID),
    seeds: Sequence[int] = (0,),
    benchmark: Benchmark | None = None,
    ood: str | None = None,
    engine: Engine | None = None,
) -> Tuning:
    """Train a network for each rho_norm, and choose the one that tells ID validation from OOD validation best.

    The rule is the paper's: largest AUROC of the method's score (energy for SPCP), never on a test set. The ID samples
    are one part of the validation data, see `spcp.conformal.split`: the best of several on them is better there than it
    is, so only the other part can calibrate the run, and `calibrate_run` does that. Where there is no OOD validation
    set, Gaussian noise like these samples stands in. A value of 0 is the method without
    truncation, for comparison: it is shown, and wins if it is best. Runs that are done are not repeated.

    Args:
        config: of the runs, with a method that may truncate, such as "spcp".
        folder: for the runs, `rho_norm-0.3/seed-0` and so on.
        grid: the values; those above the number of classes are left out.
        seeds: of the runs; the mean over them counts.
        benchmark: instead of the one the config names.
        ood: the role of the OOD validation set, such as "ood_val/tin".
        engine: where the runs are trained, and how many at a time; by default one after the other in this process. The
            numbers do not depend on it, but for the threads of a run, by default one.
    """
    if config.method == "plain":
        raise InputError("plain: has no rho_norm to tune; choose spcp, or another method")
    benchmark = benchmark or Run(Path(folder).expanduser(), config).benchmark()
    if benchmark.val is None:
        raise InputError(f"{benchmark.name}: has no validation set to tune on; give it one (val)")
    values = [value for value in grid if 0 <= value <= len(benchmark.class_names)]
    if not values or not seeds:
        raise InputError(f"there is no value of rho_norm from 0 to {len(benchmark.class_names)}, or no seed; name some")
    for value in values:  # before anything is trained
        build_method(with_rho_norm(config, value, 0))
    score = build_method(with_rho_norm(config, 0.0, 0)).score
    chosen_on = validation_part(benchmark)
    engine = engine or Engine()
    jobs = []
    for value in values:
        for seed in seeds:
            settings, target = with_rho_norm(config, value, seed), run_folder(folder, value, seed)
            tells = value == 0 and seed == seeds[0]
            name = str(target.relative_to(Path(folder).expanduser()))
            jobs.append(Job(name, _row, (settings, target, value, score, ood, chosen_on, tells), target, config.epochs))
    rows, roles, told = zip(*results(run_jobs(jobs, engine, shared=benchmark)), strict=True)
    ood = roles[0]
    areas = {value: [row["auroc"] for row in rows if row["rho_norm"] == value] for value in values}
    tuning = Tuning(tuple(rows), choose(areas), ood, score, next(filter(None, told), None))
    area = tuning.over_seeds(tuning.best)[0]
    if area < 0.5:
        _log.warning(
            "the best AUROC of %s on %s is %.1f %%: below 50, it takes OOD for ID; no value of rho_norm helps here",
            *(score, ood, 100 * area),
        )
    return tuning


def _row(
    benchmark: Benchmark,
    config: Config,
    folder: Path,
    rho_norm: float,
    score: str,
    ood: str | None,
    chosen_on: Tensor,
    tells: bool,
) -> tuple[dict[str, Any], str, Outlook | None]:
    """Train a run, and return its row, the role of the OOD validation set and, if it `tells`, a plain run's outlook."""
    run = train(config, folder, benchmark=benchmark)
    run.note_choice(benchmark, chosen_on)
    evaluation = Evaluation(run, benchmark).with_val(chosen_on)
    ood = ood or evaluation.ood_validation
    row = {"rho_norm": rho_norm, "seed": config.seed, "auroc": evaluation.validation_auroc(score, ood)}
    told = outlook_of(evaluation, ood) if tells and config.method == "plain" else None
    if told is not None and told.gain <= 0:  # before the others are trained
        _log.warning("%s", told)
    return row | {"accuracy": evaluation.bank("val").accuracy(), "folder": str(run.folder)}, ood, told


def validation_part(benchmark: Benchmark) -> Tensor:
    """Return the validation samples that settings are chosen on: a part, or all where too few would be left."""
    count = len(benchmark.val or ())
    return split(count, choosing=True)[0] if count >= samples_needed(ALPHA) + 2 else torch.arange(count)


def choose(areas: Mapping[float, Sequence[float]]) -> float:
    """Return the value with the largest mean AUROC; the first on ties.

    >>> choose({0.3: [0.90, 0.92], 1.0: [0.91, 0.91], 3.0: [0.8, 0.9]})
    0.3
    """
    return max(areas, key=lambda value: mean_and_deviation(areas[value])[0])


def run_folder(folder: str | Path, rho_norm: float, seed: int) -> Path:
    """Return where the run of a value and a seed is."""
    return Path(folder).expanduser() / f"rho_norm-{rho_norm:g}" / f"seed-{seed}"


def with_rho_norm(config: Config, rho_norm: float, seed: int) -> Config:
    """Return the config with another rho_norm and seed; 0 is the same method without truncation."""
    truncation = dataclasses.replace(config.truncation, rho_norm=rho_norm) if rho_norm else Truncation()
    method = "plain" if rho_norm == 0 and config.method in TRUNCATING else config.method
    return dataclasses.replace(config, method=method, truncation=truncation, seed=seed)
