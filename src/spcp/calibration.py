"""Decide: a threshold with a guarantee, by split conformal calibration.

With n calibration scores of known samples, flag what scores below the k-th smallest, `k = floor(alpha (n + 1))`: a
known sample that is exchangeable with them is flagged with a probability of at most alpha. That is on average over the
calibration draw. With `delta`, k is smaller: for all but a share delta of the draws, at most alpha of all known samples
are flagged.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from .contributions import SPCPLinear, Truncation, apply_spcp, find_classifier
from .errors import InputError, need
from .features import Features, batches_of, device_of, extract, outputs_of
from .files import written
from .methods import METHODS, Method
from .networks.base import evaluating
from .scores import SCORES, Score, plain_head
from .scores.base import check_options


def rank_for(n: int, alpha: float, delta: float | None = None) -> int:
    """Which of n calibration scores, counted from the smallest, is the threshold.

    >>> rank_for(99, 0.05), rank_for(1000, 0.05), rank_for(1000, 0.05, delta=0.1)
    (5, 50, 41)
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha = {alpha:g} must lie between 0 and 1; 0.05 flags at most 5 % of known samples")
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"delta = {delta:g} must lie between 0 and 1; 0.1 lets 10 % of calibrations fail")
    if n < needed(alpha, delta):
        raise InputError(
            f"{n} calibration samples are too few for alpha = {alpha:g}"
            + (f" and delta = {delta:g}" if delta else "")
            + f"; at least {needed(alpha, delta)} are needed"
        )
    if delta is None:
        return math.floor(alpha * (n + 1) + 1e-9)
    # The share that is flagged is Beta(k, n + 1 - k): above alpha with the probability that Binomial(n, alpha) < k.
    count = torch.arange(n + 1, dtype=torch.float64)
    log_ways = math.lgamma(n + 1) - torch.lgamma(count + 1) - torch.lgamma(n - count + 1)
    chance = (log_ways + count * math.log(alpha) + (n - count) * math.log1p(-alpha)).exp()
    return max(1, int((chance.cumsum(0) <= delta * (1 + 1e-9)).sum()))  # P(Binomial <= k - 1) <= delta


def needed(alpha: float, delta: float | None = None) -> int:
    """The least number of calibration samples with which anything can be flagged.

    >>> needed(0.05), needed(0.05, 0.1)
    (19, 45)
    """
    if delta is None:
        return math.ceil(1 / alpha - 1e-9) - 1
    return math.ceil(math.log(delta) / math.log1p(-alpha) - 1e-9)


def p_values(scores: Tensor, calibration: Tensor) -> Tensor:
    """`(1 + calibration scores that are not larger) / (n + 1)`; `calibration` is sorted. NaN gets 0."""
    count = torch.searchsorted(calibration, scores.contiguous(), right=True)
    p = (1 + count).to(torch.float64) / (len(calibration) + 1)
    return torch.where(scores.isnan(), 0.0, p)


class Detection(NamedTuple):
    """What `detect` says of a batch.

    Attributes:
        predictions: the predicted class, (B,).
        scores: larger is more known, (B,).
        p_values: small for what looks unlike the calibration data, (B,).
        is_ood: whether it is flagged, (B,) bool.
    """

    predictions: Tensor
    scores: Tensor
    p_values: Tensor
    is_ood: Tensor


class Detector(nn.Module):
    """A model, a score, and a calibrated threshold.

    Args:
        model: any classifier.
        score: a fitted `Score`, or the name of one; a name is fitted by `fit`.
        method: the training method, where it has outputs of its own (see `spcp.runs.Run.load`).
        head: "truncating" as it was trained, or "plain".
        classifier: the dotted name of the model's last layer, where it cannot be found.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> detector = Detector(model, "energy").calibrate(torch.randn(200, 4), alpha=0.05)
        >>> detector.detect(torch.randn(2, 4)).is_ood.shape
        torch.Size([2])
    """

    sorted_scores: Tensor  # (n,) of the calibration samples, class after class if by class
    starts: Tensor  # (groups + 1,) where each class's begin
    thresholds: Tensor  # (groups,)

    def __init__(
        self,
        model: nn.Module,
        score: Score | str = "energy",
        *,
        method: Method | None = None,
        head: str = "truncating",
        classifier: str | None = None,
    ) -> None:
        super().__init__()
        if head not in ("truncating", "plain"):
            raise InputError(f'head is {head!r}; it must be "truncating" or "plain"')
        self.model, self.method, self.head_kind = model, method, head
        self.classifier, _ = find_classifier(model, classifier)  # looked for once
        self.score = build_score(score) if isinstance(score, str) else score
        check_options(self.score)
        self.alpha: float | None = None
        self.delta: float | None = None
        self.by_class = False
        self.register_buffer("sorted_scores", torch.zeros(0))
        self.register_buffer("starts", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("thresholds", torch.zeros(0))

    @property
    def head(self) -> nn.Linear:
        """The layer that makes logits of features."""
        model: Any = self.model
        own = model.get_submodule(self.classifier) if self.method is None else self.method.scoring_head(model)
        return plain_head(own) if self.head_kind == "plain" else own

    def features(self, data: Any) -> Features:
        """Of a tensor of inputs, of batches of them, or features already."""
        if not isinstance(data, Features):
            data = extract(self.model, data, method=self.method, classifier=self.classifier)
        return data.with_head(self.head) if self._changed else data

    @property
    def _changed(self) -> bool:
        """Whether the head is not the one that made the model's logits."""
        return self.head_kind == "plain" and self.head is not self.model.get_submodule(self.classifier)

    def fit(self, data: Any) -> Self:
        """Fit the score on known samples (inputs and labels in batches, or their features)."""
        with evaluating(self.model, self.method):
            self.score.fit(self.features(data), self.head)
        return self

    def scores(self, data: Any) -> tuple[Tensor, Tensor]:
        """Predicted classes and scores, (N,) each."""
        with evaluating(self.model, self.method):
            if self.score.needs_inputs:
                return self._scores_of_inputs(data)
            found = self.features(data)
            return found.k, self.score.scores(found, self.head)

    def _outputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, z, k = outputs_of(self.model, self.method, self.classifier)(x)
        if not self._changed:
            return h, z, k
        z = self.head(h)
        return h, z, z.argmax(1)

    def _scores_of_inputs(self, data: Any) -> tuple[Tensor, Tensor]:
        if isinstance(data, Features):
            raise InputError(f"{type(self.score).__name__} needs inputs, not features; give it batches of them")
        score: Any = self.score
        classes, scores = [], []
        for x, _ in batches_of(data):
            x = x.to(device_of(self.model))
            classes.append(self._outputs(x)[2].cpu())
            scores.append(score.score_inputs(lambda own: self._outputs(own)[1], x).cpu())
        return torch.cat(classes), torch.cat(scores)

    def calibrate(self, data: Any, alpha: float = 0.05, *, delta: float | None = None, by_class: bool = False) -> Self:
        """Set the threshold on known samples that neither the network nor the score was fitted on.

        Args:
            data: inputs (a tensor, or batches), or their features.
            alpha: at most this share of known samples is flagged, in expectation over the calibration draw.
            delta: if given, at most alpha with probability 1 - delta over the draw.
            by_class: a threshold for each predicted class, so that the guarantee holds within each.
        """
        classes, scores = self.scores(data)
        if scores.isnan().any():
            raise InputError(
                f"{int(scores.isnan().sum())} of {len(scores)} calibration scores are not a number; look at the inputs"
            )
        groups = [scores]
        if by_class:
            network: Any = self.model
            known = self.head.out_features if self.method is None else self.method.num_classes(network)
            groups = [scores[classes == k] for k in range(known)]
        thresholds = []
        for k, own in enumerate(groups):
            try:
                thresholds.append(own.sort().values[rank_for(len(own), alpha, delta) - 1])
            except InputError as error:
                raise InputError(f"class {k}: {error}" if by_class else str(error)) from None
        self.alpha, self.delta, self.by_class = alpha, delta, by_class
        device = device_of(self.model)
        self.sorted_scores = torch.cat([own.sort().values for own in groups]).to(device)
        self.starts = torch.tensor([0, *torch.tensor([len(own) for own in groups]).cumsum(0).tolist()], device=device)
        self.thresholds = torch.stack(thresholds).to(device)
        return self

    def decide(self, classes: Tensor, scores: Tensor) -> Detection:
        """The verdict on samples whose classes and scores are known."""
        if self.alpha is None:
            raise InputError("the detector has no threshold yet; call calibrate with known samples first")
        group = classes if self.by_class else torch.zeros_like(classes)
        p = torch.zeros(len(scores), dtype=torch.float64)
        starts = self.starts.tolist()
        calibration = self.sorted_scores.cpu()
        for k in group.unique().tolist():
            p[group == k] = p_values(scores[group == k], calibration[starts[k] : starts[k + 1]])
        return Detection(classes, scores, p, ~(scores >= self.thresholds.cpu()[group]))  # NaN is odd too

    def detect(self, data: Any) -> Detection:
        """Class, score, p-value and verdict for each sample (a tensor of inputs, batches of them, or features)."""
        return self.decide(*self.scores(data))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Class, score and verdict of a batch, as one graph: for export."""
        if self.alpha is None or self.score.needs_inputs:
            raise InputError("the detector cannot be run as one graph; calibrate it, and choose a score of features")
        if self.model.training:
            raise InputError("the detector's model is in training mode; call eval() first")
        h, z, predictions = self._outputs(x)
        scores = self.score(h, z, self.head)
        threshold = self.thresholds[predictions] if self.by_class else self.thresholds[0]
        return predictions, scores, ~(scores >= threshold)

    def save(self, path: str | Path, notes: Mapping[str, Any] | None = None) -> Path:
        """Model weights, score and calibration in one safetensors file; `read_notes` gives the notes back."""
        path = Path(path).expanduser()
        left = {f"method.{name}" for name in (self.method.transient if self.method else ())}
        state = {name: value for name, value in self.state_dict().items() if name not in left}
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
        about: dict[str, Any] = {
            "score": _name_of(self.score),
            "options": self.score.options,
            "head": self.head_kind,
            "classifier": self.classifier,
            "alpha": self.alpha,
            "delta": self.delta,
            "by_class": self.by_class,
            "method": None if self.method is None else _described(self.method),
        }
        with written(path) as file:
            file.write(
                need("safetensors.torch", "safetensors").save(
                    tensors, {"detector": json.dumps({**about, "notes": dict(notes or {})})}
                )
            )
        return path

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, score: Score | None = None) -> Self:
        """A detector from its file; `model` is the network, built anew, with any weights; `score` one of one's own."""
        path = Path(path).expanduser()
        tensors, about = _opened(path)
        method = _rebuilt(about["method"], model)
        name, head = find_classifier(model, about["classifier"])
        if f"model.{name}.threshold" in tensors and not isinstance(head, SPCPLinear):
            apply_spcp(model, rho_norm=0.0, classifier=name)  # how it truncates is in the file
        if f"model.{name}.threshold" not in tensors and isinstance(head, SPCPLinear):
            raise InputError(f"{path}: is of a network without SPCP, and this one truncates; give a plain one")
        if score is None:
            if about["score"] not in SCORES:
                raise InputError(f"{path}: its score is {about['score']}, of your own; give it to load as score=...")
            score = build_score(about["score"], **about["options"])
        own = cls(model, score, method=method, head=about["head"], classifier=about["classifier"])
        own.alpha, own.delta, own.by_class = about["alpha"], about["delta"], about["by_class"]
        for name in ("sorted_scores", "starts", "thresholds"):
            setattr(own, name, torch.empty_like(tensors[name]))
        try:
            missing, unknown = own.load_state_dict(tensors, strict=False)
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip()
            raise InputError(f"{path}: is for another network ({reason}); build the one it was saved with") from error
        left = {f"method.{name}" for name in (method.transient if method else ())}
        wrong = [*unknown, *(set(missing) - left)]
        if wrong:
            raise InputError(f"{path}: is for another network ({wrong[0]}); build the one it was saved with")
        return own.to(device_of(model)).eval()


def read_notes(path: str | Path) -> dict[str, Any]:
    """The notes that a detector was saved with."""
    notes: dict[str, Any] = _opened(Path(path).expanduser(), tensors=False)[1].get("notes", {})
    return notes


def _opened(path: Path, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a detector's file holds: its tensors, and what it is."""
    safetensors = need("safetensors", "safetensors")
    try:
        with safetensors.safe_open(path, "pt") as file:
            held = {key: file.get_tensor(key) for key in file.keys()} if tensors else {}  # noqa: SIM118
            return held, json.loads((file.metadata() or {})["detector"])
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; name one that Detector.save wrote") from error
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path}: not a detector's file, or damaged ({error}); save the detector again") from error


def build_score(name: str, **options: Any) -> Score:
    """A score by name."""
    if name not in SCORES:
        raise InputError(f"no detector {name!r}; there are {', '.join(SCORES)}")
    kind, own = SCORES[name]
    try:
        score = kind(**{**own, **options})
    except TypeError as error:
        raise InputError(f"{name}: {error}") from error
    check_options(score)
    return score


def _name_of(score: Score) -> str:
    return next((name for name, (kind, _) in SCORES.items() if type(score) is kind), type(score).__name__)


def _described(method: Method) -> dict[str, Any]:
    name = next((name for name, (kind, _) in METHODS.items() if type(method) is kind), None)
    if name is None:
        raise InputError(f"{type(method).__name__} is not among spcp.methods.METHODS; add it there to save it")
    return {"method": name, "options": method.options, "truncation": dataclasses.asdict(method.truncation)}


def _rebuilt(about: Mapping[str, Any] | None, model: nn.Module) -> Method | None:
    if about is None:
        return None
    network: Any = model
    method = METHODS[about["method"]][0](**about["options"], truncation=Truncation(**about["truncation"]))
    try:
        method.prepare(network, 1)
    except (TypeError, ValueError) as error:
        raise InputError(f"the network cannot be prepared for {about['method']} ({error}); build it anew") from error
    return method
