"""SNN (Ghosal et al., 2024): each logit sums its largest contributions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contributions import class_parts
from ..networks import Network
from .base import Method

CHUNK = 2**24  # contributions that are looked at together


def snn_logits(h: Tensor, W: Tensor, b: Tensor | None, s: int) -> Tensor:
    """Return logits `z_k = sum of the s largest entries of W_k * h, + b_k`."""
    parts = (h,) if torch.compiler.is_compiling() else h.split(max(1, CHUNK // W.numel()))
    sums = [[(part[:, None] * W[k]).topk(s, dim=2).values.sum(2) for k in class_parts(W)] for part in parts]
    z = torch.cat([torch.cat(columns, 1) for columns in sums])  # (B, K)
    return z if b is None else z + b


class SNNLinear(nn.Linear):
    """A linear layer of which each output sums its `s` largest contributions."""

    s: int

    def forward(self, input: Tensor) -> Tensor:
        """Map features (B, D) to logits (B, K)."""
        return snn_logits(input, self.weight, self.bias, self.s)


class SNN(Method):
    """`CE(z, y), z_k = sum of the s largest W[k,d] h[d] + b_k`; alike in training and at inference, s is `share` D."""

    paper = "How to Overcome Curse-of-Dimensionality for Out-of-Distribution Detection? (SNN), AAAI 2024"
    cost = "one pass forwards and backwards; all B x K x D contributions, in chunks, and the B x K x s places kept"
    score = "knn"
    readable = ("outputs", "head")  # the weights alone do not make its logits
    score_options: ClassVar[Mapping[str, Any]] = {"k": 20}

    def __init__(self, *, share: float = 0.25, **options: Any) -> None:
        super().__init__(**options)
        if self.truncation.rho_norm:
            raise ValueError("SNN selects contributions by another rule; leave out rho_norm.")
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, not {share}.")
        self.share = share

    def prepare(self, network: Network, total_steps: int) -> None:
        """Make the classifier sum its largest contributions only, in place."""
        head: Any = network.classifier
        head.__class__ = SNNLinear
        head.s = max(1, int(self.share * head.in_features))

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits."""
        z = network(x)
        return F.cross_entropy(z, y), z
