"""MOS: how unlikely it is that a sample belongs to others, in the group where that is least likely."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..methods import mos
from .base import Score


class MOS(Score):
    """For networks trained by the method of the same name; `groups` are its groups."""

    paper = mos.MOS.paper
    formula = "max_g -p_others"
    cost = "one pass; a softmax in each group; keeps nothing"

    def __init__(self, *, groups: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.groups = groups

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return `max_g -p_others`, (B,)."""
        return mos.mos_score(z, self.groups)
