"""VOS (Du et al., 2022): outliers drawn from the edge of the class-conditional features."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Chi2
from torch.nn import functional as F

from ..networks import Network
from .base import Method, full_precision


def weighted_energy(z: Tensor, w: Tensor) -> Tensor:
    """Return `log sum_k relu(w_k) exp(z_k)`, (B,)."""
    z = z.masked_fill(w <= 0, -torch.inf)  # these count for nothing, however large
    top = z.detach().amax(1, keepdim=True)
    return top[:, 0] + ((z - top).exp() @ w.relu()).log()


def tied_gaussian(features: Tensor, y: Tensor, num_classes: int, ridge: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Return class means (K, D), and the covariance (D, D) of features minus their means, `+ ridge * I`."""
    sums = features.new_zeros(num_classes, features.shape[1]).index_add_(0, y, features)
    means = sums / torch.bincount(y, minlength=num_classes).clamp(min=1)[:, None]
    centred = features - means[y]
    covariance = centred.t() @ centred / len(features)
    return means, covariance + ridge * torch.eye(features.shape[1], dtype=features.dtype, device=features.device)


def virtual_outliers(means: Tensor, covariance: Tensor, draws: int) -> Tensor:
    """Return for each class the least likely of so many draws of its Gaussian, (K, D).

    A draw is `mean + L e` with `L L' = covariance`, and its density falls with `||e||`. Length and direction of e are
    independent: so the least likely of n draws has the largest of n chi-square lengths, in any direction.
    """
    K, D = means.shape
    squares = Chi2(means.new_tensor(float(D))).sample((K, draws))
    direction = F.normalize(torch.randn_like(means), dim=1)
    e = direction * squares.amax(1, keepdim=True).sqrt()
    return means + e @ torch.linalg.cholesky(covariance).t()


def uncertainty_loss(energy_id: Tensor, energy_ood: Tensor, logistic: nn.Linear) -> Tensor:
    """Return the logistic loss of telling ID (1) from virtual outliers (0) by their energies."""
    energy = torch.cat([energy_id, energy_ood])
    target = torch.cat([torch.ones_like(energy_id), torch.zeros_like(energy_ood)])
    return F.binary_cross_entropy_with_logits(logistic(energy[:, None])[:, 0], target)


class VOS(Method):
    """`CE(z, y) + weight * BCE(logistic(E), ID or drawn)`; the second term, on energies E, counts from `start` on.

    A queue of `samples` features for each class feeds the Gaussians. Gradients of the loss reach the network through
    the energies of the batch, and the classifier through those of the outliers too.
    """

    paper = "VOS: Learning What You Don't Know by Virtual Outlier Synthesis, ICLR 2022"
    cost = "one pass forwards and backwards; keeps K x samples features; later each step makes their D x D covariance"

    transient = ("queue", "filled")
    queue: Tensor
    filled: Tensor

    def __init__(
        self, *, weight: float = 0.1, start: float = 0.4, samples: int = 1000, draws: int = 10_000, **options: Any
    ) -> None:
        super().__init__(**options)
        self.weight, self.start, self.samples, self.draws = weight, start, samples, draws
        self.warned = False

    def prepare(self, network: Network, total_steps: int) -> None:
        """Add the queues, the weights of the energy and the logistic regression."""
        super().prepare(network, total_steps)
        num_classes = network.num_classes
        self.register_buffer("queue", torch.zeros(num_classes, self.samples, network.num_features))
        self.register_buffer("filled", torch.zeros(num_classes, dtype=torch.int64))  # how many were ever put in
        self.energy_weights = nn.Parameter(torch.rand(num_classes))
        self.logistic = nn.Linear(1, 1)

    @torch.no_grad()
    def _remember(self, h: Tensor, y: Tensor) -> None:
        for k in y.unique().tolist():
            newest = h[y == k][-self.samples :]
            places = (self.filled[k] + torch.arange(len(newest), device=h.device)) % self.samples
            self.queue[k, places] = newest.to(self.queue.dtype)
            self.filled[k] += len(newest)

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits."""
        h = network.forward_features(x)
        z = network.classifier(h)
        loss = F.cross_entropy(z, y)
        self._remember(h.detach(), y)
        full = int(self.filled.min()) >= self.samples
        if progress < self.start or not full:
            if progress > 0.9 and not full and not self.warned:
                self.warned = True
                warnings.warn(
                    f"VOS has seen {int(self.filled.min())} samples of a class, of {self.samples} that it waits for: "
                    f"it trains plainly. Choose a smaller number of samples, or more epochs.",
                    stacklevel=2,
                )
            unused = self.energy_weights.sum() + self.logistic.weight.sum() + self.logistic.bias.sum()
            return loss + 0 * unused, z  # data parallel training wants a gradient for every parameter
        with full_precision(x):
            labels = torch.arange(len(self.queue), device=h.device).repeat_interleave(self.samples)
            means, covariance = tied_gaussian(self.queue.flatten(0, 1), labels, len(self.queue))
            outliers = virtual_outliers(means, covariance, self.draws)
            training = network.classifier.training
            network.classifier.training = False  # an SPCP head's threshold follows real features only
            z_out = network.classifier(outliers)
            network.classifier.training = training
            energy_id, energy_ood = (weighted_energy(each, self.energy_weights) for each in (z.float(), z_out))
            return loss + self.weight * uncertainty_loss(energy_id, energy_ood, self.logistic), z
