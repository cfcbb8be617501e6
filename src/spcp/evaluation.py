"""Every score on every set of a benchmark, after one pass over each; and the search for hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from . import processes
from .bank import BLOCKS, FeatureBank, begin_bank
from .conformal import samples_needed, split, threshold_rank
from .data import Benchmark, DataSet, ImageTransform, Loader, load_benchmark, noise, prepare, proxies, take
from .errors import InputError, need
from .files import written
from .methods import Method
from .metrics import Interval, mean_and_deviation, metrics, rate_interval
from .model import ScoredModel
from .progress import track
from .runs import Run
from .scores import MEMBERS, SCORES, Score, applicable, build_score
from .tables import to_csv, to_json, to_latex, to_markdown

_log = logging.getLogger("spcp")

# What is evaluated by default; ODIN is not among them, because it runs the network again.
DEFAULT_SCORES = tuple(name for name in SCORES if name not in ("odin", "mos", "consensus-large", "consensus-logits"))
NOISE = "ood_val/noise"
ITP_OPTIONS = {  # of its paper, by benchmark
    "cifar10": {"p": 10, "l": 2.2},
    "cifar100": {"p": 20, "l": 1.6},
    "imagenet200": {"p": 30, "l": 1.5},
    "imagenet": {"p": 30, "l": 1.5},
}
NAMES = {
    "fpr95": "FPR95",
    "auroc": "AUROC",
    "aupr_in": "AUPR-in",
    "aupr_out": "AUPR-out",
    "fpr95_id": "FPR95-id",
    "detection_rate": "detection rate",
    "false_alarm_rate": "false alarm rate",
}
MEASURES = tuple(NAMES)
LARGER_IS_BETTER = {"auroc", "aupr_in", "aupr_out", "detection_rate"}
PROXIES = 200  # samples of each kind
ALPHA = 0.05  # the false alarm rate at which detection rates are measured
CONVENTION = (
    "Percent. FPR95 is OpenOOD's: the share of ID that is flagged when 95 % of OOD is; FPR95-id the share of OOD that "
    "is accepted when 95 % of ID is. The detection rate is the share of OOD that is flagged by a threshold that is "
    "calibrated on validation data to flag at most 5 % of ID."
)


@dataclass(frozen=True)
class Result:
    """A score on one OOD set, or the unweighted mean over a group of them; all shares are in [0, 1]."""

    score: str
    options: Mapping[str, Any]
    group: str  # "near" or "far"
    dataset: str  # the name of the set, or "mean"
    fpr95: float
    auroc: float
    aupr_in: float
    aupr_out: float
    fpr95_id: float
    detection_rate: float | None  # with a threshold for `alpha` by validation data; None where there is too little
    false_alarm_rate: float | None  # of the same threshold on the ID test set
    accuracy: float  # on the ID test set
    alpha: float = ALPHA
    auroc_interval: Interval | None = None  # of a single set
    fpr95_interval: Interval | None = None
    detection_rate_interval: Interval | None = None  # Wilson's, for this threshold
    n_id: int | None = None
    n_ood: int | None = None

    def as_record(self) -> dict[str, Any]:
        """Return the fields by name, with the ends of intervals as `auroc_low`, `auroc_high` and so on."""
        record = asdict(self)
        for measure in ("auroc", "fpr95", "detection_rate"):
            low_high = record.pop(f"{measure}_interval") or (None, None)
            record |= dict(zip((f"{measure}_low", f"{measure}_high"), low_high, strict=True))
        return record


@dataclass(frozen=True)
class Table:
    """Results of all scores on all sets."""

    rows: tuple[Result, ...]
    scores: Mapping[tuple[str, str], Tensor]  # by score and role: for paired tests and figures; "val": for thresholds

    def get(self, score: str, group: str, dataset: str = "mean") -> Result:
        """Return the result of a score on a set, or the mean over its group."""
        for row in self.rows:
            if (row.score, row.group, row.dataset) == (score, group, dataset):
                return row
        raise InputError(f"the table has no row for {score} on {group}/{dataset}")

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries."""
        return [row.as_record() for row in self.rows]

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`."""
        return need("pandas", "pandas").DataFrame(self.records())

    def csv(self) -> str:
        """Write all rows, with shares in [0, 1]."""
        return to_csv(self.records())

    def json(self) -> str:
        """Write all rows, with shares in [0, 1]."""
        return to_json(self.records())

    def markdown(self, measures: Sequence[str] = ("fpr95", "auroc", "detection_rate")) -> str:
        """Write a line for each score: its measures on every set and group in percent, the best in bold."""
        table = to_markdown(*self._cells(measures, "**{}**"))
        return f"{table}\n{CONVENTION} ID accuracy {100 * self.rows[0].accuracy:.2f} %.\n"

    def latex(self, measures: Sequence[str] = ("fpr95", "auroc", "detection_rate")) -> str:
        """Write the same as a tabular."""
        return to_latex(*self._cells(measures, "\\textbf{{{}}}"), comment=CONVENTION)

    def _cells(self, measures: Sequence[str], bold: str) -> tuple[list[str], list[list[str]]]:
        """Return the header and the lines of a table for people."""
        measures = [name for name in measures if all(getattr(row, name) is not None for row in self.rows)]
        columns = list(dict.fromkeys((row.group, row.dataset) for row in self.rows))
        results = {(row.score, row.group, row.dataset): row for row in self.rows}
        lines = {row.score: [row.score] for row in self.rows}
        for column in columns:
            there = {name: results[name, *column] for name in lines if (name, *column) in results}
            best = {
                measure: (max if measure in LARGER_IS_BETTER else min)(
                    f"{getattr(row, measure):.4f}" for row in there.values()
                )
                for measure in measures
            }
            for name, line in lines.items():
                texts = []
                for measure in measures if name in there else ():
                    value = getattr(there[name], measure)
                    text = f"{100 * value:.2f}"
                    texts.append(bold.format(text) if f"{value:.4f}" == best[measure] else text)
                line.append(" / ".join(texts))
        title = " / ".join(NAMES[measure] for measure in measures)
        sets = [f"{group} mean" if dataset == "mean" else dataset for group, dataset in columns]
        return [f"score ({title})", *sets], list(lines.values())

    def save(self, path: str | Path) -> Path:
        """Write the table as .csv, .json, .md or .tex, by the ending of the path."""
        path = Path(path).expanduser()
        forms: dict[str, Callable[[], str]] = {
            ".csv": self.csv,
            ".json": self.json,
            ".md": self.markdown,
            ".tex": self.latex,
        }
        if path.suffix not in forms:
            raise InputError(f"{path}: ends in none of {', '.join(forms)}; name a file that does")
        with written(path) as file:
            file.write(forms[path.suffix]().encode())
        return path


class Evaluation:
    """A model on a benchmark: one feature bank for each set, made when it is first needed.

    Processes that are joined (`spcp.processes`) make the banks, fit and score together; all get the same results.

    Args:
        model: a run; a `ScoredModel`; or any classifier.
        benchmark: the data, or its name; by default that of the run.
        truncate: False scores a run or a classifier as if its SPCP heads were plain linear layers.
        which: the weights of a run, "last" or "best".
        folder: where banks are kept; by default in the user's cache folder.
        batch_size: of the pass.
    """

    def __init__(
        self,
        model: ScoredModel | Run | nn.Module,
        benchmark: Benchmark | str | None = None,
        *,
        truncate: bool = True,
        which: str = "last",
        folder: str | Path | None = None,
        batch_size: int = 256,
    ) -> None:
        root = model.config.root if isinstance(model, Run) else None
        self.chosen_on: Tensor | None = None  # validation samples that the run was chosen on
        data = load_benchmark(benchmark, root) if isinstance(benchmark, str) else benchmark
        if isinstance(model, Run):
            data = model.benchmark() if data is None else data.fewer(model.config.images)
            expected, given = model.inputs.shape, data.inputs().shape
            if expected != given:
                raise InputError(
                    f"{model.folder}: its network takes samples {expected}, but those of {data.name} are {given}"
                )
            self.chosen_on = model.chosen_on(data)
            model = model.load(which, truncate=truncate)
        if data is None:
            raise InputError("a model needs a benchmark to be evaluated on; name one, such as digits")
        self.model = model if isinstance(model, ScoredModel) else ScoredModel(model, truncate=truncate)
        if processes.count() > 1:
            self.model.to(processes.device())
        self.benchmark, self.folder, self.batch_size = data, folder, batch_size
        self._banks: dict[str, FeatureBank] = {}
        self._proxies: dict[str, DataSet] = {}
        self._key = ""

    def _refresh(self) -> None:
        """Forget the banks of a model that has changed."""
        key = self.model.fingerprint()
        if key != self._key:
            self._banks, self._key = {}, key

    def _set(self, role: str) -> tuple[DataSet, Any]:
        """Return the data of a role, and its transform."""
        sets = self.benchmark.sets()
        if role in self._proxies:
            transform = self.benchmark.transform
            if isinstance(transform, ImageTransform):  # has been applied: the images have their size
                transform = dataclasses.replace(transform, resize=transform.crop)
            return self._proxies[role], transform
        if role == NOISE and role not in sets and self.benchmark.val is not None:
            if not self.benchmark.ood_val:  # else it was asked for
                _tell_of_noise(self.benchmark.name)
            sets[NOISE] = noise("gaussian", prepare(self.benchmark.val, self.benchmark.transform))
        if role not in sets:
            raise InputError(f"{self.benchmark.name}: has no set {role!r}; there are {', '.join(sets)}")
        return sets[role], self.benchmark.transform_of(role)

    def outliers(self) -> list[str]:
        """Return the roles of what a detector can be tried on: OOD validation sets, and proxies made of ID samples."""
        if not self._proxies and self.benchmark.val is not None:
            val = self.benchmark.val
            rows = torch.randperm(len(val), generator=torch.Generator().manual_seed(0))[:PROXIES]
            made = proxies(prepare(take(val, rows), self.benchmark.transform), PROXIES)
            self._proxies = {f"proxy/{name}": samples for name, samples in made.items()}
        given = [role for role in self.benchmark.sets() if role.startswith("ood_val/")]
        return [*given, *self._proxies]

    def samples(self, score: Score, role: str) -> FeatureBank | Loader:
        """Return what a score looks at: the bank of a set, or its inputs."""
        if not score.needs_inputs:
            return self.bank(role)
        return Loader(*self._set(role), batch_size=self.batch_size, device=self.model.device)

    def bank(self, role: str) -> FeatureBank:
        """Return the bank of a set such as "train" or "near/tin": by the test transform, in order."""
        if role not in self._banks:
            self._banks[role] = self._begin(role)()
        return self._banks[role]

    def _begin(self, role: str, among: tuple[int, int] | None = None) -> Callable[[], FeatureBank]:
        """Make this process's share of a bank; see `begin_bank`."""
        model, method = self.model, self.model.method
        same = not model.truncate and (method is None or type(method).outputs is Method.outputs)
        if same:  # the features do not depend on truncation: a pass with it may have been made already
            model = ScoredModel(model.network, method, classifier=model.classifier)
        opened = begin_bank(model, *self._set(role), folder=self.folder, batch_size=self.batch_size, among=among)
        return lambda: opened().with_head(self.model.head) if same else opened()

    def make_banks(self, roles: Iterable[str]) -> None:
        """Make the banks of several sets, of which joined processes (`spcp.processes`) share all samples."""
        roles = [role for role in roles if role not in self._banks]
        if processes.count() == 1:  # one makes them as they are needed
            return
        sizes = [len(self._set(role)[0]) for role in roles]
        for role, before in zip(roles, itertools.accumulate(sizes, initial=0), strict=False):
            self._begin(role, among=(before, sum(sizes)))
        processes.wait()

    def with_val(self, rows: Tensor) -> Evaluation:
        """Return the evaluation with some of the validation samples only; what does not depend on them is shared."""
        assert self.benchmark.val is not None
        self._refresh()
        part = self.bank("val").take(rows)
        benchmark = dataclasses.replace(self.benchmark, val=take(self.benchmark.val, rows))
        other = Evaluation(self.model, benchmark, folder=self.folder, batch_size=self.batch_size)
        made = set(self._banks) - set(self.benchmark.sets())  # of the validation samples
        other._banks = {role: bank for role, bank in self._banks.items() if role not in made} | {"val": part}
        other._key = self._key
        return other

    def divide(
        self, alpha: float = ALPHA, delta: float | None = None, *, fitting: bool, choosing: bool
    ) -> tuple[Evaluation, Tensor | None]:
        """Return the evaluation to fit and choose scores with, and the validation samples left for the threshold.

        Where something is fitted or chosen on validation data, that is done on a part of it: see `split`. If the run
        itself was chosen on a part (`spcp tune`), it is that part. None stands for all samples.
        """
        count = len(self.benchmark.val or ())
        if self.chosen_on is not None:
            free = torch.ones(count, dtype=torch.bool)
            free[self.chosen_on] = False
            return self.with_val(self.chosen_on), free.nonzero()[:, 0]
        if not fitting and not choosing:
            return self, None
        chosen, rest = split(count, alpha, delta, choosing=choosing)
        return self.with_val(chosen), rest

    @torch.no_grad()
    def fit(self, score: Score) -> Score:
        """Fit a score on the sets it needs."""
        score.check_options()
        name, method, sets = type(score).__name__, self.model.method, self.benchmark.sets()
        if method is not None:
            score.check_readable(method.readable, type(method).__name__)
        for role in score.fitted_on:
            if role not in sets and role not in score.does_without:
                what = {"train": "training", "val": "validation"}[role]
                raise InputError(f"{name}: is fitted on {what} data, and {self.benchmark.name} has none; leave it out")
        if "train" in score.fitted_on and "train" in sets:
            score.fit(self.bank("train"), self.model.head)
        if "val" in score.fitted_on:
            self.bank("val").check_finite()
            score.fit_held_out(self.bank("val"), self.model.head)
        return score

    @torch.no_grad()
    def scores(self, score: Score, role: str) -> Tensor:
        """Return the scores of a whole set, (N,)."""
        if not score.needs_inputs:
            return score.scores(self.bank(role), self.model.head)
        of_inputs: Any = score
        batches = cast("Loader", self.samples(score, role))
        blocks = min(BLOCKS, len(batches))

        def of_block(i: int) -> Tensor:
            first, last = (len(batches) * j // blocks for j in (i, i + 1))
            some = itertools.islice(batches.epoch(0, first), last - first)
            return torch.cat([of_inputs.score_inputs(lambda x: self.model.outputs(x).logits, x).cpu() for x, _ in some])

        return torch.cat(list(processes.in_order(of_block, blocks)))

    def search(self, name: str, ood: str | None = None) -> Score:
        """Return the best of a score's sweep: the largest AUROC of ID against OOD validation data, the first on ties.

        Every combination is fitted anew, on the banks alone. What the training method sets, such as SNN's k, stays.
        `ood` is the role of the OOD set; by default `ood_validation`.
        """
        self._refresh()
        given = self.options_for(name)
        base = build_score(name, **given)
        sweep = {key: values for key, values in base.sweep.items() if key not in given}
        if self.benchmark.val is None:
            raise InputError(f"{self.benchmark.name}: has no validation set to search on; give it one (val)")
        best, chosen = -1.0, base
        for values in itertools.product(*sweep.values()) if sweep else ():
            score = self.fit(build_score(name, **(base.options | dict(zip(sweep, values, strict=True)))))
            area = self._validation_auroc(score, ood)
            if area > best:
                best, chosen = area, score
        return chosen if sweep else self.fit(base)

    def validation_auroc(self, name: str, ood: str | None = None) -> float:
        """Return the AUROC of a score on ID against OOD validation data; see `search` for `ood`."""
        return self._validation_auroc(self.fitted(name), ood)

    def _validation_auroc(self, score: Score, ood: str | None) -> float:
        return metrics(self.scores(score, "val"), self.scores(score, ood or self.ood_validation), resamples=1).auroc

    @property
    def ood_validation(self) -> str:
        """The role of the first OOD validation set; where there is none, Gaussian noise like the validation set."""
        return next((role for role in self.benchmark.sets() if role.startswith("ood_val/")), NOISE)

    def fitted(self, name: str, *, search: bool = False) -> Score:
        """Return a score by name, fitted, with the options for this model and benchmark, or those of `search`."""
        return self.search(name) if search else self.fit(build_score(name, **self.options_for(name)))

    def options_for(self, name: str) -> dict[str, Any]:
        """Return the options of a score that depend on this model or benchmark."""
        method, transform = self.model.method, self.benchmark.transform
        if method is not None and name == method.score:
            return dict(method.score_options)
        if name == "odin" and isinstance(transform, ImageTransform):
            return {"std": transform.std}
        if name == "consensus" and method is not None and method.score not in ("energy", *MEMBERS["default"]):
            names = [name for name in MEMBERS["default"] if SCORES[name][0].reads in method.readable]
            return {"members": {name: self.options_for(name) for name in (method.score, *names) if name != "energy"}}
        return ITP_OPTIONS.get(self.benchmark.name, {}) if name == "itp" else {}

    def default_scores(self) -> tuple[str, ...]:
        """Return the names of the scores that fit this model and data and need no other pass."""
        method = self.model.method
        names = applicable(self.benchmark.sets(), None if method is None else method.readable)
        special = ["mos"] if method is not None and method.score == "mos" else []
        return (*(name for name in names if name in DEFAULT_SCORES), *special)

    def table(
        self,
        scores: Iterable[str | Score] | None = None,
        *,
        search: bool = False,
        full_spectrum: bool = False,
        alpha: float = ALPHA,
    ) -> Table:
        """Evaluate scores on every near-OOD and far-OOD set.

        The threshold of the detection rate is calibrated on the validation data. Where a score is fitted or searched on
        that, one part is for the score and the other for the threshold, as in `Detector.calibrate`.

        Args:
            scores: names, see `spcp.scores.SCORES`, or scores; by default `default_scores`.
            search: choose hyperparameters first, see `search`.
            full_spectrum: count the covariate-shifted sets as ID too.
            alpha: the largest false alarm rate, for the detection rate.
        """
        self._refresh()
        chosen = {item if isinstance(item, str) else _label(item): item for item in scores or self.default_scores()}
        groups = {"near": list(self.benchmark.near), "far": list(self.benchmark.far)}
        groups = {group: datasets for group, datasets in groups.items() if datasets}
        if not groups:
            raise InputError(f"{self.benchmark.name}: has no near or far sets to evaluate on; give it some")
        id_roles = ["test", *(f"shifted/{name}" for name in self.benchmark.shifted if full_spectrum)]
        ood_roles = [f"{group}/{dataset}" for group, datasets in groups.items() for dataset in datasets]
        rows: list[Result] = []
        kept: dict[tuple[str, str], Tensor] = {}
        enough = len(self.benchmark.val or ()) >= samples_needed(alpha) + 2
        built = {
            name: build_score(item, **self.options_for(item)) if isinstance(item, str) else item
            for name, item in chosen.items()
        }
        fitting_roles = {"val", *(role for score in built.values() for role in score.fitted_on)}
        self.make_banks([*sorted(fitting_roles & set(self.benchmark.sets())), *id_roles, *ood_roles])
        divided = {
            fitting: self.divide(alpha, fitting=fitting, choosing=search) if enough else (self, None)
            for fitting in (False, True)
        }
        for name, score in track(built.items(), "scores", len(built)):
            part, rest = divided["val" in score.fitted_on]
            score = part.search(name) if search and isinstance(chosen[name], str) else part.fit(score)
            for role in (*id_roles, *ood_roles):
                kept[name, role] = self.scores(score, role)
            if enough and (rest is None or len(rest) >= samples_needed(alpha)):
                calibration = self.scores(score, "val")
                kept[name, "val"] = calibration if rest is None else calibration[rest]
            id_scores = torch.cat([kept[name, role] for role in id_roles])
            for group, datasets in groups.items():
                results = [self._result(name, score, group, dataset, id_scores, kept, alpha) for dataset in datasets]
                rows += [*results, _mean(results)]
        return Table(tuple(rows), kept)

    def _result(
        self,
        name: str,
        score: Score,
        group: str,
        dataset: str,
        id_scores: Tensor,
        kept: Mapping[tuple[str, str], Tensor],
        alpha: float,
    ) -> Result:
        ood_scores, calibration = kept[name, f"{group}/{dataset}"], kept.get((name, "val"))
        try:
            measured = metrics(id_scores, ood_scores)
        except InputError as error:
            raise InputError(f"{name} on {group}/{dataset}: {error}") from error
        values: dict[str, Any] = {field.name: getattr(measured, field.name) for field in fields(measured)}
        values |= {"detection_rate": None, "false_alarm_rate": None}
        if calibration is not None:
            threshold = calibration.sort().values[threshold_rank(len(calibration), alpha) - 1]
            false_alarms, detected = (int((~(scores >= threshold)).sum()) for scores in (id_scores, ood_scores))
            values["false_alarm_rate"], values["detection_rate"] = (
                false_alarms / len(id_scores),
                detected / len(ood_scores),
            )
            values["detection_rate_interval"] = rate_interval(detected, len(ood_scores))
        return Result(name, score.options, group, dataset, accuracy=self.bank("test").accuracy(), alpha=alpha, **values)


@functools.cache  # once
def _tell_of_noise(name: str) -> None:
    _log.warning(
        "%s: has no OOD validation data (--ood-val), so Gaussian noise stands in; what is best on noise need not be so "
        "on real OOD data",
        name,
    )


def evaluate(
    model: ScoredModel | Run | nn.Module,
    benchmark: Benchmark | str | None = None,
    scores: Iterable[str | Score] | None = None,
    *,
    search: bool = False,
    full_spectrum: bool = False,
    alpha: float = ALPHA,
    **options: Any,
) -> Table:
    """Evaluate scores on every set of a benchmark, for a run or a model.

    `search`, `full_spectrum` and `alpha` are those of `Evaluation.table`; `options` are `Evaluation`'s: `truncate`,
    `which`, `folder`, `batch_size`.
    """
    return Evaluation(model, benchmark, **options).table(
        scores, search=search, full_spectrum=full_spectrum, alpha=alpha
    )


def _label(score: Score) -> str:
    options = ", ".join(f"{key}={value}" for key, value in score.options.items())
    return f"{type(score).__name__}({options})" if options else type(score).__name__


def _mean(results: Sequence[Result]) -> Result:
    """Return the unweighted mean over sets."""
    first = results[0]
    columns = {measure: [getattr(row, measure) for row in results] for measure in MEASURES}
    means: Any = {name: None if None in values else sum(values) / len(values) for name, values in columns.items()}
    shared: Any = {"accuracy": first.accuracy, "alpha": first.alpha}
    return Result(first.score, first.options, first.group, "mean", **shared, **means)


def over_seeds(
    tables: Sequence[Table], score: str, group: str, dataset: str = "mean"
) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of each measure over runs; of a group, over the runs' group means."""
    rows = [table.get(score, group, dataset) for table in tables]
    columns = {measure: [getattr(row, measure) for row in rows] for measure in MEASURES}
    return {measure: mean_and_deviation(values) for measure, values in columns.items() if None not in values}
