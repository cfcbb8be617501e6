"""Scores of embeddings as an outlier detector of scikit-learn, with the guarantee of a calibrated threshold."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ..bank import FeatureBank
from ..conformal import p_values, samples_needed, threshold_rank
from ..errors import InputError, need
from ..scores import build_score

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, OutlierMixin
else:
    _base = need("sklearn.base", "scikit-learn", "demo")
    BaseEstimator, OutlierMixin = _base.BaseEstimator, _base.OutlierMixin

Floats = NDArray[np.float64]
NEVER = -np.finfo(np.float64).max  # a threshold that no score is below


class OODDetector(OutlierMixin, BaseEstimator):
    """Flags embeddings unlike those it was fitted on: at most `alpha` of those that are like them, on average.

    A part of the samples fits the score, and the others, `calibration_share` of all, set its threshold. With labels
    the score knows the classes, and scores of logits (energy, consensus, ...) get those of a logistic regression.

    Args:
        ood_score: the name of a score that reads features: "mds", "rmds", "knn", "vim", ...
        alpha: the largest false alarm rate. So few calibration samples that they cannot promise it flag nothing.
        calibration_share: of the samples, for the threshold.
        options: of the score, such as `{"k": 10}`.
        random_state: which samples those are.

    Attributes:
        calibration_scores_: sorted, of the samples that set the threshold.
        offset_: the threshold: `decision_function(X) = score_samples(X) - offset_`, negative for outliers.
        classes_: the labels, where there are some.
        n_features_in_: the number of features.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> detector = OODDetector().fit(rng.normal(size=(500, 8)))
        >>> detector.predict([[0.0] * 8, [9.0] * 8]).tolist()
        [1, -1]
    """

    calibration_scores_: Floats
    offset_: float
    classes_: NDArray[Any]

    def __init__(
        self,
        ood_score: str = "mds",
        *,
        alpha: float = 0.05,
        calibration_share: float = 0.3,
        options: dict[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.ood_score = ood_score
        self.alpha = alpha
        self.calibration_share = calibration_share
        self.options = options
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Fit the score on embeddings (N, D), with their labels (N,) if there are some, and set the threshold."""
        utils = need("sklearn.utils", "scikit-learn", "demo")
        validation = need("sklearn.utils.validation", "scikit-learn", "demo")
        x = validation.validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        labels = np.zeros(len(x), dtype=np.int64)
        if hasattr(self, "classes_"):
            del self.classes_
        if y is not None and need("sklearn.utils.multiclass", "scikit-learn").type_of_target(y) in KINDS:
            validation.check_consistent_length(x, y)
            self.classes_, labels = np.unique(np.asarray(y).ravel(), return_inverse=True)
        if not 0 < self.calibration_share < 1:
            raise InputError(f"calibration_share = {self.calibration_share!r} must lie between 0 and 1")
        order = utils.check_random_state(self.random_state).permutation(len(x))
        count = min(len(x) - 1, max(1, round(self.calibration_share * len(x))))
        fitted, calibration = order[count:], order[:count]
        score = build_score(self.ood_score, **(self.options or {}))
        if score.needs_inputs:
            raise InputError(f"{self.ood_score}: needs the inputs of a network, not embeddings; choose another score")
        head = _head(x[fitted], labels[fitted], int(labels.max()) + 1)
        bank = _bank(x[fitted], head, labels[fitted])
        score.fit(bank, head)
        if "val" in score.fitted_on:
            score.fit_held_out(bank, head)
        self._head, self._score = head.double(), score.double()
        self.calibration_scores_ = np.sort(self._scores(x[calibration]))
        self.offset_ = NEVER
        if count >= samples_needed(self.alpha):
            self.offset_ = float(self.calibration_scores_[threshold_rank(count, self.alpha) - 1])
        else:
            warnings.warn(
                f"{count} calibration samples cannot promise alpha = {self.alpha:g}, so nothing is flagged; give at "
                f"least {samples_needed(self.alpha)} (now {self.calibration_share:.0%} of all samples)",
                stacklevel=2,
            )
        return self

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the scores (N,): larger for samples like those of `fit`."""
        validation = need("sklearn.utils.validation", "scikit-learn", "demo")
        validation.check_is_fitted(self)
        return self._scores(validation.validate_data(self, X, dtype=np.float64, reset=False))

    @torch.no_grad()
    def _scores(self, x: Floats) -> Floats:
        h = torch.from_numpy(np.ascontiguousarray(x))
        return np.asarray(self._score(h, self._head(h), self._head).numpy())

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the scores less the threshold, (N,): negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return 1 for inliers and -1 for outliers, (N,)."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def p_values(self, X: ArrayLike) -> Floats:
        """Return conformal p-values (N,): small for samples unlike those of `fit`."""
        scores = torch.from_numpy(self.score_samples(X))
        return np.asarray(p_values(scores, torch.from_numpy(self.calibration_scores_)).numpy())


KINDS = ("binary", "multiclass")  # of labels; others are left aside, as outlier detectors do


def _head(x: Floats, y: NDArray[np.int64], num_classes: int) -> nn.Linear:
    """Return the linear layer of a logistic regression; one of zeros where there is a single class."""
    head = nn.Linear(x.shape[1], num_classes)
    weight, bias = np.zeros((num_classes, x.shape[1])), np.zeros(num_classes)
    present = np.unique(y)
    if len(present) > 1:
        regression = need("sklearn.linear_model", "scikit-learn", "demo").LogisticRegression(max_iter=1000).fit(x, y)
        rows, offsets = regression.coef_, regression.intercept_
        if len(present) == 2:  # it has one row then: for the second class
            rows, offsets = np.concatenate([0 * rows, rows]), np.concatenate([0 * offsets, offsets])
        weight[present], bias[present] = rows, offsets
    head.weight.data, head.bias.data = (torch.from_numpy(part).float() for part in (weight, bias))
    return head


@torch.no_grad()
def _bank(x: Floats, head: nn.Linear, y: NDArray[np.int64]) -> FeatureBank:
    h: Tensor = torch.from_numpy(x).float()
    return FeatureBank.of(h, head(h), torch.from_numpy(y))
