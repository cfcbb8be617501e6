"""The measures of OOD detection as a `torchmetrics.Metric`: for loops that collect scores batch by batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import InputError, need
from ..metrics import Metrics, metrics

if TYPE_CHECKING:
    from torchmetrics import Metric
else:
    Metric = need("torchmetrics", "torchmetrics", "integrations").Metric

MEASURES = tuple(field.name for field in dataclasses.fields(Metrics) if field.type == "float")


class OODMetric(Metric):
    """FPR95, AUROC and AUPR of scores, larger for ID, as `spcp.metrics.metrics` computes them.

    Args:
        measure: one of "fpr95", "fpr95_id", "auroc", "aupr_in", "aupr_out"; None returns all of them by name.
        options: of `torchmetrics.Metric`.

    >>> metric = OODMetric("auroc")
    >>> metric.update(torch.tensor([3.0, 2.0, 1.0, 0.5, 1.5]), torch.tensor([False, False, False, True, True]))
    >>> round(float(metric.compute()), 4)
    0.8333
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = None
    scores: list[Tensor]
    is_ood: list[Tensor]

    def __init__(self, measure: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        if measure is not None and measure not in MEASURES:
            raise InputError(f"measure = {measure!r} must be one of {', '.join(MEASURES)}")
        self.measure = measure
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("is_ood", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor, is_ood: Tensor) -> None:
        """Add scores (B,), and whether each sample is OOD (B,)."""
        if scores.shape != is_ood.shape:
            raise InputError(f"scores {tuple(scores.shape)} and is_ood {tuple(is_ood.shape)} must have one shape")
        self.scores.append(scores.detach().float().flatten())
        self.is_ood.append(is_ood.bool().flatten())

    def compute(self) -> Tensor | dict[str, Tensor]:
        """Return the measure, or all by name."""
        if not len(self.scores):
            raise InputError("there are no scores yet; call update first")
        scores, is_ood = (torch.cat(part) if isinstance(part, list) else part for part in (self.scores, self.is_ood))
        result = metrics(scores[~is_ood], scores[is_ood], resamples=1)
        values = {name: torch.tensor(getattr(result, name), dtype=torch.float32) for name in MEASURES}
        return values[self.measure] if self.measure else values
