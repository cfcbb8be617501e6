"""Fit a score where the data is: each machine makes statistics of its own rows, and only these travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..bank import FeatureBank, Part
from ..errors import InputError
from ..moments import Rows, S, Statistic
from .base import Role, Score


class Fitting:
    """A score that is fitted on rows of several machines, in turns.

    In each turn every machine makes a statistic of its own rows; merged, they are given back to all. Scores of means,
    covariances or neighbours take one or two turns, percentiles a few. All machines hold the same score and head.

    Args:
        score: the score; it is fitted when nothing is `wanted` any more.
        head: the last layer of the network.
        role: "train", or "val" for scores that are fitted on held-out data; see `Score.fitted_on`.

    Example:
        >>> h = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
        >>> head = nn.Linear(4, 3)
        >>> here, there = FeatureBank.of(h[:60], head(h[:60])), FeatureBank.of(h[60:], head(h[60:]))
        >>> from spcp.scores import KNN
        >>> score = KNN(k=5)
        >>> fitting = Fitting(score, head)
        >>> while fitting.wanted:
        ...     fitting.give(fitting.statistic(here).merge(fitting.statistic(there, before=60)))
        >>> len(score.bank)
        100
    """

    def __init__(self, score: Score, head: nn.Linear, role: Role = "train") -> None:
        self.score, self.head, self.role = score, head, role
        self._given: list[Statistic] = []
        self._question: _WantedError | None = None
        self._go_on()

    @property
    def wanted(self) -> bool:
        """Whether another statistic is needed."""
        return self._question is not None

    def statistic(self, bank: FeatureBank, before: int = 0) -> Any:
        """Return the statistic that is wanted of the rows of this machine; `before`: how many rows others have before.

        It has a method `merge`, and holds tensors only.
        """
        if self._question is None:
            raise InputError(f"{type(self.score).__name__}: is fitted; no statistic is wanted")
        rows = self._question.rows
        return bank.merged(self._question.statistic, None if rows is None else rows[rows >= before] - before)

    def give(self, statistic: Any) -> None:
        """Take the merged statistic of all machines."""
        self._given.append(statistic)
        self._go_on()

    def _go_on(self) -> None:
        """Fit with what was given, up to the first statistic that was not."""
        data = _Elsewhere(list(self._given))
        try:
            (self.score.fit if self.role == "train" else self.score.fit_held_out)(data, self.head)
            self._question = None
        except _WantedError as question:
            self._question = question


class _WantedError(Exception):
    """Raised where a fit needs a statistic that is not known yet."""

    def __init__(self, statistic: Callable[[Part], Any], rows: Tensor | None) -> None:
        super().__init__("a statistic is wanted")
        self.statistic, self.rows = statistic, rows


class _Elsewhere(FeatureBank):
    """A bank whose rows are elsewhere: it answers with the statistics that were given, in their order."""

    def __init__(self, given: list[Any]) -> None:
        super().__init__([])
        self._given = given
        self._shapes: Tensor | None = None  # (parts, 3) rows, features and classes of each

    def _shape(self) -> tuple[int, int, int]:
        if self._shapes is None:
            self._shapes = self.merged(_shape).tensor
        return int(self._shapes[:, 0].sum()), int(self._shapes[0, 1]), int(self._shapes[0, 2])

    def __len__(self) -> int:
        return self._shape()[0]

    @property
    def num_features(self) -> int:
        return self._shape()[1]

    @property
    def num_classes(self) -> int:
        return self._shape()[2]

    @property
    def is_spread(self) -> bool:
        return False

    def merged(self, statistic: Callable[[Part], S], rows: Tensor | None = None, **_: Any) -> S:
        if not self._given:
            raise _WantedError(statistic, rows)
        return self._given.pop(0)

    def rows(self, function: Callable[[Part], Tensor]) -> Tensor:
        return self.merged(lambda part: Rows.of(function(part))).tensor


def _shape(part: Part) -> Rows:
    return Rows.of(torch.tensor([[*part.features.shape, part.logits.shape[1]]]))
