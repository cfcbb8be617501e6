"""KL matching (Hendrycks et al., 2022): is there a class whose usual prediction looks like this one?"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from .base import Score


class KLM(Score):
    """`-min_c KL(p || q_c)`; q_c is the mean prediction of validation samples predicted as c."""

    paper = "Scaling Out-of-Distribution Detection for Real-World Settings (KLM), ICML 2022"
    formula = "-min_c KL(p || q_c)"
    cost = "one pass; a matrix product of B x K x K; keeps K x K numbers"
    fitted_on = ("val",)
    state = ("log_q",)
    log_q: Tensor  # (predicted classes, K)

    def fit_held_out(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Compute the mean predictions q_c; classes that are never predicted have none."""
        sums = torch.zeros(data.num_classes, data.num_classes, dtype=torch.float64)
        counts = torch.zeros(data.num_classes, dtype=torch.float64)
        for _, z, *_ in data.parts():
            predicted = z.argmax(1)
            sums.index_add_(0, predicted, z.double().softmax(1))
            counts += torch.bincount(predicted, minlength=data.num_classes)
        q = (sums / counts.clamp(min=1)[:, None])[counts > 0]
        self.log_q = q.clamp(min=torch.finfo(torch.float32).tiny).log().float()
        return self.to(head.weight.device)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return `-min_c KL(p || q_c)`, (B,)."""
        log_p = z.log_softmax(1)
        p = log_p.exp()
        entropy = -(p * log_p).nan_to_num(0).sum(1)
        return (entropy[:, None] + p @ self.log_q.t()).amax(1)
