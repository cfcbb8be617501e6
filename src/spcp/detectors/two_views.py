"""Two views: plain and truncated logits of one pass, each against what known inputs score; the odder one counts."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..contributions import RhoNorm, clip_contributions, threshold_estimate
from ..features import Features
from .base import Score, energy, entering, head_logits, plain_head, threshold_of


class TwoViews(Score):
    """The smaller of two conformal p-values, of the energy of plain and of truncated logits.

    Plain energy misses odd inputs whose features are larger than those of known ones, truncated energy those whose
    features are smaller. `p(s) = (1 + #{known <= s}) / (1 + n)`, over n validation samples; in between and below them
    linear, so that there are no ties. A plain network is truncated at the mean of what `SPCPLinear.estimate` says of
    validation samples.
    """

    formula = "min(p(logsumexp(z_plain)), p(logsumexp(z_truncated)))"
    cost = "one pass; the head twice; keeps two numbers for each of n validation samples"
    reads = "head"
    fitted_on = "val"
    state = ("threshold", "plain", "bounded")
    threshold: Tensor  # ()
    plain: Tensor  # (n,), sorted
    bounded: Tensor  # (n,), sorted

    def __init__(self, *, rho_norm: RhoNorm = "auto") -> None:
        super().__init__()
        self.rho_norm = rho_norm

    @torch.no_grad()
    def fit(self, data: Features, head: nn.Linear) -> Self:
        """Learn where to cut, if the head does not know, and what known samples score."""
        device, own = head.weight.device, threshold_of(head)
        if own is None:
            W, b = head.weight, head.bias
            parts = [threshold_estimate(entering(h.to(device), head), W, b, self.rho_norm) for h, *_ in data.parts()]
            own = torch.cat(parts).double().mean().float()
        self.threshold = own.clone()
        views = [self._views(h.to(device), head) for h, *_ in data.parts()]
        self.plain, self.bounded = (torch.cat(view).double().sort().values for view in zip(*views, strict=True))
        return self.to(device)

    def _views(self, h: Tensor, head: nn.Linear) -> tuple[Tensor, Tensor]:
        """Energies of both."""
        cut = clip_contributions(entering(h.to(head.weight.dtype), head), head.weight, head.bias, self.threshold)
        return energy(head_logits(plain_head(head), h)), energy(cut.to(h.dtype))

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Scores (B,)."""
        first, second = self._views(h, head)
        return torch.minimum(p_value(first, self.plain), p_value(second, self.bounded))


def p_value(scores: Tensor, known: Tensor) -> Tensor:
    """`(1 + #{known <= s}) / (1 + n)`, and linear between the sorted known scores.

    Beyond them it goes on, ever more slowly, so that what is odder than all that is known is still in order.

    >>> known = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    >>> p_value(torch.tensor([1.0, 2.0, 3.0, 4.0]), known).tolist()
    [0.5, 0.75, 0.875, 1.0]
    """
    s, n = scores.double(), len(known)
    right = torch.searchsorted(known, s, right=True)  # how many are no larger
    low, high = known[(right - 1).clamp(min=0)], known[right.clamp(max=n - 1)]
    share = ((s - low) / (high - low).clamp(min=1e-300)).clamp(0, 1)
    inside = (1 + right + share) / (1 + n)
    spread = (known[-1] - known[0]).clamp(min=1e-12)
    below = torch.exp((s - known[0]) / spread * n) / (1 + n)  # falls from 1 / (1 + n) to 0
    above = 2 - torch.exp(-(s - known[-1]).clamp(min=0) / spread)
    found = torch.where(s < known[0], below, torch.where(s >= known[-1], above, inside))
    return found.to(scores.dtype)
