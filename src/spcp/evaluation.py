"""Every detector on every set of a benchmark, after one pass over each; and the search for hyperparameters."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .calibration import build_score
from .contributions import effective_threshold, find_classifier
from .data import Benchmark, DataSet, ImageTransform, Loader, load_benchmark, noise, prepare
from .errors import InputError
from .features import Features, build_bank, device_of, model_key, outputs_of
from .files import written
from .methods import Method
from .metrics import mean_and_deviation, metrics
from .networks.base import evaluating
from .progress import track
from .runs import Run
from .scores import SCORES, Score, plain_head
from .scores.base import check_options

# What a detector is called when nothing is said; ODIN is not among them: it runs the network again.
USUAL = tuple(name for name in SCORES if name not in ("odin", "mos"))
NOISE = "ood_val/noise"
ITP = {  # its paper's settings, by benchmark
    "cifar10": {"p": 10, "l": 2.2},
    "cifar100": {"p": 20, "l": 1.6},
    "imagenet200": {"p": 30, "l": 1.5},
    "imagenet": {"p": 30, "l": 1.5},
}
MEASURES = ("fpr95", "auroc", "aupr_in", "aupr_out", "fpr95_id")
NAMES = {"fpr95": "FPR95", "auroc": "AUROC", "aupr_in": "AUPR-in", "aupr_out": "AUPR-out", "fpr95_id": "FPR95-id"}
CONVENTION = (
    "Percent. FPR95 is OpenOOD's: the share of ID that is flagged when 95 % of OOD is; FPR95-id the share of OOD that "
    "is accepted when 95 % of ID is."
)


@dataclass(frozen=True)
class Table:
    """Results, one row for each detector and set; near and far are the unweighted means over their sets.

    Rows have: detector, options, group ("near", "far", ...), set ("cifar100", ..., or "mean"), the measures in percent,
    intervals (`auroc_low`, `auroc_high`, ...), accuracy, n_id, n_ood.
    """

    rows: tuple[Mapping[str, Any], ...]
    scores: Mapping[tuple[str, str], Tensor]  # by detector and role: for paired tests and figures

    def get(self, detector: str, group: str, name: str = "mean") -> Mapping[str, Any]:
        """One row.

        >>> Table(({"detector": "msp", "group": "far", "set": "mean", "auroc": 90.0},), {}).get("msp", "far")["auroc"]
        90.0
        """
        for row in self.rows:
            if (row["detector"], row["group"], row["set"]) == (detector, group, name):
                return row
        raise InputError(f"the table has no row for {detector} on {group}/{name}")

    def csv(self) -> str:
        """All rows."""
        file = io.StringIO()
        keys = list(dict.fromkeys(key for row in self.rows for key in row))
        writer = csv.DictWriter(file, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: json.dumps(v) if isinstance(v, dict) else v for key, v in row.items()} for row in self.rows
        )
        return file.getvalue()

    def json(self) -> str:
        """All rows."""
        return json.dumps(list(self.rows), indent=1) + "\n"

    def markdown(self, measures: Sequence[str] = ("fpr95", "auroc")) -> str:
        """A line for each detector: `FPR95 / AUROC` on every set and group, the best in bold."""
        header, lines = self._cells(measures, "**{}**")
        rule = ["---"] * len(header)
        table = "\n".join("| " + " | ".join(own) + " |" for own in (header, rule, *lines))
        return f"{table}\n\n{CONVENTION} ID accuracy {self.rows[0]['accuracy']:.2f} %.\n"

    def latex(self, measures: Sequence[str] = ("fpr95", "auroc")) -> str:
        """The same, as a tabular."""
        header, lines = self._cells(measures, "\\textbf{{{}}}")
        body = [" & ".join(own).replace("_", "\\_").replace("%", "\\%") + " \\\\" for own in (header, *lines)]
        columns = "l" + "c" * (len(header) - 1)
        text = [f"% {CONVENTION}", f"\\begin{{tabular}}{{{columns}}}", "\\hline", body[0], "\\hline", *body[1:]]
        return "\n".join([*text, "\\hline", "\\end{tabular}", ""])

    def _cells(self, measures: Sequence[str], bold: str) -> tuple[list[str], list[list[str]]]:
        columns = list(dict.fromkeys((row["group"], row["set"]) for row in self.rows))
        names = list(dict.fromkeys(row["detector"] for row in self.rows))
        where = {(row["detector"], row["group"], row["set"]): row for row in self.rows}
        title = " / ".join(NAMES[measure] for measure in measures)
        header = [f"detector ({title})"]
        header += [f"{group} mean" if name == "mean" else name for group, name in columns]
        lines = [[name] for name in names]
        for column in columns:
            shown = []
            for name in names:
                row = where.get((name, *column), {})
                shown.append([f"{row[measure]:.2f}" if measure in row else "" for measure in measures])
            for i, measure in enumerate(measures):
                known = [float(own[i]) for own in shown if own[i]]
                best = (max if "au" in measure else min)(known, default=None)
                for own in shown:
                    if own[i] and float(own[i]) == best:
                        own[i] = bold.format(own[i])
            for line, own in zip(lines, shown, strict=True):
                line.append(" / ".join(own))
        return header, lines

    def save(self, path: str | Path) -> Path:
        """As .csv, .json, .md or .tex, by the ending."""
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
    """A network on a benchmark: one bank for each set, made when it is first asked for."""

    def __init__(
        self,
        model: nn.Module | str | Path,
        benchmark: Benchmark | str | None = None,
        *,
        method: Method | None = None,
        head: str | nn.Linear = "truncating",
        classifier: str | None = None,
        which: str = "last",
        network: nn.Module | None = None,
        folder: str | Path | None = None,
        batch_size: int = 256,
    ) -> None:
        if not isinstance(model, nn.Module):
            run = model if isinstance(model, Run) else Run.open(model)
            config = run.config
            if isinstance(benchmark, str):
                benchmark = load_benchmark(benchmark, config.root)
            benchmark = (benchmark or run.benchmark()).fewer(config.images)  # what it was trained on
            takes, gives = run.inputs.shape, benchmark.inputs().shape
            if takes != gives and network is None:
                raise InputError(
                    f"{run.folder}: its network takes samples {takes}, but those of {benchmark.name} are {gives}"
                )
            loaded = run.load(which, network=network, method=method)
            model, method = loaded.network, loaded.method
        if isinstance(benchmark, str):
            benchmark = load_benchmark(benchmark)
        if benchmark is None:
            raise InputError("a model needs a benchmark to be evaluated on; name one, such as digits")
        if not isinstance(head, nn.Linear) and head not in ("truncating", "plain"):
            raise InputError(f'head is {head!r}; it must be "truncating" or "plain", or a layer')
        self.model, self.benchmark, self.method = model, benchmark, method
        self.classifier, _ = find_classifier(model, classifier)
        self.given_head = head
        self.folder, self.batch_size = folder, batch_size
        self._banks: dict[str, Features] = {}
        self._key = ""

    @property
    def head(self) -> nn.Linear:
        """The layer that makes logits of features."""
        if isinstance(self.given_head, nn.Linear):
            return self.given_head
        model: Any = self.model
        own = model.get_submodule(self.classifier) if self.method is None else self.method.scoring_head(model)
        return plain_head(own) if self.given_head == "plain" else own

    def _refresh(self) -> None:
        """Forget the banks of a model that was changed."""
        key = model_key(self.model, self.method, self.classifier)
        if key != self._key:
            self._banks, self._key = {}, key

    def _set(self, role: str) -> tuple[DataSet, Any]:
        """The data of a role, and its transform."""
        known = self.benchmark.sets()
        if role == NOISE and role not in known and self.benchmark.val is not None:
            known[NOISE] = noise("gaussian", prepare(self.benchmark.val, self.benchmark.transform))
        if role not in known:
            raise InputError(f"{self.benchmark.name}: has no set {role!r}; there are {', '.join(known)}")
        return known[role], self.benchmark.transform_of(role)

    def features(self, role: str) -> Features:
        """Of the set "train" or "near/tin", say: by the test transform, in order."""
        if role not in self._banks:
            data, transform = self._set(role)
            found = build_bank(
                self.model,
                data,
                transform,
                method=self.method,
                classifier=self.classifier,
                folder=self.folder,
                batch_size=self.batch_size,
            )
            own: Any = self.model.get_submodule(self.classifier)
            bounded = effective_threshold(own) is not None
            changed = isinstance(self.given_head, nn.Linear) or (self.given_head == "plain" and bounded)
            self._banks[role] = found.with_head(self.head) if changed else found
        return self._banks[role]

    def fit(self, score: Score) -> Score:
        """Fit a score on the set it asks for."""
        check_options(score)
        name = type(score).__name__
        if self.method is not None and score.reads not in self.method.readable:
            raise InputError(
                f"{name}: looks at the last layer, and networks trained by {type(self.method).__name__} have none "
                "that makes their logits; leave it out"
            )
        if score.fitted_on == "val" and self.benchmark.val is None:
            raise InputError(f"{name}: is fitted on validation data, and {self.benchmark.name} has none; leave it out")
        with evaluating(self.model, self.method):
            if score.fitted_on:
                score.fit(self.features(score.fitted_on), self.head)
        return score

    def scores(self, score: Score, role: str) -> Tensor:
        """Of a whole set, (N,)."""
        with evaluating(self.model, self.method):
            if not score.needs_inputs:
                return score.scores(self.features(role), self.head)
            data, transform = self._set(role)
            loader = Loader(data, transform, batch_size=self.batch_size, device=device_of(self.model))
            own: Any = score
            outputs, head = outputs_of(self.model, self.method, self.classifier), self.head
            if self.given_head != "truncating":
                return torch.cat([own.score_inputs(lambda x: head(outputs(x)[0]), x).cpu() for x, _ in loader])
            return torch.cat([own.score_inputs(lambda x: outputs(x)[1], x).cpu() for x, _ in loader])

    def search(self, name: str, odd: str | None = None) -> Score:
        """The best of a detector's sweep: ID validation against OOD validation, largest AUROC, the first on ties.

        Every combination is fitted anew, on the banks alone. `odd` is the role of the OOD set; by default the
        benchmark's first for validation, and where it has none, Gaussian noise like the validation set.
        """
        self._refresh()
        kind = build_score(name, **self.options(name))
        if self.benchmark.val is None:
            raise InputError(f"{self.benchmark.name}: has no validation set to search on; give it one (val)")
        odd = odd or self.odd_validation
        best, found = -1.0, kind
        for values in itertools.product(*kind.sweep.values()):
            score = self.fit(build_score(name, **(kind.options | dict(zip(kind.sweep, values, strict=True)))))
            area = metrics(self.scores(score, "val"), self.scores(score, odd), resamples=1).auroc
            if area > best:
                best, found = area, score
        return found if kind.sweep else self.fit(kind)

    def validation_auroc(self, name: str, odd: str | None = None) -> float:
        """Of a detector on ID validation against OOD validation data, in percent; see `search` for `odd`."""
        score, odd = self.fitted(name), odd or self.odd_validation
        return metrics(self.scores(score, "val"), self.scores(score, odd), resamples=1).auroc * 100

    @property
    def odd_validation(self) -> str:
        """The role of the first OOD validation set; where there is none, Gaussian noise like the validation set."""
        return next((role for role in self.benchmark.sets() if role.startswith("ood_val/")), NOISE)

    def fitted(self, name: str, *, search: bool = False) -> Score:
        """A detector by name, with what this network and benchmark ask for, fitted; hyperparameters by `search`."""
        return self.search(name) if search else self.fit(build_score(name, **self.options(name)))

    def options(self, name: str) -> dict[str, Any]:
        """What a detector has to be told about this network."""
        if self.method is not None and name == self.method.score:
            return dict(self.method.score_options)
        if name == "itp" and self.benchmark.name in ITP:
            return ITP[self.benchmark.name]
        transform = self.benchmark.transform
        if name == "odin" and isinstance(transform, ImageTransform):
            return {"std": transform.std}
        return {}

    def usual(self) -> tuple[str, ...]:
        """The detectors that make sense for this network and data, without another pass."""
        there = (None, *(role for role in ("train", "val") if role in self.benchmark.sets()))
        own = [name for name in USUAL if SCORES[name][0].fitted_on in there]
        if self.method is None:
            return tuple(own)
        own = [name for name in own if SCORES[name][0].reads in self.method.readable]
        return (*own, "mos") if self.method.score == "mos" else tuple(own)

    def table(
        self,
        detectors: Iterable[str | Score] | None = None,
        *,
        search: bool = False,
        full_spectrum: bool = False,
        also: Sequence[str] = (),
    ) -> Table:
        """Every detector on every near and far set.

        Args:
            detectors: names, see `spcp.scores.SCORES`, or scores of one's own; by default all that make sense.
            search: choose hyperparameters first, see `search`.
            full_spectrum: count the shifted sets as ID too.
            also: other roles to keep scores of, such as "val".
        """
        self._refresh()
        chosen = {own if isinstance(own, str) else _named(own): own for own in detectors or self.usual()}
        if not self.benchmark.near and not self.benchmark.far:
            raise InputError(f"{self.benchmark.name}: has no near or far sets to evaluate on; give it some")
        groups = {"near": list(self.benchmark.near), "far": list(self.benchmark.far)}
        shifted = [f"shifted/{name}" for name in self.benchmark.shifted] if full_spectrum else []
        rows: list[dict[str, Any]] = []
        kept: dict[tuple[str, str], Tensor] = {}
        accuracy = self.features("test").accuracy() * 100
        for name, own_score in track(chosen.items(), "detectors", len(chosen)):
            score = self.fit(own_score) if isinstance(own_score, Score) else self.fitted(name, search=search)
            for role in (
                "test",
                *also,
                *shifted,
                *(f"{group}/{own}" for group, sets in groups.items() for own in sets),
            ):
                kept[name, role] = self.scores(score, role)
            known = torch.cat([kept[name, role] for role in ("test", *shifted)])
            for group, sets in groups.items():
                if not sets:
                    continue
                own = [self._row(name, score, group, one, known, kept[name, f"{group}/{one}"]) for one in sets]
                mean = {key: sum(row[key] for row in own) / len(own) for key in MEASURES}
                rows += own
                rows.append({"detector": name, "options": score.options, "group": group, "set": "mean", **mean})
        return Table(tuple(row | {"accuracy": accuracy} for row in rows), kept)

    def _row(self, name: str, score: Score, group: str, one: str, known: Tensor, odd: Tensor) -> dict[str, Any]:
        try:
            found = metrics(known, odd)
        except InputError as error:
            raise InputError(f"{name} on {group}/{one}: {error}") from error
        row: dict[str, Any] = {"detector": name, "options": score.options, "group": group, "set": one}
        row |= {measure: getattr(found, measure) * 100 for measure in MEASURES}
        for measure in ("auroc", "fpr95"):
            low, high = getattr(found, f"{measure}_interval")
            row |= {f"{measure}_low": low * 100, f"{measure}_high": high * 100}
        return row | {"n_id": found.n_id, "n_ood": found.n_ood}


def evaluate(
    model: nn.Module | str | Path,
    benchmark: Benchmark | str | None = None,
    detectors: Iterable[str | Score] | None = None,
    *,
    search: bool = False,
    full_spectrum: bool = False,
    **options: Any,
) -> Table:
    """A table of every detector on every set, for a model or the folder of a run.

    `options` are `Evaluation`'s: `head`, `classifier`, `which` ("last" or "best" weights of a run), `network` (a run's
    own model), `folder` for banks.
    """
    own = Evaluation(model, benchmark, **options)
    return own.table(detectors, search=search, full_spectrum=full_spectrum)


def _named(score: Score) -> str:
    options = ", ".join(f"{key}={value}" for key, value in score.options.items())
    return f"{type(score).__name__}({options})" if options else type(score).__name__


def over_seeds(
    tables: Sequence[Table], detector: str, group: str, name: str = "mean"
) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each measure over runs; a group's deviation is that of the runs' group means."""
    rows = [table.get(detector, group, name) for table in tables]
    return {measure: mean_and_deviation([row[measure] for row in rows]) for measure in MEASURES}
