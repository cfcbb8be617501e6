"""Two views: plain and truncated logits of one pass, each against what known inputs score; the odder one counts."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..contributions import RhoNorm, clip_contributions, effective_threshold, threshold_estimate
from ..features import Features
from .base import Score, energy, entering, head_logits, plain_head


class TwoViews(Score):
    """The smaller of two conformal p-values, of the energy of plain and of truncated logits.

    Plain energy misses odd inputs whose features are larger than those of known ones, truncated energy those whose
    features are smaller. `p` is the share of n validation samples that score lower, see `p_value`. A plain network is
    truncated at the mean over validation samples of `threshold_estimate`.
    """

    paper = "none: a proposal of this library, see its results"
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
        device, own = head.weight.device, effective_threshold(head)
        if own is None:
            parts = [self._estimate(h.to(device), head) for h, *_ in data.parts()]
            own = torch.cat(parts).double().mean().float()
        self.threshold = own.clone()
        views = [self._views(h.to(device), head) for h, *_ in data.parts()]
        self.plain, self.bounded = (torch.cat(view).double().sort().values for view in zip(*views, strict=True))
        return self.to(device)

    def _estimate(self, h: Tensor, head: nn.Linear) -> Tensor:
        """Where a plain head should be cut, by each sample."""
        h = entering(h.to(head.weight.dtype), head)
        return threshold_estimate(h, head.weight, head.bias, self.rho_norm)

    def _views(self, h: Tensor, head: nn.Linear) -> tuple[Tensor, Tensor]:
        """Energies of both."""
        cut = clip_contributions(entering(h.to(head.weight.dtype), head), head.weight, head.bias, self.threshold)
        return energy(head_logits(plain_head(head), h)), energy(cut.to(h.dtype))

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Scores (B,)."""
        first, second = self._views(h, head)
        return torch.minimum(p_value(first, self.plain), p_value(second, self.bounded))


def p_value(scores: Tensor, known: Tensor) -> Tensor:
    """The share of known samples that score lower: `i / (1 + n)` at the i-th of them, and linear in between.

    Beyond them it goes on exponentially, to 0 and to 1, so that what is odder than all that is known is still in order.

    >>> known = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    >>> p_value(torch.tensor([1.0, 2.0, 3.0, 4.0]), known).tolist()
    [0.25, 0.5, 0.625, 0.75]
    """
    s, n = scores.double(), len(known)
    count = torch.searchsorted(known, s, right=True)  # (B,), of known ones that score no more
    low, high = known[(count - 1).clamp(min=0)], known[count.clamp(max=n - 1)]
    scale = known.std(correction=0).clamp(min=1e-12)
    between = count + (s - low) / (high - low).clamp(min=1e-300)
    below = torch.exp((s - known[0]).clamp(max=0) / scale)
    above = n + 1 - torch.exp((known[-1] - s).clamp(max=0) / scale)
    found = torch.where(count == 0, below, torch.where(count == n, above, between)) / (1 + n)
    return found.to(scores.dtype)
