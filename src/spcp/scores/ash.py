"""ASH (Djurisic et al., 2023): a sample's smaller features are pruned, the rest changed a little."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import InputError
from .base import Score, energy, exp_ratio, head_logits

Kind = Literal["b", "s", "p"]


def survivors(size: int, percentile: float) -> int:
    """Return how many of the features survive: `n - round(n p / 100)`, at least one."""
    return max(1, size - round(size * percentile / 100))


def ash(h: Tensor, percentile: float, kind: Kind) -> Tensor:
    """Keep the k largest features: as sum(h) / k (b), times exp(sum before / sum after) (s), or as they are (p)."""
    k = survivors(h.shape[1], percentile)
    top = h.topk(k, 1, sorted=False)
    if kind == "b":
        values = (h.sum(1, keepdim=True) / k).expand(-1, k)
    elif kind == "s":
        values = top.values * exp_ratio(h.sum(1, keepdim=True), top.values.sum(1, keepdim=True))
    elif kind == "p":
        values = top.values
    else:
        raise InputError(f'ASH: kind = {kind!r} must be "b", "s" or "p"')
    return torch.zeros_like(h).scatter_(1, top.indices, values)


class ASH(Score):
    """Energy of the logits of such features: k survive, as sum(h) / k (`kind` b), scaled (s), or as they are (p)."""

    paper = "Extremely Simple Activation Shaping for Out-of-Distribution Detection (ASH), ICLR 2023"
    formula = "logsumexp(W ash(h) + b)"
    cost = "one pass; the largest of B x D features, and the head once more; keeps nothing"
    reads = "head"
    ranges = {"percentile": (1, 100)}
    sweep = {"percentile": (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    def __init__(self, *, percentile: float = 90.0, kind: Kind = "b") -> None:
        super().__init__()
        self.percentile, self.kind = percentile, kind

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the energy of the logits of shaped features, (B,)."""
        return energy(head_logits(head, ash(h, self.percentile, self.kind)))
