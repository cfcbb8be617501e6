"""Which score? Detectors are tried on outliers, and the best is chosen where there is OOD data to choose by."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .bank import FeatureBank, batches_of
from .conformal import split
from .data import TensorSet, proxies
from .detector import Detector
from .errors import InputError
from .metrics import Interval, metrics, rate_interval
from .model import ScoredModel
from .scores import DEFAULT, applicable, build_score
from .tables import to_markdown

_log = logging.getLogger("spcp")

By = Literal["detection_rate", "auroc"]
MARGIN: Mapping[By, float] = {"detection_rate": 0.05, "auroc": 0.02}  # by which a score must beat the first candidate


@dataclass(frozen=True)
class Trial:
    """A calibrated detector on one set of outliers."""

    dataset: str  # "ood_val/cars": given; "proxy/noise": made of ID samples
    samples: int
    auroc: float  # against the calibration samples
    detection_rate: float
    interval: Interval  # of the detection rate

    @property
    def given(self) -> bool:
        """Whether the set is OOD data, and not made of ID samples."""
        return not self.dataset.startswith("proxy/")


@dataclass(frozen=True)
class Candidate:
    """A score that was tried."""

    score: str
    trials: tuple[Trial, ...]
    problem: str  # why it must not be chosen; "" if nothing speaks against it

    def mean(self, by: By) -> float:
        """Return the mean over the given OOD sets and that over the proxies, averaged: they count as one half each.

        Given sets show one kind of outlier, often a near one; proxies are a check on others.
        """
        means = [self.mean_of(by, given) for given in (True, False) if any(t.given is given for t in self.trials)]
        return sum(means) / len(means)

    def mean_of(self, by: By, given: bool) -> float:
        """Return the mean over the given OOD sets, or over the proxies; NaN if there are none."""
        values = [getattr(trial, by) for trial in self.trials if trial.given is given]
        return sum(values) / len(values) if values else math.nan


@dataclass(frozen=True)
class Choice:
    """Which score was chosen, and why."""

    score: str
    reason: str
    candidates: tuple[Candidate, ...] = ()
    by: By = "detection_rate"  # what they were compared by

    def as_json(self) -> dict[str, Any]:
        """Return the record as JSON holds it; `from_json` reads it again."""
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Choice:
        """Return the choice that a detector's notes hold: `Choice.from_json(detector.notes["choice"])`."""
        candidates = [
            Candidate(one["score"], trials_from_json(one["trials"]), one["problem"]) for one in table["candidates"]
        ]
        return cls(table["score"], table["reason"], tuple(candidates), table.get("by", "detection_rate"))

    def table(self, most: int = 8) -> str:
        """Write the best candidates, in percent."""
        shown = sorted(self.candidates, key=lambda one: (one.score != self.score, -one.mean(self.by)))[:most]
        lines = [
            [f"{one.score} (chosen)" if one.score == self.score else one.score]
            + [_percent(one.mean_of("detection_rate", given)) for given in (True, False)]
            + [_percent(one.mean("auroc")), one.problem]
            for one in shown
        ]
        header = ["score", "detected of OOD data", "detected of proxies", "AUROC", "against it"]
        return to_markdown(header, lines) if lines else ""


def _percent(rate: float) -> str:
    return "" if math.isnan(rate) else f"{100 * rate:.1f}"


def trials_from_json(rows: Iterable[Mapping[str, Any]]) -> tuple[Trial, ...]:
    """Return the trials that a detector's notes hold, or a candidate's."""
    return tuple(Trial(**{**row, "interval": tuple(row["interval"])}) for row in rows)


def try_detector(detector: Detector, sets: Mapping[str, Any]) -> tuple[Trial, ...]:
    """Try a calibrated detector on sets of outliers: inputs, or their banks."""
    trials = []
    for name, data in sets.items():
        detection = detector.detect(data)
        count, flagged = len(detection.is_ood), int(detection.is_ood.sum())
        scores = detection.scores.masked_fill(detection.scores.isnan(), -math.inf)  # flagged, whatever the threshold
        area = metrics(detector.calibration_scores, scores, resamples=1).auroc
        trials.append(Trial(name, count, area, flagged / count, rate_interval(flagged, count)))
    return tuple(trials)


def problem(trials: Sequence[Trial], alpha: float) -> str:
    """Say where a detector is blind, or return "".

    It is where outliers score above ID samples (AUROC below 50 %), or where noise, OOD data, or proxies on average are
    flagged less than twice as often as ID samples may be.

    >>> problem([Trial("proxy/noise", 200, 0.0, 0.01, (0.0, 0.03))], 0.05)
    'AUROC 0.0, detection rate 1.0 % on proxy/noise'
    """
    proxies = [trial for trial in trials if not trial.given]
    weak = bool(proxies) and sum(trial.detection_rate for trial in proxies) / len(proxies) < 2 * alpha
    blind = [
        trial
        for trial in trials
        if trial.auroc < 0.5
        or (trial.detection_rate < 2 * alpha and (trial.given or trial.dataset == "proxy/noise" or weak))
    ]
    return "; ".join(
        f"AUROC {100 * trial.auroc:.1f}, detection rate {100 * trial.detection_rate:.1f} % on {trial.dataset}"
        for trial in blind
    )


def misranked(trials: Sequence[Trial], id_samples: int) -> str:
    """Say where outliers score above ID samples, by more than chance; or return "".

    Looks at OOD data, at noise, and at all proxies together: an AUROC of two standard errors below 50 %. Unlike
    `problem`, it does not ask for detection rates: at the threshold of a few samples those on proxies are often low
    where those on real OOD data are high.

    Args:
        trials: what the detector was tried on.
        id_samples: the number of ID samples that it was compared with.

    >>> made = [Trial("proxy/noise", 200, 0.0, 0.01, (0.0, 0.03)), Trial("proxy/blended", 200, 0.9, 0.3, (0.2, 0.4))]
    >>> misranked(made, 100), misranked(made[1:], 100)
    ('AUROC 0.0 on proxy/noise', '')
    """
    areas = [(one.dataset, one.auroc, one.samples) for one in trials if one.given or one.dataset == "proxy/noise"]
    made = [one for one in trials if not one.given]
    if made:  # of the same ID samples, so they count once
        areas.append(("proxies", sum(one.auroc for one in made) / len(made), min(one.samples for one in made)))

    def least(samples: int) -> float:  # what chance explains: the standard error of the U statistic
        return 0.5 - 2 * math.sqrt((samples + id_samples + 1) / (12 * samples * id_samples))

    places = [f"{100 * area:.1f} on {name}" for name, area, samples in areas if area < least(samples)]
    return f"AUROC {', '.join(places)}" if places else ""


def note_trials(detector: Detector, choice: Choice, trials: Sequence[Trial], *, truncates: bool = False) -> None:
    """Note how a detector's score was chosen and what it was tried on, and warn where it is blind."""
    assert detector.alpha is not None
    detector.notes |= {"choice": choice.as_json(), "trials": [asdict(trial) for trial in trials]}
    blind = problem(trials, detector.alpha)
    if blind:
        text = "%s: this detector is blind to some inputs (%s); try %s"
        *others, last = _cures(choice, any(trial.given for trial in trials), truncates)
        _log.error(text, choice.score, blind, f"{', '.join(others)} or {last}" if others else last)  # also with --quiet


def _cures(choice: Choice, has_ood: bool, truncates: bool) -> list[str]:
    """Return what is left to try against blindness."""
    training = ["training with --rho-norm 0"] if truncates else []
    if choice.candidates:  # the other scores were tried
        return [*training, "another network"]
    names = [DEFAULT] * (choice.score != DEFAULT) + ["auto"] * has_ood
    named = [f"spcp calibrate RUN --score {name}" for name in names]
    return [*named, *training, "another score, which spcp scores lists"]


def choose(
    model: ScoredModel,
    candidates: Mapping[str, Mapping[str, Any]],
    *,
    val: FeatureBank,
    train: FeatureBank | None = None,
    ood: Mapping[str, FeatureBank],
    alpha: float = 0.05,
    by: By = "detection_rate",
) -> Choice:
    """Choose the score whose detector flags most outliers at a false alarm rate of alpha.

    All candidates are calibrated on the same part of `val`, so chance favours none. The shipped detector needs other ID
    samples: the best of many on these is better on them than it is. For the same reason the first candidate is kept
    unless another is better by more than `MARGIN`. A candidate that is blind somewhere (`problem`) is chosen only if
    all are.

    Args:
        model: the network.
        candidates: the options of the scores to try, by name, the one to keep if no other is clearly better first.
        val: ID samples, not for the final threshold.
        train: the training data, for scores that are fitted on it.
        ood: OOD validation sets ("ood_val/cars") and proxies ("proxy/noise"), which count as one half each; either may
            be missing.
        alpha: the false alarm rate at which detection rates are compared.
        by: "detection_rate", or "auroc"; the other one decides between equals.
    """
    if by not in ("detection_rate", "auroc"):
        raise InputError(f'by = {by!r} must be "detection_rate" or "auroc"')
    if not ood or not candidates:
        raise InputError("there are no OOD sets to choose by, or no scores to choose from; give some")
    tried = []
    reference, rest = (val.take(rows) for rows in split(len(val), alpha))
    for name, options in candidates.items():
        detector = Detector(model, build_score(name, **options))
        if train is not None:
            detector.fit(train)
        trials = try_detector(detector.fit_held_out(reference).calibrate(rest, alpha), ood)
        tried.append(Candidate(name, trials, problem(trials, alpha)))
    other: By = "auroc" if by == "detection_rate" else "detection_rate"
    best, first = max(tried, key=lambda one: (not one.problem, one.mean(by), one.mean(other))), tried[0]
    measure = f"mean {'AUROC' if by == 'auroc' else f'detection rate at alpha = {alpha:g}'} on {', '.join(ood)}"
    if bool(first.problem) == bool(best.problem) and best.mean(by) <= first.mean(by) + MARGIN[by]:
        reason = f"none of {len(tried)} scores is more than {100 * MARGIN[by]:g} points better by {measure}"
        return Choice(first.score, f"{reason}: {100 * first.mean(by):.1f} %", tuple(tried), by)
    reason = f"the largest {measure}, of {len(tried)} scores: {100 * best.mean(by):.1f} %"
    return Choice(best.score, reason, tuple(tried), by)


def _outliers(batches: Sequence[tuple[Tensor, Tensor]], rows: Tensor) -> dict[str, Tensor]:
    """Make outliers of some of the inputs and labels in batches; none where inputs are not floats of one shape."""
    if any(not x.is_floating_point() or x.shape[1:] != batches[0][0].shape[1:] for x, _ in batches):
        return {}
    x, y = (torch.cat(tensors)[rows] for tensors in zip(*batches, strict=True))
    return {f"proxy/{name}": made.x.to(x) for name, made in proxies(TensorSet("val", x, y)).items()}


def auto_detector(
    model: nn.Module | ScoredModel,
    val: Any,
    *,
    ood: Mapping[str, Any],
    train: Any = None,
    alpha: float = 0.05,
    by: By = "detection_rate",
) -> Detector:
    """Return a calibrated detector whose score was chosen on OOD data (`choose`); its `notes` say why.

    The score is chosen on one part of `val` and calibrated on the other, so the guarantee of `Detector.calibrate`
    holds. Where `val` holds inputs, and not their bank, outliers that are made of the first part (`spcp.data.proxies`)
    count as one half. A warning says on which outliers the detector is blind.

    Args:
        model: any classifier, or a `ScoredModel`.
        val: ID samples that the network was not trained on: inputs and labels in batches, a tensor, or their bank.
        ood: OOD samples by name, in any of these forms.
        train: the training data; without it, scores that are fitted on it are left out.
        alpha: the largest false alarm rate.
        by: see `choose`.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> detector = auto_detector(model, torch.randn(200, 4), ood={"far": 9 * torch.randn(50, 4)})
        >>> len(detector.calibration_scores)
        99
    """
    scored = model if isinstance(model, ScoredModel) else ScoredModel(model)
    of = Detector(scored).bank  # features of anything that holds samples
    batches = None if isinstance(val, FeatureBank) else list(batches_of(val))
    held_out, fitted = of(val if batches is None else batches), None if train is None else of(train)
    sets = {f"ood_val/{name}": of(data) for name, data in ood.items()}
    readable = None if scored.method is None else scored.method.readable
    names = applicable(["val"] if train is None else ["train", "val"], readable)
    chosen_on, others = split(len(held_out), alpha, choosing=True)
    reference, rest = held_out.take(chosen_on), held_out.take(others)
    if batches is not None:
        sets |= {name: of(x) for name, x in _outliers(batches, chosen_on).items()}
    candidates: dict[str, dict[str, Any]] = {name: {} for name in (DEFAULT, *names)}
    choice = choose(scored, candidates, val=reference, train=fitted, ood=sets, alpha=alpha, by=by)
    detector = Detector(scored, choice.score)
    if fitted is not None:
        detector.fit(fitted)
    detector.fit_held_out(reference).calibrate(rest, alpha)
    note_trials(detector, choice, try_detector(detector, sets))
    return detector
