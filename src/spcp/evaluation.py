"""Every score on every set of a benchmark, after one pass over each; and the search for hyperparameters."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .bank import FeatureBank, build_bank
from .data import Benchmark, DataSet, ImageTransform, Loader, load_benchmark, noise, prepare
from .errors import InputError, need
from .files import written
from .methods import Method
from .metrics import Interval, mean_and_deviation, metrics
from .model import ScoredModel
from .progress import track
from .runs import Run
from .scores import SCORES, Score, build_score
from .tables import to_csv, to_json, to_latex, to_markdown

_log = logging.getLogger("spcp")

# What is evaluated by default; ODIN is not among them, because it runs the network again.
DEFAULT_SCORES = tuple(name for name in SCORES if name not in ("odin", "mos"))
NOISE = "ood_val/noise"
ITP_OPTIONS = {  # of its paper, by benchmark
    "cifar10": {"p": 10, "l": 2.2},
    "cifar100": {"p": 20, "l": 1.6},
    "imagenet200": {"p": 30, "l": 1.5},
    "imagenet": {"p": 30, "l": 1.5},
}
NAMES = {"fpr95": "FPR95", "auroc": "AUROC", "aupr_in": "AUPR-in", "aupr_out": "AUPR-out", "fpr95_id": "FPR95-id"}
MEASURES = tuple(NAMES)
CONVENTION = (
    "Percent. FPR95 is OpenOOD's: the share of ID that is flagged when 95 % of OOD is; FPR95-id the share of OOD that "
    "is accepted when 95 % of ID is."
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
    accuracy: float  # on the ID test set
    auroc_interval: Interval | None = None  # of a single set
    fpr95_interval: Interval | None = None
    n_id: int | None = None
    n_ood: int | None = None

    def as_record(self) -> dict[str, Any]:
        """Return the fields by name, with the ends of intervals as `auroc_low`, `auroc_high` and so on."""
        record = asdict(self)
        for measure in ("auroc", "fpr95"):
            low_high = record.pop(f"{measure}_interval") or (None, None)
            record |= dict(zip((f"{measure}_low", f"{measure}_high"), low_high, strict=True))
        return record


@dataclass(frozen=True)
class Table:
    """Results of all scores on all sets."""

    rows: tuple[Result, ...]
    scores: Mapping[tuple[str, str], Tensor]  # by score and role: for paired tests and figures

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

    def markdown(self, measures: Sequence[str] = ("fpr95", "auroc")) -> str:
        """Write a line for each score: `FPR95 / AUROC` on every set and group in percent, the best in bold."""
        table = to_markdown(*self._cells(measures, "**{}**"))
        return f"{table}\n{CONVENTION} ID accuracy {100 * self.rows[0].accuracy:.2f} %.\n"

    def latex(self, measures: Sequence[str] = ("fpr95", "auroc")) -> str:
        """Write the same as a tabular."""
        return to_latex(*self._cells(measures, "\\textbf{{{}}}"), comment=CONVENTION)

    def _cells(self, measures: Sequence[str], bold: str) -> tuple[list[str], list[list[str]]]:
        """Return the header and the lines of a table for people."""
        columns = list(dict.fromkeys((row.group, row.dataset) for row in self.rows))
        results = {(row.score, row.group, row.dataset): row for row in self.rows}
        lines = {row.score: [row.score] for row in self.rows}
        for column in columns:
            there = {name: results[name, *column] for name in lines if (name, *column) in results}
            best = {
                measure: (max if "au" in measure else min)(f"{getattr(row, measure):.4f}" for row in there.values())
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
        data = load_benchmark(benchmark, root) if isinstance(benchmark, str) else benchmark
        if isinstance(model, Run):
            data = model.benchmark() if data is None else data.fewer(model.config.images)
            expected, given = model.inputs.shape, data.inputs().shape
            if expected != given:
                raise InputError(
                    f"{model.folder}: its network takes samples {expected}, but those of {data.name} are {given}"
                )
            model = model.load(which, truncate=truncate)
        if data is None:
            raise InputError("a model needs a benchmark to be evaluated on; name one, such as digits")
        self.model = model if isinstance(model, ScoredModel) else ScoredModel(model, truncate=truncate)
        self.benchmark, self.folder, self.batch_size = data, folder, batch_size
        self._banks: dict[str, FeatureBank] = {}
        self._key = ""

    def _refresh(self) -> None:
        """Forget the banks of a model that has changed."""
        key = self.model.fingerprint()
        if key != self._key:
            self._banks, self._key = {}, key

    def _set(self, role: str) -> tuple[DataSet, Any]:
        """Return the data of a role, and its transform."""
        sets = self.benchmark.sets()
        if role == NOISE and role not in sets and self.benchmark.val is not None:
            _tell_of_noise(self.benchmark.name)
            sets[NOISE] = noise("gaussian", prepare(self.benchmark.val, self.benchmark.transform))
        if role not in sets:
            raise InputError(f"{self.benchmark.name}: has no set {role!r}; there are {', '.join(sets)}")
        return sets[role], self.benchmark.transform_of(role)

    def bank(self, role: str) -> FeatureBank:
        """Return the bank of a set such as "train" or "near/tin": by the test transform, in order."""
        if role not in self._banks:
            model, method = self.model, self.model.method
            same = not model.truncate and (method is None or type(method).outputs is Method.outputs)
            if same:  # the features do not depend on truncation: a pass with it may have been made already
                model = ScoredModel(model.network, method, classifier=model.classifier)
            bank = build_bank(model, *self._set(role), folder=self.folder, batch_size=self.batch_size)
            self._banks[role] = bank.with_head(self.model.head) if same else bank
        return self._banks[role]

    @torch.no_grad()
    def fit(self, score: Score) -> Score:
        """Fit a score on the set it needs."""
        score.check_options()
        name, method = type(score).__name__, self.model.method
        if method is not None and score.reads not in method.readable:
            raise InputError(
                f"{name}: reads the last layer, and networks trained by {type(method).__name__} have none that makes "
                "their logits; leave it out"
            )
        if score.fitted_on == "val" and self.benchmark.val is None:
            raise InputError(f"{name}: is fitted on validation data, and {self.benchmark.name} has none; leave it out")
        if score.fitted_on:
            score.fit(self.bank(score.fitted_on), self.model.head)
        return score

    @torch.no_grad()
    def scores(self, score: Score, role: str) -> Tensor:
        """Return the scores of a whole set, (N,)."""
        if not score.needs_inputs:
            return score.scores(self.bank(role), self.model.head)
        loader = Loader(*self._set(role), batch_size=self.batch_size, device=self.model.device)
        of_inputs: Any = score
        return torch.cat([of_inputs.score_inputs(lambda x: self.model.outputs(x).logits, x).cpu() for x, _ in loader])

    def search(self, name: str, ood: str | None = None) -> Score:
        """Return the best of a score's sweep: the largest AUROC of ID against OOD validation data, the first on ties.

        Every combination is fitted anew, on the banks alone. `ood` is the role of the OOD set; by default
        `ood_validation`.
        """
        self._refresh()
        base = build_score(name, **self.options_for(name))
        if self.benchmark.val is None:
            raise InputError(f"{self.benchmark.name}: has no validation set to search on; give it one (val)")
        best, chosen = -1.0, base
        for values in itertools.product(*base.sweep.values()):
            score = self.fit(build_score(name, **(base.options | dict(zip(base.sweep, values, strict=True)))))
            area = self._validation_auroc(score, ood)
            if area > best:
                best, chosen = area, score
        return chosen if base.sweep else self.fit(base)

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
        return ITP_OPTIONS.get(self.benchmark.name, {}) if name == "itp" else {}

    def default_scores(self) -> tuple[str, ...]:
        """Return the names of the scores that fit this model and data and need no other pass."""
        there = (None, *(role for role in ("train", "val") if role in self.benchmark.sets()))
        names = [name for name in DEFAULT_SCORES if SCORES[name][0].fitted_on in there]
        method = self.model.method
        if method is not None:
            names = [name for name in names if SCORES[name][0].reads in method.readable]
            names += ["mos"] if method.score == "mos" else []
        return tuple(names)

    def table(
        self,
        scores: Iterable[str | Score] | None = None,
        *,
        search: bool = False,
        full_spectrum: bool = False,
        also: Sequence[str] = (),
    ) -> Table:
        """Evaluate scores on every near-OOD and far-OOD set.

        Args:
            scores: names, see `spcp.scores.SCORES`, or scores; by default `default_scores`.
            search: choose hyperparameters first, see `search`.
            full_spectrum: count the covariate-shifted sets as ID too.
            also: other roles to keep scores of, such as "val".
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
        for name, item in track(chosen.items(), "scores", len(chosen)):
            score = self.fit(item) if isinstance(item, Score) else self.fitted(name, search=search)
            for role in (*id_roles, *also, *ood_roles):
                kept[name, role] = self.scores(score, role)
            id_scores = torch.cat([kept[name, role] for role in id_roles])
            for group, datasets in groups.items():
                results = [
                    self._result(name, score, group, dataset, id_scores, kept[name, f"{group}/{dataset}"])
                    for dataset in datasets
                ]
                rows += [*results, _mean(results)]
        return Table(tuple(rows), kept)

    def _result(
        self, name: str, score: Score, group: str, dataset: str, id_scores: Tensor, ood_scores: Tensor
    ) -> Result:
        try:
            measured = metrics(id_scores, ood_scores)
        except InputError as error:
            raise InputError(f"{name} on {group}/{dataset}: {error}") from error
        values = {field.name: getattr(measured, field.name) for field in fields(measured)}
        return Result(name, score.options, group, dataset, accuracy=self.bank("test").accuracy(), **values)


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
    **options: Any,
) -> Table:
    """Evaluate scores on every set of a benchmark, for a run or a model.

    `search` and `full_spectrum` are those of `Evaluation.table`; `options` are `Evaluation`'s: `truncate`, `which`,
    `folder`, `batch_size`.
    """
    return Evaluation(model, benchmark, **options).table(scores, search=search, full_spectrum=full_spectrum)


def _label(score: Score) -> str:
    options = ", ".join(f"{key}={value}" for key, value in score.options.items())
    return f"{type(score).__name__}({options})" if options else type(score).__name__


def _mean(results: Sequence[Result]) -> Result:
    """Return the unweighted mean over sets."""
    first = results[0]
    means = {measure: sum(getattr(row, measure) for row in results) / len(results) for measure in MEASURES}
    return Result(first.score, first.options, first.group, "mean", accuracy=first.accuracy, **means)


def over_seeds(
    tables: Sequence[Table], score: str, group: str, dataset: str = "mean"
) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of each measure over runs; of a group, over the runs' group means."""
    rows = [table.get(score, group, dataset) for table in tables]
    return {measure: mean_and_deviation([getattr(row, measure) for row in rows]) for measure in MEASURES}
