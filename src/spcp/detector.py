"""A detector: a model, a score, and a threshold that is calibrated on in-distribution samples."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from .bank import FeatureBank, batches_of, extract, inputs_at_once
from .conformal import calibrated, p_values, split
from .contributions import Explanation, SPCPLinear, Truncation, apply_spcp, explanations_of, find_classifier
from .data import Inputs
from .errors import InputError, check_numbers
from .export import export
from .files import read_tensors, write_tensors
from .methods import METHODS, Method
from .model import ScoredModel, is_untrained
from .scores import DEFAULT, SCORES, Consensus, Score, build_score, name_of
from .scores.base import entering

_log = logging.getLogger("spcp")
_WARNED = WeakSet[nn.Module]()  # about networks with random weights, once each: many scores may be tried with one
_CALIBRATION = ("calibration_scores", "group_starts", "score_thresholds")
_ABOUT: Mapping[str, Any] = {  # what a file says about a detector, and of which type it is
    **dict.fromkeys(("score", "classifier"), str),
    **dict.fromkeys(("options", "notes"), dict),
    **dict.fromkeys(("truncate", "by_class"), bool),
    **dict.fromkeys(("alpha", "delta"), float | None),
    "method": dict | None,
}
_SHARE = (float, math.nextafter(0, 1), math.nextafter(1, 0))  # between 0 and 1


class Detection(NamedTuple):
    """What a detector decides about a batch.

    Attributes:
        predictions: the predicted class, (B,).
        scores: larger is more in-distribution, (B,).
        p_values: small for samples unlike the calibration data, (B,).
        is_ood: whether the sample is flagged as out-of-distribution, (B,) bool.
    """

    predictions: Tensor
    scores: Tensor
    p_values: Tensor
    is_ood: Tensor


@dataclass(frozen=True, eq=False)
class Reasons:
    """Why a detector decided about a sample as it did.

    Attributes:
        prediction: the predicted class.
        score: larger is more in-distribution.
        p_value: small for a sample unlike the calibration data.
        is_ood: whether it is flagged.
        members: the p-value of each member of a consensus, the smallest first; of another score, its own.
        contributions: which features carried the prediction; None where no single linear layer makes the logits.
        alpha: the false alarm rate that the detector is calibrated for.
    """

    prediction: int
    score: float
    p_value: float
    is_ood: bool
    members: Mapping[str, float]
    contributions: Explanation | None
    alpha: float = 0.05

    def raised_by(self, alpha: float | None = None) -> list[str]:
        """Return the members for which the sample alone would be among the alpha least usual ID samples.

        By default alpha is the detector's. Where members flag a sample only together, it is the one with the smallest
        p-value.
        """
        raised = [name for name, p in self.members.items() if p <= (self.alpha if alpha is None else alpha)]
        return raised or list(self.members)[: int(self.is_ood)]

    def __str__(self) -> str:
        verdict = "OOD" if self.is_ood else "ID"
        members = ", ".join(f"{name} {p:.3g}" for name, p in self.members.items())
        return f"{verdict}, p = {self.p_value:.3g} ({members})\n{self.contributions or ''}".rstrip()


class Detector(nn.Module):
    """A model, a score, and a calibrated threshold: a sample that scores below it is flagged as OOD.

    Threads may share a detector; its network is run as it is and never changed, see `ScoredModel`. `notes` are the
    user's, in JSON: they go into its file. `calibrate_run` notes which score it chose, and what it was tried on.

    Args:
        model: any classifier, or a `ScoredModel`, which brings the other three arguments along.
        score: the name of a score, or a `Score`; "energy" is the paper's.
        truncate: False scores the network as if its SPCP heads were plain linear layers.
        method: the training method, where features, logits or predictions are not those of the network alone.
        classifier: the dotted name of the layer that makes the logits, where it cannot be inferred.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> detector = Detector(model).fit([(torch.randn(300, 4), torch.randint(3, (300,)))])  # training data
        >>> detector = detector.calibrate(torch.randn(200, 4), alpha=0.05)
        >>> detector.detect(torch.randn(2, 4)).is_ood.shape
        torch.Size([2])
    """

    calibration_scores: Tensor  # (n,) sorted; class after class if by class
    group_starts: Tensor  # (groups + 1,) where the scores of each class begin
    score_thresholds: Tensor  # (groups,)

    def __init__(
        self,
        model: nn.Module | ScoredModel,
        score: str | Score = DEFAULT,
        *,
        truncate: bool = True,
        method: Method | None = None,
        classifier: str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, ScoredModel):
            model = ScoredModel(model, method, classifier=classifier, truncate=truncate)
        self.model = model
        self.score = build_score(score) if isinstance(score, str) else score
        self.score.check_options()
        if model.method is not None:
            self.score.check_readable(model.method.readable, type(model.method).__name__)
        self.splits = "val" in self.score.fitted_on and not self.score.is_fitted
        self.notes: dict[str, Any] = {}
        self.alpha: float | None = None
        self.delta: float | None = None
        self.by_class = False
        self.class_counts: list[int] | None = None  # how often calibration samples were taken for each class
        self.register_buffer("calibration_scores", torch.zeros(0))
        self.register_buffer("group_starts", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("score_thresholds", torch.zeros(0))

    def bank(self, data: Any) -> FeatureBank:
        """Return the features of a tensor of inputs or of batches of them; a bank gets the logits of this head."""
        if not isinstance(data, FeatureBank):
            return extract(self.model, data)
        return data if self.model.truncate else data.with_head(self.model.head)

    @torch.no_grad()
    def fit(self, data: Any) -> Self:
        """Fit the score on the training data (inputs and labels in batches, or their bank), if it needs that."""
        if "train" in self.score.fitted_on:
            self.score.fit(self.bank(data), self.model.head)
        return self

    @torch.no_grad()
    def fit_held_out(self, data: Any) -> Self:
        """Fit the score on ID samples that are neither training nor calibration data, if it needs them.

        Otherwise `calibrate` sets some of its samples apart for that.
        """
        if "val" in self.score.fitted_on:
            self._fit_held_out(self.bank(data))
            self.splits = False
        return self

    def _fit_held_out(self, bank: FeatureBank) -> None:
        bank.check_finite()
        self.score.fit_held_out(bank, self.model.head)

    @torch.no_grad()
    def scores(self, data: Any) -> tuple[Tensor, Tensor]:
        """Return the predictions and scores, (N,) each, of inputs (a tensor, or batches) or of a bank."""
        if self.score.needs_inputs:
            return self._scores_of_inputs(data)
        at_once = min(inputs_at_once(data), self.score.rows) if isinstance(data, Tensor) else 0
        if at_once and 0 < len(data) <= at_once:  # needs no bank
            (h, z, predictions), head = self.model.run(data.to(self.model.device))
            return predictions.cpu(), self.score(h.float(), z.float(), head).cpu()
        bank = self.bank(data)
        return bank.predictions, self.score.scores(bank, self.model.head)

    def _scores_of_inputs(self, data: Any) -> tuple[Tensor, Tensor]:
        if isinstance(data, FeatureBank):
            raise InputError(f"{type(self.score).__name__} needs inputs, not features; give it batches of them")
        score: Any = self.score
        parts = []
        for x, _ in batches_of(data):
            x = x.to(self.model.device)
            scores = score.score_inputs(lambda inputs: self.model.outputs(inputs).logits, x)
            parts.append((self.model.outputs(x).predictions.cpu(), scores.cpu()))
        predictions, all_scores = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return predictions, all_scores

    def calibrate(self, data: Any, alpha: float = 0.05, *, delta: float | None = None, by_class: bool = False) -> Self:
        """Set the threshold on ID samples that neither the network nor the score was fitted or chosen on.

        Where the score needs held-out ID samples itself, as a consensus does for its p-values, and was not given any by
        `fit_held_out`, a part of `data` is for the score and the rest for the threshold, so that the guarantee is
        exact: see `spcp.conformal.split`.

        Args:
            data: inputs (a tensor, or batches), or their bank.
            alpha: the largest false alarm rate, in expectation over the calibration draw.
            delta: if given, the false alarm rate is at most alpha with probability 1 - delta over the draw.
            by_class: set a threshold for each predicted class, so that the guarantee holds within each.
        """
        if is_untrained(self.model.network) and self.model.network not in _WARNED:
            _WARNED.add(self.model.network)
            _log.warning("the network has random weights: its normalisation layers are as they were made; load some")
        if self.splits:
            if isinstance(self.score, Consensus) and self.score.members is None:
                _log.warning("the consensus has no training data, and takes scores of logits alone; call fit with some")
            bank = self.bank(data)
            reference, rest = split(len(bank), alpha, delta)
            self._fit_held_out(bank.take(reference))
            data = bank.take(rest)
        predictions, scores = self.scores(data)
        groups, thresholds = calibrated(scores, predictions if by_class else None, self.model.num_classes, alpha, delta)
        self.alpha, self.delta, self.by_class = alpha, delta, by_class
        self.class_counts = torch.bincount(predictions, minlength=self.model.num_classes).tolist()
        device = self.model.device
        self.calibration_scores = torch.cat(groups).to(device)
        self.group_starts = torch.tensor([0, *map(len, groups)], device=device).cumsum(0)
        self.score_thresholds = thresholds.to(device)
        return self

    def decide(self, predictions: Tensor, scores: Tensor) -> Detection:
        """Compare scores with the threshold, and with the calibration scores for their p-values."""
        self._check_calibrated()
        calibration, thresholds = self.calibration_scores.cpu(), self.score_thresholds.cpu()
        if not self.by_class:
            p, threshold = p_values(scores, calibration), thresholds  # (1,)
        else:
            p, threshold = torch.zeros(len(scores), dtype=torch.float64), thresholds[predictions]
            starts = self.group_starts.tolist()
            for k in predictions.unique().tolist():
                p[predictions == k] = p_values(scores[predictions == k], calibration[starts[k] : starts[k + 1]])
        return Detection(predictions, scores, p, ~(scores >= threshold))  # flagged also where the score is NaN

    def detect(self, data: Any) -> Detection:
        """Detect OOD samples among inputs (a tensor, or batches of them) or in a bank."""
        self._check_calibrated()
        try:
            return self.decide(*self.scores(data))
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(data, Tensor | np.ndarray) and self._takes(torch.as_tensor(data)[None]):
                raise InputError(
                    f"an input of shape {tuple(data.shape)} has no batch dimension; give a batch, x[None] for one input"
                ) from error
            raise

    @torch.no_grad()
    def _takes(self, x: Tensor) -> bool:
        """Tell whether the network can be run on a batch."""
        try:
            self.model.outputs(x.to(self.model.device))
            return True
        except (RuntimeError, ValueError, IndexError):
            return False

    @torch.no_grad()
    def explain(self, data: Any) -> list[Reasons]:
        """Say for each input what the decision about it is, which members raised it, and on which features.

        It takes what `detect` takes: inputs (a tensor, or batches of them), or a bank. The p-values of members are
        shares of held-out ID samples that score lower; the decision's own p-value is that of their combination.
        """
        if self.score.needs_inputs and not isinstance(data, Tensor | np.ndarray | FeatureBank):
            data = list(batches_of(data))  # is gone through twice
        bank = self.bank(data)
        detection = self.detect(data if self.score.needs_inputs else bank)
        names, p = [name_of(self.score)], detection.p_values[:, None]
        contributions: Sequence[Explanation | None] = [None] * len(bank)
        features, logits = bank.features.to(self.model.device), bank.logits.to(self.model.device)
        head, method = self.model.head, self.model.method
        if isinstance(self.score, Consensus):
            names = list(self.score.parts)
            p = self.score.log_p_values(features, logits, head).exp().nan_to_num(0.0).cpu()  # NaN: as in `p_values`
        if method is None or "weights" in method.readable:
            contributions = explanations_of(entering(features, head), logits, head)
        reasons = []
        columns = zip(*(column.tolist() for column in detection), p.tolist(), contributions, strict=True)
        for prediction, score, p_value, is_ood, values, explanation in columns:
            members = dict(sorted(zip(names, values, strict=True), key=lambda item: item[1]))
            reasons.append(Reasons(prediction, score, p_value, is_ood, members, explanation, self.alpha or 0.0))
        return reasons

    def _check_calibrated(self) -> None:
        if self.alpha is None:
            raise InputError("the detector has no threshold yet; call calibrate with ID samples first")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return predictions, scores and `is_ood` of a batch, as one graph: for export."""
        if self.alpha is None or self.score.needs_inputs:
            raise InputError("the detector cannot be run as one graph; calibrate it, and choose a score of features")
        (features, logits, predictions), head = self.model.run(x)
        scores = self.score(features, logits, head)
        threshold = self.score_thresholds[predictions] if self.by_class else self.score_thresholds[0]
        return predictions, scores, ~(scores >= threshold)

    def save(self, path: str | Path, notes: Mapping[str, Any] | None = None) -> Path:
        """Save weights, score, calibration and notes in one safetensors file; `notes` are added to the detector's."""
        path = Path(path).expanduser()
        about: dict[str, Any] = {
            "score": name_of(self.score),
            "options": self.score.options,
            "truncate": self.model.truncate,
            "classifier": self.model.classifier,
            "alpha": self.alpha,
            "delta": self.delta,
            "by_class": self.by_class,
            "splits": self.splits,
            "class_counts": self.class_counts,
            "method": _description(self.model.method),
            "notes": self.notes | dict(notes or {}),
        }
        self._check_calibration()
        transient = _transient(self.model.method)
        tensors = {name: tensor for name, tensor in self.state_dict().items() if name not in transient}
        write_tensors(path, tensors, {"detector": json.dumps(about)})
        return path

    def export(
        self,
        path: str | Path,
        samples: Tensor | Sequence[np.ndarray],
        *,
        inputs: Inputs | None = None,
        preprocessing: bool = False,
        notes: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the detector as a file that runs without this library, and check it on samples.

        From a batch of any size it makes the prediction, logits, score, p-value and `is_ood` of each sample. On the
        samples, its logits and scores may differ from the detector's by 1e-4. `spcp.exported.ExportedDetector` opens an
        ONNX file, and so does everything that runs ONNX.

        Args:
            path: the file to write: .onnx, or .pt2 for a program of `torch.export`.
            samples: some inputs, as the file will get them: a tensor of prepared ones, or images if `preprocessing`.
            inputs: what the network expects of its inputs, and the names of its classes, for the file's metadata.
            preprocessing: put the test transform into the file: it takes images, as bytes (B, H, W, C) of any size.
            notes: more for the metadata, in JSON.
        """
        return export(self, path, samples, inputs=inputs, preprocessing=preprocessing, notes=notes)

    @classmethod
    def load(cls, path: str | Path, network: nn.Module, score: Score | None = None) -> Self:
        """Load a detector from its file.

        Args:
            path: the file that `save` wrote.
            network: the network, built anew, with any weights.
            score: a score of the class that was saved, where that is not among `spcp.scores.SCORES`.
        """
        path = Path(path).expanduser()
        tensors, about = _read(path)
        try:
            return cls._from(path, tensors, about, network, score)
        except InputError as error:
            raise InputError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise InputError(f"{path}: cannot be loaded ({error}); calibrate it again") from error

    @classmethod
    def _from(
        cls, path: Path, tensors: dict[str, Tensor], about: dict[str, Any], network: nn.Module, score: Score | None
    ) -> Self:
        """Make a detector of what its file holds."""
        method = _rebuilt(about["method"], network)
        name, head = find_classifier(network, about["classifier"])
        truncates = f"model.network.{name}.threshold" in tensors
        if truncates and not isinstance(head, SPCPLinear):
            apply_spcp(network, rho_norm=0.0, classifier=name)  # its hyperparameters are in the file
        if not truncates and isinstance(head, SPCPLinear):
            raise InputError(f"{path}: is of a network without SPCP, but this one truncates; give a plain one")
        if score is None:
            if about["score"] not in SCORES:
                raise InputError(f"{path}: {about['score']} is not a score of this library; give it as score=...")
            score = build_score(about["score"], **about["options"])
        detector = cls(ScoredModel(network, method, classifier=name, truncate=about["truncate"]), score)
        detector.alpha, detector.delta, detector.by_class = about["alpha"], about["delta"], about["by_class"]
        detector.splits, detector.notes = about.get("splits", False), about["notes"]
        detector.class_counts = about.get("class_counts")
        for name in _CALIBRATION:
            setattr(detector, name, torch.empty_like(tensors[name]))
        try:
            missing, unexpected = detector.load_state_dict(tensors, strict=False)
            wrong = [*unexpected, *(set(missing) - _transient(method))]
        except RuntimeError as error:
            wrong = [str(error).splitlines()[1].strip()]
        if wrong:
            raise InputError(f"{path}: is for another network ({wrong[0]}); build the one it was saved with")
        detector._check_calibration()
        return detector.to(detector.model.device).eval()

    def _check_calibration(self) -> None:
        """Raise an error where threshold and calibration scores cannot have come from `calibrate`."""
        if self.alpha is None:
            return
        check_numbers(vars(self), dict.fromkeys(["alpha"] if self.delta is None else ["alpha", "delta"], _SHARE))
        scores, starts, thresholds = (getattr(self, name).cpu() for name in _CALIBRATION)
        groups = self.model.num_classes if self.by_class else 1
        bounds = starts.tolist() if starts.shape == (groups + 1,) and starts.dtype == torch.int64 else [-1]
        if bounds[0] != 0 or bounds[-1] != len(scores) or bounds != sorted(bounds):
            raise InputError(f"its calibration scores are not those of {groups} groups; calibrate it again")
        if thresholds.shape != (groups,) or not thresholds.isfinite().all():
            raise InputError("its score threshold is not finite; check the calibration data, and calibrate it again")
        within = (scores[low:high] for low, high in itertools.pairwise(bounds))
        if scores.isnan().any() or not all(torch.equal(group, group.sort().values) for group in within):
            raise InputError("its calibration scores are not sorted numbers; calibrate it again")


def read_notes(path: str | Path) -> dict[str, Any]:
    """Return the notes that a detector was saved with."""
    notes: dict[str, Any] = _read(Path(path).expanduser())[1]["notes"]
    return notes


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, notes = read_tensors(path, ours=True, cure="calibrate it again, or get another copy")
    if "detector" not in notes:
        raise InputError(f"{path}: is not a file of a detector; name one that Detector.save wrote")
    about = json.loads(notes["detector"])  # valid, since the checksum is
    wrong = [key for key, kind in _ABOUT.items() if not isinstance(about.get(key), kind)]
    if wrong:
        raise InputError(f"{path}: {wrong[0]} = {about.get(wrong[0])!r:.60} is not valid; calibrate it again")
    return tensors, about


def _transient(method: Method | None) -> set[str]:
    """Return the names of tensors that only training needs."""
    return {f"model.method.{name}" for name in (method.transient if method else ())}


def _description(method: Method | None) -> dict[str, Any] | None:
    if method is None:
        return None
    name = next((name for name, (kind, _) in METHODS.items() if type(method) is kind), None)
    if name is None:
        raise InputError(f"{type(method).__name__} is not among spcp.methods.METHODS; add it there to save it")
    return {"name": name, "options": method.options, "truncation": asdict(method.truncation)}


def _rebuilt(about: Mapping[str, Any] | None, network: Any) -> Method | None:
    if about is None:
        return None
    method = METHODS[about["name"]][0](**about["options"], truncation=Truncation(**about["truncation"]))
    try:
        method.prepare(network, 1)
    except (TypeError, ValueError) as error:
        raise InputError(f"the network cannot be prepared for {about['name']} ({error}); build it anew") from error
    return method
