"""From runs to numbers: runs that differ by the seed alone are one arm, and arms are compared on the same samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..calibration import needed, rank_for
from ..contributions import Pattern, pattern_of
from ..data import Benchmark, noise, prepare
from ..errors import InputError, need
from ..evaluation import Evaluation, Table, over_seeds
from ..methods import METHODS, Method
from ..metrics import Comparison, compare_means, mean_and_deviation
from ..progress import track
from ..scores import SCORES
from ..training import Config, benchmark_of, read_config, read_inputs, read_metrics

ALPHA = 0.05


@dataclass(frozen=True, eq=False)
class Run:
    """One network."""

    folder: Path
    config: Config
    evaluation: Evaluation
    table: Table
    log: Sequence[Mapping[str, Any]]  # a line an epoch

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.config.seed

    def calibration(self, detector: str) -> Tensor:
        """Sorted scores of the validation set; without those that a detector has learned from."""
        scores = self.table.scores.get((detector, "val"), torch.empty(0))
        learned = detector in SCORES and SCORES[detector][0].fitted_on == "val"
        return (torch.empty(0) if learned else scores).sort().values


@dataclass(frozen=True, eq=False)
class Arm:
    """Runs with the same settings but for the seed."""

    name: str
    runs: tuple[Run, ...]
    bounded: bool  # whether its networks bound contributions

    def mean(self, detector: str, group: str, name: str = "mean") -> dict[str, tuple[float, float]]:
        """Mean and deviation over seeds of each measure."""
        return over_seeds([run.table for run in self.runs], detector, group, name)

    @property
    def accuracy(self) -> tuple[float, float]:
        """On the test set, in percent, over seeds."""
        return mean_and_deviation([run.table.rows[0]["accuracy"] for run in self.runs])

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of its runs."""
        return tuple(run.seed for run in self.runs)


@dataclass(frozen=True)
class Difference:
    """An arm against the reference, in points of AUROC: over seeds, and over samples."""

    group: str
    name: str  # of the set, or "mean"
    reference: tuple[float, float]
    arm: tuple[float, float]
    by_seed: tuple[float, ...]
    interval: tuple[float, float] | None  # over seeds (t), None for a single seed
    samples: Comparison  # over test samples (DeLong), in shares

    @property
    def points(self) -> float:
        """The mean difference."""
        return sum(self.by_seed) / len(self.by_seed)

    @property
    def word(self) -> str:
        """ "better", "worse" or "no clear difference": both intervals have to leave out 0."""
        low, high = self.interval or (self.points, self.points)
        if self.samples.p_value < 0.05 and low > 0 and self.points > 0:
            return "better"
        if self.samples.p_value < 0.05 and high < 0 and self.points < 0:
            return "worse"
        return "no clear difference"


@dataclass(frozen=True, eq=False)
class Study:
    """All that a report tells."""

    title: str
    benchmark: Benchmark
    arms: tuple[Arm, ...]
    detectors: tuple[str, ...]
    main: str  # the detector that the verdict is about
    notes: tuple[str, ...] = ()
    choice: Sequence[Mapping[str, Any]] = field(default=())  # how rho_norm was chosen: rows of a tuning

    @property
    def reference(self) -> Arm | None:
        """The arm that the others are compared with: the first without a bound."""
        return next((arm for arm in self.arms if not arm.bounded), None)

    @property
    def subject(self) -> Arm:
        """The arm that the report is about: the first with a bound, or else the last."""
        return next((arm for arm in self.arms if arm.bounded), self.arms[-1])

    @property
    def sets(self) -> tuple[tuple[str, str], ...]:
        """Groups and sets, each group's mean first."""
        rows = [(row["group"], row["set"]) for row in self.arms[0].runs[0].table.rows]
        known = list(dict.fromkeys(rows))
        return tuple(sorted(known, key=lambda own: (own[0] != "near", own[1] != "mean", known.index(own))))

    def differences(self, arm: Arm) -> list[Difference]:
        """Of an arm from the reference, by set and by group, for the main detector; none without common seeds."""
        reference = self.reference
        if reference is None or reference is arm:
            return []
        common = [seed for seed in reference.seeds if seed in arm.seeds]
        pairs = [
            tuple(next(run for run in own.runs if run.seed == seed) for own in (reference, arm)) for seed in common
        ]
        return [self._difference(pairs, group, name) for group, name in self.sets] if pairs else []

    def _difference(self, pairs: Sequence[tuple[Run, ...]], group: str, name: str) -> Difference:
        areas = [[run.table.get(self.main, group, name)["auroc"] for run in pair] for pair in pairs]
        by_seed = tuple(second - first for first, second in areas)
        names = (
            [own for own_group, own in self.sets if own_group == group and own != "mean"] if name == "mean" else [name]
        )
        scores = [
            [
                (run.table.scores[self.main, "test"], [run.table.scores[self.main, f"{group}/{own}"] for own in names])
                for run in pair
            ]
            for pair in pairs
        ]
        samples = compare_means([own[1] for own in scores], [own[0] for own in scores])
        reference, arm = (mean_and_deviation([own[i] for own in areas]) for i in (0, 1))
        return Difference(group, name, reference, arm, by_seed, t_interval(by_seed), samples)


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's interval for the mean; None for a single value.

    >>> low, high = t_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    n = len(values)
    if n < 2:
        return None
    mean = sum(values) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = float(need("scipy.stats", "scipy").t.ppf((1 + confidence) / 2, n - 1)) * deviation
    return mean - half, mean + half


def gather(
    folders: Sequence[str | Path],
    *,
    detectors: Sequence[str] | None = None,
    title: str | None = None,
    choice: Sequence[Mapping[str, Any]] = (),
    benchmark: Benchmark | None = None,
    banks: str | Path | None = None,
) -> Study:
    """Evaluate runs on the data they share.

    Args:
        folders: of the runs.
        detectors: names; by default all that make sense for every run.
        title: of the report.
        choice: rows of a `Tuning`, if that is how rho_norm was found.
        benchmark: instead of the runs' own.
        banks: where features are kept; by default in the user's cache.
    """
    if not folders:
        raise InputError("there are no runs to report on; name their folders")
    paths = [Path(folder).expanduser() for folder in folders]
    configs = [read_config(folder) for folder in paths]
    data = benchmark or _shared(paths, configs)
    notes = list(data.notes)
    if data.val is None or len(data.val) < needed(ALPHA):
        notes.append(
            f"There are fewer than {needed(ALPHA)} validation samples, so there is no threshold that keeps a promise "
            "of 5 %: what is flagged is not shown."
        )
    if not data.near and not data.far:
        data, note = _with_noise(data)
        notes.append(note)
    for role, samples in data.sets().items():
        if role.startswith(("near/", "far/", "test")) and len(samples) < 2:
            raise InputError(f"{role}: has a single sample, from which nothing can be told; leave it out, or add to it")
    groups: dict[str, list[Run]] = {}
    for folder, config in track(list(zip(paths, configs, strict=True)), "evaluating", len(paths)):
        own = Evaluation(folder, data, folder=banks)
        names = list(detectors or own.usual())
        table = own.table(names, also=() if data.val is None else ("val",))
        _finished(folder, config)
        started = None if METHODS.get(config.method, (Method, {}))[0].pretrained else config.start
        key = repr(dataclasses.replace(config, seed=0, save_every=0.0, root=None, benchmark="", start=started))
        groups.setdefault(key, []).append(Run(folder, config, own, table, read_metrics(folder)))
    names = _names([runs[0].config for runs in groups.values()])
    arms = tuple(
        Arm(name, tuple(sorted(runs, key=lambda run: run.seed)), runs[0].config.options.get("rho_norm", 0) != 0)
        for name, runs in zip(names, groups.values(), strict=True)
    )
    for arm in arms:
        if len(set(arm.seeds)) < len(arm.seeds):
            raise InputError(f"{arm.runs[1].folder}: is a run that is there already, with the same seed; name it once")
    common = [name for name in _detectors(arms[0]) if all(name in _detectors(arm) for arm in arms)]
    if not common:
        raise InputError("no detector makes sense for all of these runs; make a report for each kind")
    method = arms[-1].runs[0].evaluation.method
    wanted = method.detector if method is not None else "energy"
    main = wanted if wanted in common else "energy" if "energy" in common else common[0]
    return Study(title or f"{data.name}: known or odd?", data, arms, tuple(common), main, tuple(notes), tuple(choice))


def _shared(paths: Sequence[Path], configs: Sequence[Config]) -> Benchmark:
    """The data that all runs are on: described alike, and prepared alike."""
    first = _described(paths[0], configs[0])
    for path, config in zip(paths, configs, strict=True):
        if _described(path, config) != first or read_inputs(path) != read_inputs(paths[0]):
            raise InputError(
                f"{path}: is on other data than {paths[0]}, or sees it differently; make a report for each"
            )
    return benchmark_of(paths[0])


def _described(path: Path, config: Config) -> tuple[str | None, ...]:
    own = Path(path / "benchmark.toml" if (path / "benchmark.toml").exists() else config.benchmark)
    return (own.read_text(),) if own.suffix == ".toml" and own.exists() else (config.benchmark, config.root)


def _finished(folder: Path, config: Config) -> None:
    """A run that was stopped half-way says nothing of its settings."""
    done = len(read_metrics(folder))
    if done < config.epochs:
        raise InputError(f"{folder}: has {done} of its {config.epochs} epochs; the same spcp train goes on with it")


def _detectors(arm: Arm) -> list[str]:
    return list(dict.fromkeys(row["detector"] for row in arm.runs[0].table.rows))


def _with_noise(data: Benchmark) -> tuple[Benchmark, str]:
    """Noise for odd data, where there is none."""
    like = prepare(data.val or data.test, data.transform)
    far = {f"{kind} noise": noise(kind, like) for kind in ("gaussian", "uniform")}
    note = "There are no odd sets, so noise stands in; it says little about the odd inputs that you will meet (--ood)."
    return dataclasses.replace(data, far=far), note


def _names(configs: Sequence[Config]) -> list[str]:
    """What tells arms apart, in a few words."""
    names = []
    for config in configs:
        words = [{"spcp": "SPCP"}.get(config.method, config.method)]
        others = [own for own in configs if own.method == config.method]
        for key, value in config.options.items():
            if key == "rho_norm" or any(own.options.get(key) != value for own in others):
                words.append(f"{key} {value:g}" if isinstance(value, int | float) else f"{key} {value}")
        for key in ("network", "width", "epochs", "batch_size", "lr", "start"):
            if any(getattr(own, key) != getattr(config, key) for own in configs):
                words.append(f"{key} {getattr(config, key)}")
        names.append(words[0] + (f" ({', '.join(words[1:])})" if len(words) > 1 else ""))
    return names if len(set(names)) == len(names) else [f"{name} ({i + 1})" for i, name in enumerate(names)]


def threshold(run: Run, detector: str, alpha: float = ALPHA) -> float | None:
    """What is below is flagged: calibrated on validation data; None if there is too little of it."""
    scores = run.calibration(detector)
    return float(scores[rank_for(len(scores), alpha) - 1]) if len(scores) >= needed(alpha) else None


def has_head(run: Run) -> bool:
    """Whether logits come of a linear layer, so that there are contributions to look at."""
    method = run.evaluation.method
    return method is None or "weights" in method.readable


def pattern(run: Run) -> Pattern:
    """Mean contributions over the test set."""
    own = run.evaluation
    return pattern_of((h for h, *_ in own.features("test").parts()), own.head)


def operating_points(study: Study, alphas: Sequence[float] = (0.01, 0.05, 0.1)) -> list[dict[str, Any]]:
    """What thresholds that are calibrated at several alpha flag, set by set."""
    rows = []
    for arm in study.arms:
        for run in arm.runs:
            for detector in study.detectors:
                for alpha in alphas:
                    limit = threshold(run, detector, alpha)
                    if limit is None:
                        continue
                    for (name, role), scores in run.table.scores.items():
                        if name == detector and role != "val":
                            flagged = (~(scores >= limit)).double().mean().item() * 100
                            row = {"arm": arm.name, "seed": run.seed, "detector": detector, "alpha": alpha}
                            rows.append(row | {"threshold": limit, "set": role, "flagged_percent": flagged})
    return rows


def all_rows(study: Study) -> Table:
    """Every measure of every run."""
    rows = [
        {"arm": arm.name, "seed": run.seed, **row} for arm in study.arms for run in arm.runs for row in run.table.rows
    ]
    return Table(tuple(row for row in rows if row["detector"] in study.detectors), {})
