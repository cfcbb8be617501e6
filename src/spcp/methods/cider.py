"""CIDER (Ming et al., 2023): features on a sphere, close to their class's prototype, prototypes far apart."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contributions import evaluating
from ..networks import Network
from .base import Method, Outputs, full_precision, normalised

BASE_TAU = 0.07  # of the contrastive losses that the authors' code builds on


def update_prototypes(prototypes: Tensor, u: Tensor, y: Tensor, momentum: float) -> Tensor:
    """Move prototypes, sample after sample: `p[y] <- normalised(momentum p[y] + (1 - momentum) u)`.

    Gradients reach u. Samples of different classes do not meet, so the n-th samples of all classes go together.
    """
    order = y.argsort(stable=True)
    counts = torch.bincount(y, minlength=len(prototypes))
    starts = counts.cumsum(0) - counts
    for n in range(int(counts.max())):
        present = (counts > n).nonzero()[:, 0]  # the classes that have an n-th sample
        chosen = order[starts[present] + n]
        moved = normalised(momentum * prototypes[present] + (1 - momentum) * u[chosen])
        prototypes = prototypes.index_copy(0, present, moved)
    return prototypes


def compactness(u: Tensor, y: Tensor, prototypes: Tensor, tau: float = 0.1) -> Tensor:
    """Return `tau / 0.07 * CE(u . p / tau, y)`; the factor is from the authors' code."""
    return tau / BASE_TAU * F.cross_entropy(u @ prototypes.t() / tau, y)


def dispersion(prototypes: Tensor, tau: float = 0.1) -> Tensor:
    """Return `mean_i log mean_{j != i} exp(p_i . p_j / tau)`."""
    count = len(prototypes)
    similar = prototypes @ prototypes.t() / tau
    others = ~torch.eye(count, dtype=torch.bool, device=prototypes.device)
    return (similar[others].view(count, count - 1).logsumexp(1) - math.log(count - 1)).mean()


class CIDER(Method):
    """`w tau / 0.07 CE(u . p / tau, y) + mean_i log mean_{j != i} exp(p_i . p_j / tau)`; p are prototypes.

    u is a projection D - D - 128 of the features, of length 1; the classifier stays out of it, and the logits are the
    similarities to the prototypes, which start at the means of their classes. SPCP truncates contributions to the
    projection.
    """

    paper = "How to Exploit Hyperspherical Embeddings for Out-of-Distribution Detection? (CIDER), ICLR 2023"
    cost = "two views of each image, each forwards and backwards; prototypes move sample by sample"
    score = "knn"
    views = 2
    readable = ("outputs",)  # no linear layer makes its logits

    prototypes: Tensor

    def __init__(
        self, *, momentum: float = 0.95, weight: float = 2.0, tau: float = 0.1, size: int = 128, **options: Any
    ) -> None:
        super().__init__(**options)
        self.momentum, self.weight, self.tau, self.size = momentum, weight, tau, size

    def head(self, network: Network) -> nn.Linear:
        """Return the last layer of the projection."""
        last = self.projection[-1]
        assert isinstance(last, nn.Linear)
        return last

    def prepare(self, network: Network, total_steps: int) -> None:
        """Add the projection and the prototypes, and leave the classifier as it is."""
        width, num_classes = network.num_features, network.num_classes
        self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, self.size))
        self.register_buffer("prototypes", normalised(torch.randn(num_classes, self.size)))
        network.classifier.requires_grad_(False)
        super().prepare(network, total_steps)

    def begin(self, network: Network, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Start each prototype at the mean of its class; one without samples stays at random."""
        sums = torch.zeros_like(self.prototypes)
        with evaluating(network, self):
            for x, y in batches:
                sums.index_add_(0, y, normalised(self.projection(network.forward_features(x)).float()))
        self.prototypes.copy_(torch.where(sums.any(1, keepdim=True), normalised(sums), self.prototypes))

    def outputs(self, network: Network, x: Tensor) -> Outputs:
        """Return penultimate features, the similarities to the prototypes, and the class of the closest one."""
        h = network.forward_features(x)
        z = normalised(self.projection(h)) @ self.prototypes.t() / self.tau
        return Outputs(h, z, z.argmax(1))

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss of both views of a batch, and the similarities of the first to the prototypes."""
        projected = self.projection(network.forward_features(x))
        with full_precision(x):
            u = normalised(projected.float())
            labels = y.repeat(len(x) // len(y))
            prototypes = update_prototypes(self.prototypes, u, labels, self.momentum)
            close = compactness(u, labels, prototypes.detach(), self.tau)
            loss = dispersion(prototypes, self.tau) + self.weight * close
            self.prototypes.copy_(prototypes.detach())
            return loss, (u[: len(y)] @ self.prototypes.t()).detach() / self.tau
