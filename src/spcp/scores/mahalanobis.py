"""Mahalanobis distance to the closest class (Lee et al., 2018), relative to all data (Ren et al., 2021), and of
directions (Mueller and Hein, 2025)."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from ..moments import Moments
from .base import Score, unit


def whitening(covariance: Tensor) -> Tensor:
    """Return A with `A A' = pinv(covariance)`, (D, rank), for a covariance in float64."""
    values, vectors = torch.linalg.eigh(covariance)
    good = values > values[-1] * len(values) * torch.finfo(torch.float64).eps  # as pinv counts the rank
    return vectors[:, good] / values[good].sqrt()


def nearest_distance(h: Tensor, centre: Tensor, whiten: Tensor, means: Tensor) -> Tensor:
    """Return the smallest `(h - mu_c)' S^-1 (h - mu_c)`, (B,); `means` are the whitened `mu_c - centre`."""
    u = (h - centre) @ whiten  # small numbers, so that the squares below lose no digits
    apart = torch.addmm(means.square().sum(1), u, means.t(), alpha=-2)  # (B, K), less what all classes share
    return apart.amin(1) + u.norm(dim=1).square()


class Mahalanobis(Score):
    """`max_c -(h - mu_c)' S^-1 (h - mu_c)`; all classes share one covariance (MDS)."""

    paper = "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, NeurIPS 2018"
    formula = "max_c -(h - mu_c)' S^-1 (h - mu_c)"
    cost = "one pass; matrix products of B x D x D and B x D x K; keeps D x D and K x D numbers; fitting takes D^3"
    fitted_on = ("train",)
    state: ClassVar[tuple[str, ...]] = ("centre", "whiten", "means")
    centre: Tensor
    whiten: Tensor
    means: Tensor

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Compute the means of the classes and their common covariance."""
        return self._fit(data.moments(), head)

    def _fit(self, moments: Moments, head: nn.Linear) -> Self:
        centre, whiten = moments.whole_mean, whitening(moments.covariance())
        means = (moments.mean[moments.count > 0] - centre) @ whiten
        self.centre, self.whiten, self.means = centre.float(), whiten.float(), means.float()
        return self.to(head.weight.device)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return minus the distance to the nearest class, (B,)."""
        return -nearest_distance(h, self.centre, self.whiten, self.means)


class RelativeMahalanobis(Mahalanobis):
    """The same, less the distance to a single Gaussian of all data (RMDS)."""

    paper = "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, 2021"
    formula = "max_c -(h - mu_c)' S^-1 (h - mu_c) + (h - mu)' S_0^-1 (h - mu)"
    cost = "one pass; two matrix products of B x D x D and one of B x D x K; keeps twice D x D; fitting takes D^3"
    state = ("centre", "whiten", "means", "background")
    background: Tensor

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Compute the means and both covariances."""
        super().fit(data, head)
        moments = data.moments()
        whole = moments.scatter_around(moments.whole_mean) / moments.rows
        self.background = whitening(whole).float()
        return self.to(head.weight.device)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the difference of the distances to all data and to the nearest class, (B,)."""
        return super().score(h, z, head) + ((h - self.centre) @ self.background).square().sum(1)


class SphericalMahalanobis(Mahalanobis):
    """The same for features scaled to length 1 (Mahalanobis++).

    How long features are depends on more than their class. Short ones lie near all means: where OOD inputs have such
    features, the distance itself takes them for ID.
    """

    paper = "Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025"
    formula = "max_c -(f - mu_c)' S^-1 (f - mu_c), f = h / ||h||"

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Compute the means of the classes and their common covariance, of directions."""
        return self._fit(data.moments(on_sphere=True), head)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return minus the distance to the nearest class, (B,)."""
        return super().score(unit(h), z, head)
