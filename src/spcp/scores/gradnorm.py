"""GradNorm (Huang et al., 2021): the size of the gradient towards the uniform prediction, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..contributions import class_parts, effective_threshold
from .base import Score, chunks, entering


def gradnorm(h: Tensor, z: Tensor, W: Tensor | None = None, threshold: Tensor | None = None) -> Tensor:
    """Return `sum_k |K p_k - 1| * sum_d |h_d|`; with truncation only over `d` with `W[k,d] h[d] <= threshold`."""
    pull = (z.shape[1] * z.softmax(1) - 1).abs()  # (B, K)
    size = h.abs().sum(1)  # (B,)
    if threshold is None:
        return size * pull.sum(1)
    assert W is not None
    truncated = [  # sum_d |h_d| over truncated contributions, (B, K)
        torch.cat([(rows[:, None] * W[k] > threshold).to(h.dtype) @ rows.abs()[:, :, None] for k in class_parts(W)], 1)
        for rows in chunks(h, W.numel())
    ]
    return (pull * (size[:, None] - torch.cat(truncated)[:, :, 0])).sum(1)


class GradNorm(Score):
    """The L1 norm of the gradient of the cross-entropy with the uniform distribution, of the last layer's weights."""

    paper = "On the Importance of Gradients for Detecting Distributional Shifts in the Wild (GradNorm), NeurIPS 2021"
    formula = "||h||_1 sum_k |K p_k - 1|"
    cost = "one pass; sums over B x K and B x D; truncation looks at all B x K x D contributions; keeps nothing"
    reads = "weights"

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the L1 norm of the gradient, (B,)."""
        return gradnorm(entering(h, head), z, head.weight.detach(), effective_threshold(head))
