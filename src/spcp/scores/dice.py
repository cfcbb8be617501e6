"""DICE (Sun and Li, 2022): only the weights that contribute most on training data."""

from __future__ import annotations

from typing import Self

import numpy as np
from torch import Tensor, nn
from torch.func import functional_call

from ..bank import FeatureBank
from .base import Score, energy, entering


def dice_mask(W: Tensor, mean: Tensor, p: float) -> Tensor:
    """Return where `W * mean(h)` exceeds its p-th percentile over all K * D entries, (K, D)."""
    V = W.detach().double() * mean.double()
    return float(np.percentile(V.cpu().numpy(), p)) < V


class DICE(Score):
    """Energy of the head with its other weights set to 0."""

    paper = "DICE: Leveraging Sparsification for Out-of-Distribution Detection, ECCV 2022"
    formula = "logsumexp((W * keep) h + b)"
    cost = "one pass; the head once more; keeps K x D weights"
    reads = "head"
    ranges = {"p": (1, 99)}
    fitted_on = ("train",)
    state = ("weight",)
    rows = 4096
    weight: Tensor  # (K, D) what is kept of the head's

    def __init__(self, *, p: float = 90.0) -> None:
        super().__init__()
        self.p = p

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Choose the weights to keep by the mean contributions of training samples."""
        mean = entering(data.moments().whole_mean[None], head)[0].to(head.weight.device)
        self.weight = head.weight.detach() * dice_mask(head.weight, mean, self.p)
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the energy of the logits of the weights kept, (B,)."""
        logits: Tensor = functional_call(head, {"weight": self.weight}, (h.to(self.weight.dtype),))
        return energy(logits.to(h.dtype))
