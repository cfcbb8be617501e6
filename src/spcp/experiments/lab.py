"""The runs of experiments: trained and scored once, whoever asks for them, and kept."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..bank import FeatureBank
from ..config import DEFAULTS, Config, config_for, rho_norm_for
from ..contributions import RhoNorm, SPCPLinear, Truncation, fit_threshold
from ..data import Benchmark, DataError, DataSet, load_benchmark, take
from ..engines.job import Ended, Job
from ..engines.runs import Engine, results, run_jobs
from ..errors import InputError
from ..evaluation import Evaluation
from ..files import checksum, read_tensors, sweep
from ..methods import METHODS, TRUNCATING
from ..progress import track
from ..runs import Run
from ..training import train
from ..tuning import choose
from . import audio
from .budgets import Budget
from .records import FILE, Record, measure

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


Ask = Callable[..., Mapping[str, Any]]  # ask(what, head=the row's): what was measured of a run, see `Lab.measured`
Question = Callable[[Row, Ask], Any]  # a function of a module, so that other processes can ask it, too
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
        records: a folder like `folder` with records of runs whose weights may be gone: what they hold is not trained.
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
        records: str | Path | None = None,
        engine: Engine | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        self.trained_only, self.records = trained_only, None if records is None else Path(records).expanduser()
        self.engine = engine
        self.budget, self.folder, self.root, self.log = budget, Path(folder).expanduser(), root, log
        self.seeds = tuple(range(budget.seeds if seeds is None else seeds))
        self._benchmarks: dict[str, Benchmark] = {}
        self._chosen: dict[tuple[str, str], float] = {}
        self.choices: dict[str, dict[str, Any]] = {}  # what rho_norm was chosen among, and on how many seeds
        self._open: dict[tuple[Path, str], Evaluation] = {}  # of one run, by head
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
            except UntrainedError:  # nothing may be trained: the row is left out
                pass
            except NeededError as error:
                for folder, missing in error.steps.items():
                    is_this_run = any(_same_run(step, other) for other in missing)
                    known = needed.setdefault(folder, [])
                    known += [each for each in ([step] if is_this_run else missing) if each not in known]
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
        budget = self.budget
        settings = {**budget.settings.get(row.benchmark, {}), **budget.methods.get(row.method, {}), **row.settings}
        asked = settings.get("rho_norm", CHOSEN if row.method in TRUNCATING else None)
        if asked in (CHOSEN, ON_NOISE):
            settings["rho_norm"] = self.rho_norm(row.benchmark, row.method, asked)
        if row.method == "fixed":
            settings.pop("beta", None)  # its own
        if row.method == "fixed" and "initial_threshold" not in settings:  # where SPCP's threshold ends
            spcp = self.record(dataclasses.replace(row, method="spcp"), seed)
            settings["initial_threshold"] = spcp.history[-1]["threshold"]
        if METHODS[row.method][0].pretrained:
            plain = self._plain(row)
            settings["start"] = str(self._folder(plain, self.config(plain, seed)).resolve())
        root = None if self.root is None else str(self.root)
        return config_for(row.benchmark, row.method, **settings, seed=seed, root=root)

    def _plain(self, row: Row) -> Row:
        """Return the plain network that a method starts from."""
        same = {key: value for key, value in row.settings.items() if key not in ("options", "rho_norm")}
        return dataclasses.replace(row, method="plain", settings=same)

    def run(self, row: Row, seed: int) -> Run:
        """Return a row's run with its weights, which is trained first if it is not done."""
        config = self.config(row, seed)
        folder = self._folder(row, config)
        if epochs_done(folder) < config.epochs:
            if self.trained_only:
                raise UntrainedError(folder)
            if config.start is not None:
                self.run(self._plain(row), seed)
            self._look(folder, ("run", row, seed, ()))
            if self.engine is not None:
                self.prepare([("run", row, seed, ())])
                return self.run(row, seed)
            return train(config, folder, benchmark=self.benchmark(row.benchmark))
        run = Run.open(folder)
        _check_settings(run.folder, run.config, config)
        sweep(folder)  # a call that was killed may have been writing the last state
        return run

    def _look(self, folder: Path, step: Step) -> None:
        """Raise an error about what has to be done, if the lab only looks."""
        if self._looking:
            raise NeededError({folder: [step]})

    def runs(self) -> list[Run]:
        """List the runs that are done, with weights."""
        folders = sorted(path.parent for path in (self.folder / "runs").glob("*/*/seed-*/last.safetensors"))
        opened = [Run.open(folder) for folder in folders]
        return [run for run in opened if epochs_done(run.folder) >= run.config.epochs]

    def record(self, row: Row, seed: int) -> Record:
        """Return what is known of a row's run; where there are neither weights nor a record, it is trained first."""
        config = self.config(row, seed)
        folder = self._folder(row, config)
        path = self._record_without_weights(folder, config)
        if path is None:
            return self._record_of(self.run(row, seed))
        record = Record.read(path)
        _check_settings(path, record.config, config)
        with contextlib.suppress(DataError):  # without the data, the record stands for itself
            for role, count in self._sizes(config).items():
                if record.sizes.get(role) != count:
                    raise InputError(
                        f"{path}: was measured with {record.sizes.get(role)} samples of {role}, not {count}; delete "
                        "it, or name a folder with the same data (--root)"
                    )
        return record

    def _record_without_weights(self, folder: Path, config: Config) -> Path | None:
        """Return where the record of a run is; None if it is not needed, because the weights are there, or missing."""
        if epochs_done(folder) >= config.epochs:
            return None
        return next((path for path in self._record_files(folder) if path.exists()), None)

    def _record_files(self, folder: Path) -> list[Path]:
        """List where the record of a run may be: in its folder, and in that of the records."""
        elsewhere = [] if self.records is None else [self.records / folder.relative_to(self.folder) / FILE]
        return [folder / FILE, *elsewhere]

    def with_weights(self, row: Row, seed: int) -> Run:
        """Return a row's run as `run` does; if there is a record of it without weights, raise `UntrainedError`."""
        config = self.config(row, seed)
        folder = self._folder(row, config)
        if self._record_without_weights(folder, config) is not None:
            raise UntrainedError(folder.relative_to(self.folder / "runs"))
        return self.run(row, seed)

    def _record_of(self, run: Run) -> Record:
        """Return the record of a run with weights; a new one, if there is none of these weights and data."""
        weights = checksum(*read_tensors(run.folder / "last.safetensors"))
        new = Record(run.config, weights, self._sizes(run.config), run.history, run.environment)
        for path in self._record_files(run.folder):
            with contextlib.suppress(InputError):  # there is none, or a damaged one
                kept = Record.read(path)
                if (kept.weights, kept.sizes) == (new.weights, new.sizes):
                    new.measured.update(kept.measured)
        return new

    def _sizes(self, config: Config) -> dict[str, int]:
        return {role: len(data) for role, data in self.benchmark(config.benchmark).fewer(config.images).sets().items()}

    def images(self, row: Row) -> int:
        """Return how many images a row is trained on, as the data has it or, without them, a record."""
        config = self.config(row, 0)
        try:
            return self._sizes(config)["train"]
        except DataError:
            path = self._record_without_weights(self._folder(row, config), config)
            if path is None:
                raise
            return Record.read(path).sizes["train"]

    def _folder(self, row: Row, config: Config) -> Path:
        """Name the folder of a row's run by what tells it from others of the budget."""
        words = {**row.settings, **row.settings.get("options", {})}
        words.pop("options", None)
        if config.truncation.rho_norm:
            words["rho_norm"] = config.truncation.rho_norm
        name = ",".join([row.method, *(f"{key}={_short(value)}" for key, value in sorted(words.items()))])
        return self.folder / "runs" / row.benchmark / name / f"seed-{config.seed}"

    def tracked(self, rows: Sequence[Row], question: Question) -> Iterator[tuple[int, Row]]:
        """Yield every seed of every row, with a bar, once all that a question asks of them is measured.

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
        self.prepare([("answer", row, seed, (question,)) for seed, row in jobs])
        return track(jobs, "runs", len(jobs))

    def answer(self, row: Row, seed: int, question: Question) -> Any:
        """Return what a question makes of what it asks of a row's run."""
        return question(row, functools.partial(self.measured, row, seed))

    def seeds_of(self, row: Row) -> tuple[int, ...]:
        """List the seeds of a row: all, or, where nothing may be trained, those whose runs are done or recorded."""
        return tuple(seed for seed in self.seeds if not self.trained_only or self._is_done(row, seed))

    def _is_done(self, row: Row, seed: int) -> bool:
        try:
            config = self.config(row, seed)
        except UntrainedError:
            return False
        folder = self._folder(row, config)
        return epochs_done(folder) >= config.epochs or self._record_without_weights(folder, config) is not None

    def final_loss(self, row: Row | None) -> float | None:
        """Return the mean training loss of a row's last epochs; None where there are no runs of it."""
        seeds = [] if row is None else [seed for seed in self.seeds if self._is_done(row, seed)]
        losses = [self.record(row, seed).history[-1]["loss"] for seed in seeds if row is not None]
        return float(sum(losses)) / len(losses) if losses else None

    def trained_with(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """List the environments that the runs of rows were trained in, each once."""
        records = [self.record(row, seed) for row in rows for seed in self.seeds_of(row)]
        found = [{key: value for key, value in e.items() if key != "epoch"} for r in records for e in r.environment]
        return list({repr(environment): environment for environment in found}.values())

    def evaluation(self, row: Row, seed: int) -> Evaluation:
        """Return the evaluation of a row's run, with the head that the row scores with."""
        return self._evaluation(self.run(row, seed), self._head(row))

    def _head(self, row: Row) -> str:
        """Name a row's head: one that is fitted with the value that it is fitted for."""
        return f"fitted {self.rho_norm(row.benchmark):g}" if row.head == "fitted" else row.head

    def _evaluation(self, run: Run, head: str) -> Evaluation:
        """Return the evaluation of a run with a head; those of the last run are kept, with its features."""
        if (run.folder, "trained") not in self._open:
            evaluation = Evaluation(run, self.benchmark(run.config.benchmark), folder=self.folder / "banks")
            self._open = {(run.folder, "trained"): evaluation}
        if (run.folder, head) not in self._open:
            trained = self._open[run.folder, "trained"]
            if head == "plain":
                made = Evaluation(run, trained.benchmark, truncate=False, folder=trained.folder)
            elif head == "auto":
                made = TruncatedAtInference(trained, "auto", "val")
            else:
                made = TruncatedAtInference(trained, float(head.removeprefix("fitted ")), "train")
            self._open[run.folder, head] = made
        return self._open[run.folder, head]

    def measured(self, row: Row, seed: int, what: str, head: str | None = None) -> Mapping[str, Any]:
        """Measure something of a row's run, see `records.measure`, unless its record holds it; with the row's head.

        "last epoch" is that of the training: its loss, accuracy and so on.
        """
        record = self.record(row, seed)
        if what == "last epoch":
            return record.history[-1]
        name = f"{what} {self._head(row if head is None else dataclasses.replace(row, head=head))}"
        if name in record.measured:
            return record.measured[name]["values"]
        config = self.config(row, seed)
        folder = self._folder(row, config)
        if self.trained_only and epochs_done(folder) < config.epochs:  # there is a record only, which lacks it
            raise UntrainedError(folder)
        self._look(folder, ("measured", row, seed, (what, head)))
        return self.measure(self.run(row, seed), name)

    def measure(self, run: Run, name: str) -> Mapping[str, Any]:
        """Measure something of a run with weights, by the name of a measure and a head, unless its record holds it."""
        record = self._record_of(run)
        if name not in record.measured:
            what, _, head = name.partition(" ")
            record.add(name, measure(self._evaluation(run, head), what))
            record.write(run.folder / FILE)
        return record.measured[name]["values"]

    def rho_norm(self, benchmark: str, method: str = "spcp", how: str = CHOSEN) -> float:
        """Choose rho_norm by the paper's rule: the grid's best value on validation data, over all seeds.

        Where nothing may be trained, the grid is what is there, over the seeds that all of its values have; if they
        share none, over the seed that most have.
        """
        if how == CHOSEN and not self.tunes(benchmark):
            return rho_norm_for(benchmark, method)
        if (benchmark, how) not in self._chosen:
            rows = {value: Row("SPCP", "spcp", {"rho_norm": value}, benchmark=benchmark) for value in self.budget.grid}
            seeds = {value: self.seeds_of(row) for value, row in rows.items()}
            counted = Counter(seed for there in seeds.values() for seed in there)
            shared = set(self.seeds).intersection(*(there for there in seeds.values() if there))
            shared = shared or {seed for seed, _ in counted.most_common(1)}
            wanted = [(rows[value], seed) for value, there in seeds.items() for seed in there if seed in shared]
            self.prepare([("validation", row, seed, (how,)) for row, seed in wanted])
            areas = {
                value: [self.validation(rows[value], seed, how) for seed in there if seed in shared]
                for value, there in seeds.items()
                if shared.intersection(there)
            }
            if not areas:
                raise UntrainedError(benchmark)
            if how == CHOSEN:
                self.choices[benchmark] = {"grid": tuple(areas), "chosen on seeds": len(shared)}
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
        """Return the AUROC of the method's score on validation data, or on Gaussian noise for it."""
        return float(self.measured(row, seed, "noise-validation" if how == ON_NOISE else "validation")["auroc"])


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


def _check_settings(path: Path, trained: Config, config: Config) -> None:
    """Raise if a run that is done has other settings than those asked for: a budget may have changed."""
    for setting in dataclasses.fields(Config):
        if setting.name not in ("root", "start", "save_every"):
            before, now = getattr(trained, setting.name), getattr(config, setting.name)
            if before != now:
                raise InputError(
                    f"{path}: was trained with {setting.name} = {before!r}, not {now!r}; delete it to train it "
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
