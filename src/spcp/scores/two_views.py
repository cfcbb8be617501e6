"""Two views: plain and truncated logits of one pass, each compared with those of ID samples; the lower one counts."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from ..conformal import log_p_value
from ..contributions import RhoNorm, clip_contributions, effective_threshold, plain_head, threshold_estimate
from ..moments import Rows
from .base import Score, energy, entering, head_logits


class TwoViews(Score):
    """The log of the smaller of two p-values, of the energy of plain and of truncated logits.

    Plain energy misses OOD inputs whose features are larger than those of ID inputs, truncated energy those whose
    features are smaller. `p` is the share of n validation samples that score lower, see `log_p_value`. A plain network
    is truncated at the mean over validation samples of `threshold_estimate`.
    """

    paper = "none: a proposal of this library, see its results"
    formula = "min(log p(logsumexp(z_plain)), log p(logsumexp(z_truncated)))"
    cost = "one pass; the head twice; keeps two numbers for each of n validation samples"
    reads = "head"
    fitted_on = ("val",)
    state = ("threshold", "plain", "truncated")
    threshold: Tensor  # ()
    plain: Tensor  # (n,), sorted
    truncated: Tensor  # (n,), sorted

    def __init__(self, *, rho_norm: RhoNorm = "auto") -> None:
        super().__init__()
        self.rho_norm = rho_norm

    @torch.no_grad()
    def fit_held_out(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Set the threshold, if the head has none, and keep the energies of the validation samples."""
        device, threshold = head.weight.device, effective_threshold(head)
        if threshold is None:
            estimates = data.merged(lambda part: Rows.of(self._estimate(part.features.to(device), head).cpu()))
            threshold = estimates.tensor.double().mean().float().to(device)
        self.threshold = threshold.clone()
        views = data.merged(lambda part: Rows.of(torch.stack(self._views(part.features.to(device), head), 1).cpu()))
        self.plain, self.truncated = views.tensor.double().t().contiguous().sort().values
        return self.to(device)

    def _estimate(self, h: Tensor, head: nn.Linear) -> Tensor:
        """Return the threshold that each sample suggests for a plain head."""
        h = entering(h.to(head.weight.dtype), head)
        return threshold_estimate(h, head.weight, head.bias, self.rho_norm)

    def _views(self, h: Tensor, head: nn.Linear) -> tuple[Tensor, Tensor]:
        """Return the energies of plain and of truncated logits."""
        logits = clip_contributions(entering(h.to(head.weight.dtype), head), head.weight, head.bias, self.threshold)
        return energy(head_logits(plain_head(head), h)), energy(logits.to(h.dtype))

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the log of the smaller p-value, (B,)."""
        first, second = self._views(h, head)
        return torch.minimum(log_p_value(first, self.plain), log_p_value(second, self.truncated)).to(h.dtype)
