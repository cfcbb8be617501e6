"""ViM (Wang et al., 2022): energy against what of the features lies outside the principal subspace."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank, Part
from ..errors import InputError
from ..moments import Sum
from .base import Score, energy


class ViM(Score):
    """`logsumexp(z) - alpha ||(h - o) R||`.

    `o = -pinv(W) b`; R holds the eigenvectors of (H - o)' (H - o) beyond the `dim` largest; alpha makes both terms
    alike on training data. By default `dim` is 1000 from D = 2048 on, else D / 2.
    """

    paper = "ViM: Out-Of-Distribution with Virtual-logit Matching, CVPR 2022"
    formula = "logsumexp(z) - alpha ||(h - o) R||"
    cost = "one pass; a matrix product of B x D x (D - dim); keeps D x (D - dim) numbers; fitting takes D^3"
    reads = "weights"
    fitted_on = ("train",)
    state = ("origin", "residual", "alpha")
    origin: Tensor
    residual: Tensor
    alpha: Tensor

    def __init__(self, *, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Compute the origin, the residual subspace, and alpha."""
        size = head.in_features
        dim = (1000 if size >= 2048 else size // 2) if self.dim is None else self.dim
        if not 0 <= dim < size:
            raise InputError(f"ViM: dim = {dim} leaves nothing of {size} features; choose one below {size}")
        W = head.weight.detach().cpu().double()
        bias = torch.zeros(len(W)) if head.bias is None else head.bias.detach().cpu()
        origin = -torch.linalg.pinv(W) @ bias.double()
        moments = data.moments()
        scatter = moments.scatter_around(origin) / moments.rows
        vectors = torch.linalg.eigh(scatter).eigenvectors  # by rising eigenvalues
        self.origin, self.residual = origin.float(), vectors[:, : size - dim].float().contiguous()
        largest, length = data.merged(self._lengths).values
        self.alpha = (largest / length).float()
        return self.to(head.weight.device)

    def _lengths(self, part: Part) -> Sum:
        return Sum.of(part.logits.amax(1).double().sum(), self._length(part.features).double().sum())

    def _length(self, h: Tensor) -> Tensor:
        return ((h - self.origin) @ self.residual).norm(dim=1)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return `logsumexp(z) - alpha ||(h - o) R||`, (B,)."""
        return energy(z) - self.alpha * self._length(h)
