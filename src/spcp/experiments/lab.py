"""The runs of experiments: trained and scored once, whoever asks for them, and kept."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..bank import FeatureBank
from ..config import DEFAULTS, Config, config_for, rho_norm_for
from ..contributions import RhoNorm, SPCPLinear, Truncation, fit_threshold
from ..data import Benchmark, DataSet, load_benchmark, take
from ..engines.job import Ended, Job
from ..engines.runs import Engine, results, run_jobs
from ..errors import InputError
from ..evaluation import NOISE, Evaluation
from ..files import checksum, read_json, read_tensors, sweep, written
from ..methods import METHODS, TRUNCATING
from ..progress import track
from ..runs import Run
from ..training import train
from ..tuning import choose
from . import audio
from .budgets import Budget

CHOSEN = "chosen"  # rho_norm as validation data, or the paper, have it
ON_NOISE = "chosen on noise"  # the same, with Gaussian noise for OOD validation data


@dataclass(frozen=True)
class Row:
    """One line of a table: how a network is trained, and how it scores."""

    name: str
    method: str = "plain"
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the run, as `config_for` takes them
    score: str | None = None  # None: the method's
    head: str = "trained"  # "plain": truncates in training only; "fitted" or "auto": at inference only
    paper: str = ""  # as the paper's tables have it, if the name says more
    backbone: str = ""  # the network and what it is trained on, where a table compares several
    paper_backbone: str = "ResNet-18"  # the paper's, in whose place it is
    benchmark: str = ""  # that it runs on; set by the experiment
    setting: str = ""  # the benchmark's name, where an experiment has several


Step = tuple[str, Row, int, tuple[Any, ...]]  # a method of `Lab` that leaves files, its row and seed, and the rest


class UntrainedError(Exception):
    """A run that is not there, while nothing may be trained."""


class NeededError(Exception):
    """What has to be trained or measured first, while the lab only looks: steps, by the run's folder."""

    def __init__(self, steps: Mapping[Path, Sequence[Step]]) -> None:
        super().__init__(steps)
        self.steps = steps


class Lab:
    """Trains and scores the rows of experiments, within a budget.

    Args:
        budget: what runs cost.
        folder: for the runs, by benchmark, method and seed, and for banks of features.
        seeds: how many, from 0 on; None: the budget's.
        root: the data folder, see `load_benchmark`.
        trained_only: train nothing; a run that is not there, or not done, raises `UntrainedError`.
        engine: where runs are trained, and how many at a time; None: in this process, when they are asked for.
        log: called with messages about the progress.
    """

    def __init__(
        self,
        budget: Budget,
        folder: str | Path,
        *,
        seeds: int | None = None,
        root: str | Path | None = None,
        trained_only: bool = False,
        engine: Engine | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        self.trained_only, self.engine = trained_only, engine
        self.budget, self.folder, self.root, self.log = budget, Path(folder).expanduser(), root, log
        self.seeds = tuple(range(budget.seeds if seeds is None else seeds))
        self._benchmarks: dict[str, Benchmark] = {}
        self._chosen: dict[tuple[str, str], float] = {}
        self.grid: dict[str, tuple[float, ...]] = {}  # the values that rho_norm was chosen among, by benchmark
        self._open: dict[Path, Evaluation] = {}  # the last one, with its features
        self._looking = False  # whether to raise `NeededError` instead of training and measuring
        self._seen: dict[str, dict[Path, list[Step]]] = {}  # what was missing for steps, while the lab looks

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what another process cannot use."""
        return vars(self) | {"_open": {}, "log": _silent}

    def prepare(self, steps: Sequence[Step]) -> None:
        """Do steps, and before them what they depend on, as many runs at a time as the engine does.

        It looks which runs can be trained or measured now, does those, and looks again, until nothing is missing. What
        fails does not stop the others, but raises at the end. Without an engine each is done when it is asked for.
        """
        if self._looking:
            key = repr(steps)
            if key not in self._seen:  # many rows ask for the same grid
                self._seen[key] = self._needed(steps)
            if self._seen[key]:
                raise NeededError(self._seen[key])
            return
        if self.engine is None:
            return
        tried: set[str] = set()
        ends: list[Ended] = []
        while wave := {
            folder: fresh
            for folder, needed in self._needed(steps).items()
            if (fresh := [step for step in needed if repr((folder, step)) not in tried])
        }:
            tried.update(repr((folder, step)) for folder, fresh in wave.items() for step in fresh)
            ends += run_jobs([self._job(*each) for each in wave.items()], self.engine, shared=self._worker())
        results(ends)

    def _needed(self, steps: Sequence[Step]) -> dict[Path, list[Step]]:
        """List what is missing for steps and can be done now, by the run's folder."""
        needed: dict[Path, list[Step]] = {}
        if not self._looking:
            self._seen = {}
        for step in steps:
            name, row, seed, rest = step
            looking, self._looking = self._looking, True
            try:
                getattr(self, name)(row, seed, *rest)
            except NeededError as error:
                for folder, missing in error.steps.items():
                    own = any(_same_run(step, other) for other in missing)
                    known = needed.setdefault(folder, [])
                    known += [each for each in ([step] if own else missing) if each not in known]
            finally:
                self._looking = looking
        return needed

    def _job(self, folder: Path, steps: Sequence[Step]) -> Job:
        _, row, seed, _ = steps[0]
        self.benchmark(row.benchmark)  # read here, and sent along
        return Job(str(folder.relative_to(self.folder / "runs")), _do, (steps,), folder, self.config(row, seed).epochs)

    def _worker(self) -> Lab:
        """Return a copy that does what it is asked for in its own process."""
        worker = copy.copy(self)
        worker.engine = None
        return worker

    def benchmark(self, name: str) -> Benchmark:
        """Return a benchmark by name; it is read once."""
        if name not in self._benchmarks:
            make = audio.BENCHMARKS.get(name)
            whole = load_benchmark(name, self.root) if make is None else make(self.root)
            self._benchmarks[name] = whole if self.budget.samples is None else _fewer(whole, self.budget.samples)
        return self._benchmarks[name]

    def config(self, row: Row, seed: int) -> Config:
        """Return the settings of a row's run: the paper's, changed by the budget and then by the row."""
        settings = {**self.budget.settings.get(row.benchmark, {}), **row.settings}
        asked = settings.get("rho_norm", CHOSEN if row.method in TRUNCATING else None)
        if asked in (CHOSEN, ON_NOISE):
            settings["rho_norm"] = self.rho_norm(row.benchmark, row.method, asked)
        if row.method == "fixed":
            settings.pop("beta", None)  # its own
        if row.method == "fixed" and "initial_threshold" not in settings:  # where SPCP's threshold ends
            spcp = self.run(dataclasses.replace(row, method="spcp"), seed)
            settings["initial_threshold"] = spcp.history[-1]["threshold"]
        if METHODS[row.method][0].pretrained:
            same = {key: value for key, value in row.settings.items() if key not in ("options", "rho_norm")}
            plain = self.run(dataclasses.replace(row, method="plain", settings=same), seed)
            settings["start"] = str(plain.folder.resolve())
        root = None if self.root is None else str(self.root)
        return config_for(row.benchmark, row.method, **settings, seed=seed, root=root)

    def run(self, row: Row, seed: int) -> Run:
        """Return a row's run, which is trained first if it is not done."""
        config = self.config(row, seed)
        folder = self._folder(row, config)
        if epochs_done(folder) < config.epochs:
            if self.trained_only:
                raise UntrainedError(folder)
            self._look(folder, ("run", row, seed, ()))
            if self.engine is not None:
                self.prepare([("run", row, seed, ())])
                return self.run(row, seed)
            return train(config, folder, benchmark=self.benchmark(row.benchmark))
        run = Run.open(folder)
        _check_settings(run, config)
        sweep(folder)  # a call that was killed may have been writing the last state
        return run

    def _look(self, folder: Path, step: Step) -> None:
        """Raise an error about what has to be done, if the lab only looks."""
        if self._looking:
            raise NeededError({folder: [step]})

    def _folder(self, row: Row, config: Config) -> Path:
        """Name the folder of a row's run by what tells it from others of the budget."""
        words = {**row.settings, **row.settings.get("options", {})}
        words.pop("options", None)
        if config.truncation.rho_norm:
            words["rho_norm"] = config.truncation.rho_norm
        name = ",".join([row.method, *(f"{key}={_short(value)}" for key, value in sorted(words.items()))])
        return self.folder / "runs" / row.benchmark / name / f"seed-{config.seed}"

    def tracked(self, rows: Sequence[Row], step: str = "run") -> Iterator[tuple[int, Row]]:
        """Yield every seed of every row, with a bar, once a step of all is prepared.

        Rows that share a run come in turn, to share its features.
        """
        by_run: dict[str, list[Row]] = {}
        for row in rows:
            by_run.setdefault(repr((row.benchmark, row.method, row.settings)), []).append(row)
        jobs = [
            (seed, row)
            for seed in self.seeds
            for sharing in by_run.values()
            for row in sharing
            if seed in self.seeds_of(row)
        ]
        self.prepare([(step, row, seed, ()) for seed, row in jobs])
        return track(jobs, "runs", len(jobs))

    def seeds_of(self, row: Row) -> tuple[int, ...]:
        """List the seeds of a row: all, or, where nothing may be trained, those whose runs are done."""
        return tuple(seed for seed in self.seeds if not self.trained_only or self._is_done(row, seed))

    def _is_done(self, row: Row, seed: int) -> bool:
        try:
            self.run(row, seed)
        except UntrainedError:
            return False
        return True

    def final_loss(self, row: Row | None) -> float | None:
        """Return the mean training loss of a row's last epochs; None where there are no runs of it."""
        folders = [] if row is None else [self._folder(row, self.config(row, seed)) for seed in self.seeds_of(row)]
        if not folders or not all(map(epochs_done, folders)):
            return None
        return float(sum(Run.open(folder).history[-1]["loss"] for folder in folders)) / len(folders)

    def evaluation(self, row: Row, seed: int) -> Evaluation:
        """Return the evaluation of a row's run, with the head that the row scores with."""
        run = self.run(row, seed)
        if run.folder not in self._open:
            self._open = {run.folder: Evaluation(run, self.benchmark(row.benchmark), folder=self.folder / "banks")}
        trained = self._open[run.folder]
        if row.head == "fitted":
            return TruncatedAtInference(trained, self.rho_norm(row.benchmark), "train")
        if row.head == "auto":
            return TruncatedAtInference(trained, "auto", "val")
        if row.head == "plain":
            return Evaluation(run, trained.benchmark, truncate=False, folder=trained.folder)
        return trained

    def scored(self, row: Row, seed: int) -> dict[str, Any]:
        """Score a row's run on every set: {"rows": [...]}, the records of a `Table`; kept beside the run."""
        name = row.score or METHODS[row.method][0].score
        rho_norm = f"-{self.rho_norm(row.benchmark):g}" if row.head == "fitted" else ""
        path = self.run(row, seed).folder / "scored" / f"{name}-{row.head}{rho_norm}.json"
        search = self.benchmark(row.benchmark).val is not None
        return self._kept(
            path,
            ("scored", row, seed, ()),
            lambda: {"rows": self.evaluation(row, seed).table([name], search=search).records()},
        )

    def _kept(self, path: Path, step: Step, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Read what was measured of a run; measure anew without a file, or for other weights or data."""
        sizes = {role: len(data) for role, data in self.benchmark(step[1].benchmark).sets().items() if role != "train"}
        measured_on = {"sizes": sizes, "weights": checksum(*read_tensors(path.parent.parent / "last.safetensors"))}
        with contextlib.suppress(InputError):  # there is none, or a damaged one
            kept = read_json(path, "delete it")
            if isinstance(kept, dict) and kept.items() >= measured_on.items():
                return kept
        self._look(path.parent.parent, step)
        measured = measure() | measured_on
        with written(path) as file:
            file.write((json.dumps(measured, indent=1) + "\n").encode())
        return measured

    def rho_norm(self, benchmark: str, method: str = "spcp", how: str = CHOSEN) -> float:
        """Choose rho_norm by the paper's rule: the grid's best value on validation data, over all seeds.

        Where nothing may be trained, the grid is what is there, over the seeds that all of its values have.
        """
        if how == CHOSEN and not self.tunes(benchmark):
            return rho_norm_for(benchmark, method)
        if (benchmark, how) not in self._chosen:
            rows = {value: Row("SPCP", "spcp", {"rho_norm": value}, benchmark=benchmark) for value in self.budget.grid}
            seeds = {value: self.seeds_of(row) for value, row in rows.items()}
            shared = set(self.seeds).intersection(*(there for there in seeds.values() if there))
            wanted = [(rows[value], seed) for value, there in seeds.items() for seed in there if seed in shared]
            self.prepare([("validation", row, seed, (how,)) for row, seed in wanted])
            areas = {
                value: [self.validation(rows[value], seed, how) for seed in there if seed in shared]
                for value, there in seeds.items()
                if there and shared
            }
            if not areas:
                raise UntrainedError(benchmark)
            self.grid[benchmark] = tuple(areas)
            self._chosen[benchmark, how] = choose(areas)
            self.log(f"{how} for {benchmark}: rho_norm {self._chosen[benchmark, how]:g}")
        return self._chosen[benchmark, how]

    def tunes(self, benchmark: str) -> bool:
        """Tell whether rho_norm is chosen here: the budget asks for it, or the paper has no value."""
        return self.budget.tunes or benchmark not in DEFAULTS

    def chosen(self, benchmark: str) -> float | None:
        """Return the rho_norm of a benchmark's rows; None if none needed it."""
        return self._chosen.get((benchmark, CHOSEN)) if self.tunes(benchmark) else self.rho_norm(benchmark)

    def validation(self, row: Row, seed: int, how: str = CHOSEN) -> float:
        """Return the AUROC of the method's score on validation data, or on Gaussian noise for it; kept."""
        noise = NOISE if how == ON_NOISE else None
        path = self.run(row, seed).folder / "scored" / f"validation{'-noise' if noise else ''}.json"
        name = METHODS[row.method][0].score
        step = ("validation", row, seed, (how,))
        measured = self._kept(path, step, lambda: {"auroc": self.evaluation(row, seed).validation_auroc(name, noise)})
        return float(measured["auroc"])


def _do(lab: Lab, steps: Sequence[Step]) -> None:
    """Do steps of one run, which leave their results in its folder."""
    for name, row, seed, rest in steps:
        getattr(lab, name)(row, seed, *rest)


def _same_run(one: Step, other: Step) -> bool:
    """Tell whether two steps are about the same run."""
    about = [(row.benchmark, row.method, row.settings, seed) for _, row, seed, _ in (one, other)]
    return about[0] == about[1]


def _silent(message: str) -> None:
    """Log nothing."""


def epochs_done(folder: Path) -> int:
    """Read from a run's weights how many epochs are done."""
    path = folder / "last.safetensors"
    return int(read_tensors(path)[1].get("epoch", -1)) + 1 if path.exists() else 0


def _check_settings(run: Run, config: Config) -> None:
    """Raise if a run that is done has other settings than those asked for: a budget may have changed."""
    for setting in dataclasses.fields(Config):
        if setting.name not in ("root", "start", "save_every"):
            before, now = getattr(run.config, setting.name), getattr(config, setting.name)
            if before != now:
                raise InputError(
                    f"{run.folder}: was trained with {setting.name} = {before!r}, not {now!r}; delete it to train it "
                    "anew, or name another folder (--out)"
                )


class TruncatedAtInference(Evaluation):
    """The evaluation of a network that was trained without truncation and truncates at inference.

    Its threshold is the mean over the samples of a set of their quantiles. Features do not depend on it, so they are
    those of the evaluation without truncation.
    """

    def __init__(self, trained: Evaluation, rho_norm: RhoNorm, role: str) -> None:
        model = copy.deepcopy(trained.model)
        head: Any = model.network.get_submodule(model.classifier)
        SPCPLinear.convert_(head, Truncation(rho_norm, stages="infer"))
        fit_threshold(nn.Sequential(head), (part.features for part in trained.bank(role).parts()))
        super().__init__(model, trained.benchmark, folder=trained.folder)
        self.trained = trained

    def bank(self, role: str) -> FeatureBank:
        """Return the bank of a set, with truncated logits."""
        if role not in self._banks:
            self._banks[role] = self.trained.bank(role).with_head(self.model.head)
        return self._banks[role]


def _fewer(benchmark: Benchmark, count: int) -> Benchmark:
    """Take some samples of each set, evenly spaced; all of the training set."""

    def few(data: DataSet) -> DataSet:
        return take(data, torch.linspace(0, len(data) - 1, min(count, len(data))).round().long())

    groups: dict[str, Any] = {
        role: {name: few(data) for name, data in getattr(benchmark, role).items()}
        for role in ("ood_val", "near", "far")
    }
    val = None if benchmark.val is None else few(benchmark.val)
    return dataclasses.replace(benchmark, val=val, test=few(benchmark.test), **groups)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
