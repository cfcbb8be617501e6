"""GEN (Liu et al., 2023): a generalised entropy of the largest probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .base import Score


def gen(z: Tensor, gamma: float, M: int) -> Tensor:
    """Return `-sum over the M largest of p^gamma (1 - p)^gamma`, (B,)."""
    top = z.topk(min(M, z.shape[1]), 1)
    log_p = top.values - z.logsumexp(1, keepdim=True)
    # Of the largest p, 1 - p is the sum of the others: a difference would have no digits left where p is close to 1.
    rest = z.scatter(1, top.indices[:, :1], -torch.inf).logsumexp(1, keepdim=True)
    log_others = torch.cat([rest - torch.logaddexp(rest, top.values[:, :1]), (-log_p[:, 1:].exp()).log1p()], 1)
    return -(gamma * (log_p + log_others)).exp().sum(1)


class GEN(Score):
    """The generalised entropy of the largest probabilities, negated."""

    paper = "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection, CVPR 2023"
    formula = "-sum_top-M p^gamma (1 - p)^gamma"
    cost = "one pass; the M largest of B x K logits; keeps nothing"
    ranges = {"gamma": (1e-6, math.inf), "M": (1, math.inf)}
    sweep = {"gamma": (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0), "M": (10, 50, 100, 200, 500, 1000)}

    def __init__(self, *, gamma: float = 0.1, M: int = 100) -> None:
        super().__init__()
        self.gamma, self.M = gamma, M

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the generalised entropy of the M largest probabilities, negated, (B,)."""
        return gen(z, self.gamma, self.M)
