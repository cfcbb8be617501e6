"""From runs to numbers: runs that differ by the seed alone form an arm, and arms are compared on the same samples."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..choice import Choice, Trial, trials_from_json
from ..comparison import Difference, compare_arms
from ..config import Config
from ..conformal import p_values, samples_needed, threshold_rank
from ..contributions import Pattern, pattern_of
from ..data import Benchmark, noise, prepare
from ..detector import read_notes
from ..errors import InputError
from ..evaluation import ALPHA, Evaluation, Table, over_seeds
from ..methods import METHODS, Method
from ..metrics import Interval, compare_means, mean_and_deviation, rate_interval
from ..progress import track
from ..runs import Run
from ..scores import DEFAULT, applicable


@dataclass(frozen=True, eq=False)
class EvaluatedRun:
    """A run with its scores."""

    run: Run
    evaluation: Evaluation
    table: Table
    history: Sequence[Mapping[str, Any]]  # a record for each epoch

    @property
    def seed(self) -> int:
        """Return the seed of the run."""
        return self.run.config.seed

    @property
    def has_contributions(self) -> bool:
        """Tell whether a linear layer makes the logits, so that there are contributions to look at."""
        method = self.evaluation.model.method
        return method is None or "weights" in method.readable

    def pattern(self) -> Pattern:
        """Return the mean contributions over the ID test set."""
        features = (part.features for part in self.evaluation.bank("test").parts())
        return pattern_of(features, self.evaluation.model.head)

    def score_threshold(self, score: str, alpha: float = ALPHA) -> float | None:
        """Return the threshold below which an input is flagged; None if there are too few validation samples."""
        scores = self._calibration(score)
        return float(scores[threshold_rank(len(scores), alpha) - 1]) if len(scores) >= samples_needed(alpha) else None

    def p_values(self, score: str, scores: Tensor) -> Tensor:
        """Return the conformal p-values of some scores."""
        return p_values(scores, self._calibration(score))

    def _calibration(self, score: str) -> Tensor:
        """Sort the scores of the validation samples that are for thresholds."""
        return self.table.scores.get((score, "val"), torch.empty(0)).sort().values


@dataclass(frozen=True, eq=False)
class Arm:
    """Runs with the same settings but for the seed."""

    name: str
    runs: tuple[EvaluatedRun, ...]
    truncates: bool  # in training

    def mean(self, score: str, group: str, dataset: str = "mean") -> dict[str, tuple[float, float]]:
        """Return the mean and deviation over seeds of each measure."""
        return over_seeds([run.table for run in self.runs], score, group, dataset)

    @property
    def accuracy(self) -> tuple[float, float]:
        """Return the mean and deviation over seeds of the accuracy on the ID test set."""
        return mean_and_deviation([run.table.rows[0].accuracy for run in self.runs])

    @property
    def seeds(self) -> tuple[int, ...]:
        """List the seeds of the runs."""
        return tuple(run.seed for run in self.runs)


@dataclass(frozen=True)
class SetDifference:
    """The AUROC of an arm against that of the reference, on one set or over a group's sets ("mean")."""

    group: str
    dataset: str
    reference: float  # mean over the common seeds
    arm: float
    difference: Difference


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that a report shows."""

    title: str
    benchmark: Benchmark
    arms: tuple[Arm, ...]
    scores: tuple[str, ...]
    main_score: str  # that the verdict is about
    notes: tuple[str, ...] = ()
    choice: Sequence[Mapping[str, Any]] = field(default=())  # how rho_norm was chosen: rows of a tuning

    @property
    def reference(self) -> Arm | None:
        """Return the arm that the others are compared with: the first that does not truncate."""
        return next((arm for arm in self.arms if not arm.truncates), None)

    @property
    def subject(self) -> Arm:
        """Return the arm that the report is about: the first that truncates, or else the last."""
        return next((arm for arm in self.arms if arm.truncates), self.arms[-1])

    @property
    def groups(self) -> tuple[str, ...]:
        """List "near" and "far", where they are."""
        return tuple(dict.fromkeys(group for group, _ in self.sets))

    @property
    def sets(self) -> tuple[tuple[str, str], ...]:
        """List groups and sets, each group's mean first."""
        rows = list(dict.fromkeys((row.group, row.dataset) for row in self.arms[0].runs[0].table.rows))
        return tuple(sorted(rows, key=lambda row: (row[0] != "near", row[1] != "mean", rows.index(row))))

    def differences(self, arm: Arm) -> list[SetDifference]:
        """Compare an arm with the reference by set and by group, for the main score; nothing without common seeds."""
        reference = self.reference
        if reference is None or reference is arm:
            return []
        pairs = [(run, other) for run in arm.runs for other in reference.runs if run.seed == other.seed]
        return [self._difference(pairs, group, dataset) for group, dataset in self.sets] if pairs else []

    def _difference(
        self, pairs: Sequence[tuple[EvaluatedRun, EvaluatedRun]], group: str, dataset: str
    ) -> SetDifference:
        names = [dataset] if dataset != "mean" else [name for key, name in self.sets if key == group and name != "mean"]
        areas = [[run.table.get(self.main_score, group, dataset).auroc for run in pair] for pair in pairs]
        scores = [
            [(self._scores(run, "test"), [self._scores(run, f"{group}/{name}") for name in names]) for run in pair]
            for pair in pairs
        ]
        p_value = compare_means(*zip(*scores, strict=True)).p_value
        arm, reference = zip(*areas, strict=True)
        difference = compare_arms(arm, reference, p_value=p_value)
        return SetDifference(group, dataset, sum(reference) / len(pairs), sum(arm) / len(pairs), difference)

    def _scores(self, run: EvaluatedRun, role: str) -> Tensor:
        return run.table.scores[self.main_score, role]


def gather(
    runs: Sequence[str | Path | Run],
    *,
    scores: Sequence[str] | None = None,
    title: str | None = None,
    choice: Sequence[Mapping[str, Any]] = (),
    benchmark: Benchmark | None = None,
    banks: str | Path | None = None,
) -> Study:
    """Evaluate runs on the data they share.

    Args:
        runs: the runs, or their folders.
        scores: names; by default all that make sense for every run.
        title: the report's.
        choice: rows of a `Tuning`, if that is how rho_norm was chosen.
        benchmark: instead of the one that the runs were trained on.
        banks: a folder for features; by default in the user's cache.
    """
    if not runs:
        raise InputError("there are no runs to report on; name their folders")
    opened = [run if isinstance(run, Run) else Run.open(run) for run in runs]
    chosen = [notes["choice"]["score"] for notes in map(_notes, opened) if "choice" in notes]
    data, notes = _checked(benchmark or _shared(opened))
    groups: dict[str, list[EvaluatedRun]] = {}
    for run in track(opened, "evaluating", len(opened)):
        evaluation = Evaluation(run, data, folder=banks)
        table = evaluation.table(scores or _scores_of(evaluation, chosen))
        history, epochs = run.history, run.config.epochs
        if len(history) < epochs:
            raise InputError(
                f"{run.folder}: has {len(history)} of its {epochs} epochs; the same spcp train goes on with it"
            )
        groups.setdefault(_key(run.config), []).append(EvaluatedRun(run, evaluation, table, history))
    configs = [members[0].run.config for members in groups.values()]
    arms = tuple(
        Arm(name, tuple(sorted(members, key=lambda member: member.seed)), config.truncation.rho_norm != 0)
        for name, config, members in zip(_names(configs), configs, groups.values(), strict=True)
    )
    for arm in arms:
        if len(set(arm.seeds)) < len(arm.seeds):
            raise InputError(f"{arm.runs[1].run.folder}: repeats a run with the same seed; name it once")
    tables = [{row.score: None for row in arm.runs[0].table.rows} for arm in arms]
    common = tuple(name for name in tables[0] if all(name in table for table in tables))
    if not common:
        raise InputError("no score makes sense for all of these runs; make a report for each kind")
    method = arms[-1].runs[0].evaluation.model.method
    wanted = ("energy" if method is None else method.score, "energy", *common)
    main = next(name for name in wanted if name in common)
    return Study(title or f"{data.name}: ID or OOD?", data, arms, common, main, notes, tuple(choice))


def _scores_of(evaluation: Evaluation, chosen: Sequence[str]) -> list[str]:
    """Return the scores that are always shown, and those of shipped detectors that make sense for a run."""
    method = evaluation.model.method
    can = applicable(evaluation.benchmark.sets(), None if method is None else method.readable)
    return list(dict.fromkeys([*evaluation.default_scores(), *(name for name in chosen if name in can)]))


def _notes(run: Run) -> dict[str, Any]:
    """Return the notes of a run's detector, if it has one."""
    return read_notes(run.detector_path) if run.detector_path.exists() else {}


def _key(config: Config) -> str:
    """Describe a run's settings but for the seed, and for what does not change its network."""
    pretrained = METHODS.get(config.method, (Method, {}))[0].pretrained
    same = dataclasses.replace(config, seed=0, save_every=0.0, root=None, benchmark="")
    return repr(dataclasses.replace(same, start=None) if pretrained else same)


def _shared(runs: Sequence[Run]) -> Benchmark:
    """Return the data that all runs are on: described alike, and prepared alike."""
    first = runs[0]
    for run in runs:
        if _description(run) != _description(first) or run.inputs != first.inputs:
            raise InputError(
                f"{run.folder}: is on other data than {first.folder}, or sees it differently; make a report for each"
            )
    return first.benchmark()


def _description(run: Run) -> tuple[str | None, ...]:
    file = run.description
    return (file.read_text(),) if file and file.exists() else (run.config.benchmark, run.config.root)


def _checked(data: Benchmark) -> tuple[Benchmark, tuple[str, ...]]:
    """Check that there is enough to report on; noise stands in for OOD sets where there are none."""
    notes = list(data.notes)
    if data.val is None or len(data.val) < samples_needed(ALPHA):
        notes.append(
            f"There are fewer than {samples_needed(ALPHA)} validation samples, so no threshold can guarantee a false "
            "alarm rate of 5 %: the report does not show what is flagged."
        )
    if not data.near and not data.far:
        like = prepare(data.val or data.test, data.transform)
        data = dataclasses.replace(data, far={f"{kind} noise": noise(kind, like) for kind in ("gaussian", "uniform")})
        notes.append(
            "There are no OOD sets, so noise stands in; it says little about the OOD inputs that you will meet (--ood)."
        )
    for role, samples in data.sets().items():
        if role.startswith(("near/", "far/", "test")) and len(samples) < 2:
            raise InputError(f"{role}: has a single sample, which is too few to measure on; leave it out, or add to it")
    return data, tuple(notes)


def _names(configs: Sequence[Config]) -> list[str]:
    """Name arms by what tells them apart."""
    names = []
    for config in configs:
        others = [other for other in configs if other.method == config.method]
        words = [f"rho_norm {_short(config.truncation.rho_norm)}"] if config.truncation.rho_norm else []
        hyperparameters = [dataclasses.asdict(other.truncation) | dict(other.options) for other in others]
        for key, value in (dataclasses.asdict(config.truncation) | dict(config.options)).items():
            if key != "rho_norm" and value is not None and any(other.get(key) != value for other in hyperparameters):
                words.append(f"{key} {_short(value)}")
        for key in ("network", "width", "epochs", "batch_size", "lr", "start"):
            if any(getattr(other, key) != getattr(config, key) for other in configs):
                words.append(f"{key} {getattr(config, key)}")
        method = {"spcp": "SPCP"}.get(config.method, config.method)
        names.append(f"{method} ({', '.join(words)})" if words else method)
    return names if len(set(names)) == len(names) else [f"{name} ({i + 1})" for i, name in enumerate(names)]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def operating_points(study: Study, alphas: Sequence[float] = (0.01, 0.05, 0.1)) -> list[dict[str, Any]]:
    """List the share of every set that thresholds flag which are calibrated at several alpha."""
    rows = []
    for arm in study.arms:
        for run in arm.runs:
            for score, alpha in itertools.product(study.scores, alphas):
                limit = run.score_threshold(score, alpha)
                for (name, role), scores in run.table.scores.items():
                    if limit is not None and name == score and role != "val":
                        flagged = (~(scores >= limit)).double().mean().item()
                        row = {"arm": arm.name, "seed": run.seed, "score": score, "alpha": alpha}
                        rows.append(row | {"threshold": limit, "set": role, "flagged": flagged})
    return rows


class Rate(NamedTuple):
    """A share of inputs that is flagged: mean and deviation over seeds, or a single run's with its interval."""

    mean: float
    deviation: float
    interval: Interval | None

    def __str__(self) -> str:
        text = f"{100 * self.mean:.1f}"
        if self.deviation:
            return f"{text} ± {100 * self.deviation:.1f}"
        return f"{text} ({100 * self.interval[0]:.1f} to {100 * self.interval[1]:.1f})" if self.interval else text


@dataclass(frozen=True)
class Decision:
    """What the calibrated detectors of an arm flag with one score."""

    arm: str
    score: str
    role: str  # "recommended", "calibrated" where a run has a detector with this score, or nothing
    false_alarm_rate: Rate
    detection_rates: Mapping[tuple[str, str], Rate]  # by group and set, as `Study.sets`

    @property
    def recommended(self) -> bool:
        """Whether it is the library's default."""
        return self.role == "recommended"

    @property
    def title(self) -> str:
        """What a table calls it."""
        return f"{self.score}, {self.arm}" + (f" ({self.role})" if self.role else "")


def decisions(study: Study) -> list[Decision]:
    """List the decisions that matter: of the recommended score, of those calibrated, of the paper's, and of energy."""
    calibrated = [choice.score for _, choice, _ in shipped(study)]
    wanted = [(study.subject, score) for score in (DEFAULT, *calibrated, study.main_score, "energy")]
    if study.reference is not None:
        wanted.append((study.reference, "energy"))
    listed = []
    for arm, score in dict.fromkeys(wanted):
        means = {key: arm.mean(score, *key) for key in study.sets} if score in study.scores else {}
        if not means or not all("detection_rate" in mean for mean in means.values()):
            continue  # too little validation data
        rows = {key: arm.runs[0].table.get(score, *key) for key in study.sets}
        single, samples = len(arm.runs) == 1, len(arm.runs[0].table.scores[score, "test"])
        rates = {
            key: Rate(*mean["detection_rate"], rows[key].detection_rate_interval if single else None)
            for key, mean in means.items()
        }
        share, deviation = means[study.sets[0]]["false_alarm_rate"]  # of the same ID samples, whatever the set
        interval = rate_interval(round(share * samples), samples) if single else None
        role = "calibrated" if score in calibrated and arm is study.subject else ""
        role = "recommended" if score == DEFAULT else role
        listed.append(Decision(arm.name, score, role, Rate(share, deviation, interval), rates))
    return listed


def shipped(study: Study) -> list[tuple[str, Choice, tuple[Trial, ...]]]:
    """List the detectors of the subject's runs: the folder, how the score was chosen, and what it was tried on."""
    detectors = []
    for member in study.subject.runs:
        notes = _notes(member.run)
        if "choice" in notes:
            trials = trials_from_json(notes["trials"])
            detectors.append((str(member.run.folder), Choice.from_json(notes["choice"]), trials))
    return detectors


def all_rows(study: Study) -> list[dict[str, Any]]:
    """List every measure of every run."""
    return [
        {"arm": arm.name, "seed": run.seed, **row.as_record()}
        for arm in study.arms
        for run in arm.runs
        for row in run.table.rows
        if row.score in study.scores
    ]
