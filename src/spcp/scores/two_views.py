"""Two views: plain and truncated logits of one pass, each compared with those of ID samples; the lower one counts."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from ..contributions import RhoNorm, clip_contributions, effective_threshold, plain_head, threshold_estimate
from .base import Score, energy, entering, head_logits


class TwoViews(Score):
    """The smaller of two conformal p-values, of the energy of plain and of truncated logits.

    Plain energy misses OOD inputs whose features are larger than those of ID inputs, truncated energy those whose
    features are smaller. `p` is the share of n validation samples that score lower, see `p_value`. A plain network is
    truncated at the mean over validation samples of `threshold_estimate`.
    """

    paper = "none: a proposal of this library, see its results"
    formula = "min(p(logsumexp(z_plain)), p(logsumexp(z_truncated)))"
    cost = "one pass; the head twice; keeps two numbers for each of n validation samples"
    reads = "head"
    fitted_on = "val"
    state = ("threshold", "plain", "truncated")
    threshold: Tensor  # ()
    plain: Tensor  # (n,), sorted
    truncated: Tensor  # (n,), sorted

    def __init__(self, *, rho_norm: RhoNorm = "auto") -> None:
        super().__init__()
        self.rho_norm = rho_norm

    @torch.no_grad()
    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Set the threshold, if the head has none, and keep the energies of the validation samples."""
        device, threshold = head.weight.device, effective_threshold(head)
        if threshold is None:
            parts = [self._estimate(h.to(device), head) for h, *_ in data.parts()]
            threshold = torch.cat(parts).double().mean().float()
        self.threshold = threshold.clone()
        views = [self._views(h.to(device), head) for h, *_ in data.parts()]
        self.plain, self.truncated = (torch.cat(view).double().sort().values for view in zip(*views, strict=True))
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
        """Return the smaller of both p-values, (B,)."""
        first, second = self._views(h, head)
        return torch.minimum(p_value(first, self.plain), p_value(second, self.truncated))


def p_value(scores: Tensor, id_scores: Tensor) -> Tensor:
    """Return the share of sorted ID scores that are lower: `i / (1 + n)` at the i-th of them, and linear in between.

    Beyond them it goes on exponentially, to 0 and to 1, so that samples below all ID scores are still in order.

    >>> id_scores = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    >>> p_value(torch.tensor([1.0, 2.0, 3.0, 4.0]), id_scores).tolist()
    [0.25, 0.5, 0.625, 0.75]
    """
    s, n = scores.double(), len(id_scores)
    count = torch.searchsorted(id_scores, s, right=True)  # (B,), of ID scores that are not larger
    low, high = id_scores[(count - 1).clamp(min=0)], id_scores[count.clamp(max=n - 1)]
    scale = id_scores.std(correction=0).clamp(min=1e-12)
    between = count + (s - low) / (high - low).clamp(min=1e-300)
    below = torch.exp((s - id_scores[0]).clamp(max=0) / scale)
    above = n + 1 - torch.exp((id_scores[-1] - s).clamp(max=0) / scale)
    p = torch.where(count == 0, below, torch.where(count == n, above, between)) / (1 + n)
    return p.to(scores.dtype)
