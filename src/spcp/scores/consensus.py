"""Consensus: a score made of scores that fail in different ways, from one pass."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from ..conformal import log_p_value
from ..errors import InputError
from .base import Score
from .mahalanobis import whitening
from .single import SINGLE, build

_log = logging.getLogger("spcp")

# Sets of members, by the measurements of benchmarks/decide.py; none keeps features of training samples. "default" is
# for networks with training data, "large" for so many classes that itp and gradnorm, which look at every contribution,
# would take longer than the network; "logits" is for those without training data.
MEMBERS: Mapping[str, tuple[str, ...]] = {
    "default": ("mds", "mdspp", "itp", "gradnorm"),
    "large": ("energy", "mds", "mdspp", "she"),
    "logits": ("energy", "msp", "gen"),
}
_LARGE = 1 << 22  # weights of the last layer


def normal_score(log_p: Tensor) -> Tensor:
    """Return the u with `Phi(u) = p`, finite also where p is 0 or 1 in floating point.

    >>> normal_score(torch.tensor([0.025, 0.5], dtype=torch.float64).log()).round(decimals=3).tolist()
    [-1.96, 0.0]
    """
    log_p = log_p.double()
    u = torch.special.ndtri(log_p.exp().clamp(1e-300, 1 - 2**-53))
    tail = -(-2 * log_p - math.log(4 * math.pi) - (-log_p).clamp(min=1).log()).clamp(min=1).sqrt()  # far below 0
    for _ in range(3):  # Newton's steps for log Phi(u) = log p
        log_phi = torch.special.log_ndtr(tail)
        tail = tail - (log_phi - log_p) * (log_phi + tail.square() / 2 + math.log(2 * math.pi) / 2).exp()
    return torch.where(log_p < -600, tail, u)


def _cauchy(log_p: Tensor) -> Tensor:
    """Return `-sum_m cot(pi p_m)`, on a scale on which p = 0 does not overflow: its sign times `log(1 + |.|)`."""
    p = log_p.exp().clamp(max=1 - 2**-53)
    log_cot = torch.cos(math.pi * p).abs().clamp(min=1e-300).log() - log_p - math.log(math.pi) - torch.sinc(p).log()
    most = log_cot.amax(1, keepdim=True).clamp(min=0)  # the sum is taken relative to its largest term
    total = (torch.where(p < 0.5, 1.0, -1.0) * (log_cot - most).exp()).sum(1)
    return -total.sign() * torch.logaddexp(total.abs().log() + most[:, 0], torch.zeros_like(total))


# By name: from log p (B, M) of M members to one number (B,), small where p-values are.
COMBINATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "log": lambda log_p: log_p.sum(1),  # Fisher
    "minimum": lambda log_p: log_p.amin(1),
    "harmonic": lambda log_p: -torch.logsumexp(-log_p, 1),  # log of the harmonic mean, less a constant
    "cauchy": _cauchy,
    "stouffer": lambda log_p: normal_score(log_p).sum(1),
    "whitened": lambda log_p: log_p.sum(1),  # of p-values whose normal scores are uncorrelated on ID data
}


class Consensus(Score):
    """`sum_m log p_m(x)`; p_m is the p-value of member m: the share of n held-out ID samples that score lower with it.

    No single score is good on near-OOD and far-OOD inputs of every network; a few that fail in different ways are,
    together. The sum is a score like any other: a detector calibrates it as one, so its false alarm rate holds however
    much the members depend on each other. It needs held-out ID samples for the p-values, and other ones for the
    threshold; `Detector.calibrate` divides what it is given.

    Args:
        members: names of scores, or their options by name, such as `{"energy": {}, "knn": {"k": 10}}`; by default
            `MEMBERS["default"]`, `MEMBERS["large"]` for a last layer of more than 4 million weights, and
            `MEMBERS["logits"]` where `fit` was not called, because there is no training data.
            Members that do not apply to a network are left out.
        combine: "log", or another of `COMBINATIONS`.
    """

    paper = "none: Fisher's combination of p-values (1925), calibrated as one score"
    formula = "sum_m log p_m(x)"
    cost = "one pass; what its members cost; keeps what they keep, and n numbers for each"
    fitted_on = ("train", "val")
    does_without = ("train",)
    state = ("reference", "decorrelation")
    reference: Tensor  # (M, n), each row sorted
    decorrelation: Tensor  # (M, M), of normal scores; only "whitened" uses it

    def __init__(
        self, *, members: Iterable[str] | Mapping[str, Mapping[str, Any]] | None = None, combine: str = "log"
    ) -> None:
        super().__init__()
        self._by_default = members is None
        self._readable: tuple[Collection[str], str] | None = None
        self.combine = combine
        self.members: dict[str, dict[str, Any]] | None = None
        self.parts = nn.ModuleDict()
        if members is not None:
            self._set_members(members)

    def _set_members(self, members: Iterable[str] | Mapping[str, Mapping[str, Any]]) -> None:
        options = members if isinstance(members, Mapping) else {name: {} for name in members}
        self.members = {name: dict(options[name]) for name in options}
        self.parts = nn.ModuleDict({name: build(SINGLE, name, given) for name, given in self.members.items()})
        unfit = [name for name, member in self.members_by_name().items() if member.needs_inputs]
        if unfit or not self.members:
            raise InputError(f"consensus: its members must be scores of features, not {unfit or 'none'}; name others")
        if self._readable is not None:
            self.check_readable(*self._readable)

    def members_by_name(self) -> dict[str, Score]:
        """Return the members, as built."""
        return dict(self.parts.items())  # type: ignore[arg-type]

    def check_options(self) -> None:
        """Raise an error for an unknown combination."""
        if self.combine not in COMBINATIONS:
            raise InputError(f"consensus: combine = {self.combine!r} must be one of {', '.join(COMBINATIONS)}")

    def check_readable(self, readable: Collection[str], trained_by: str) -> None:
        """Leave out the members that read what the network does not have."""
        self._readable = readable, trained_by  # also for members by default, which are not known yet
        unreadable = [name for name, member in self.members_by_name().items() if member.reads not in readable]
        self._leave_out(unreadable, f"networks trained by {trained_by} have no layer that they could read")

    def _leave_out(self, names: Collection[str], why: str) -> None:
        if not names:
            return
        left = {name: options for name, options in (self.members or {}).items() if name not in names}
        if not left:
            raise InputError(f"consensus: none of {', '.join(names)} can be a member, because {why}; name others")
        _log.log(
            logging.INFO if self._by_default else logging.WARNING, "consensus: without %s (%s)", ", ".join(names), why
        )
        self.members = left
        for name in names:
            del self.parts[name]

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Fit the members that are fitted on training data."""
        if self._by_default:
            self._set_members(MEMBERS["large" if head.weight.numel() > _LARGE else "default"])
        for member in self.members_by_name().values():
            member.fit(data, head)
        return self

    @torch.no_grad()
    def fit_held_out(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Fit the other members, and keep the scores of these ID samples with each member, for its p-values."""
        if self.members is None:
            self._set_members(MEMBERS["logits"])
        members = self.members_by_name()
        untrained = [name for name, member in members.items() if "train" in member.fitted_on and not member.is_fitted]
        self._leave_out(untrained, "there is no training data to fit them on")
        members = self.members_by_name()
        scores = torch.stack([m.fit_held_out(data, head).scores(data, head).double() for m in members.values()])
        count = int((~scores.isfinite()).any(0).sum())
        if count:
            raise InputError(
                f"{count} of {len(data)} held-out ID samples have scores that are not finite; check the inputs"
            )
        self.reference = scores.sort(1).values
        whitened = self.combine == "whitened"
        self.decorrelation = self._decorrelation(scores) if whitened else torch.eye(len(scores)).double()
        return self.to(head.weight.device)

    def _decorrelation(self, scores: Tensor) -> Tensor:
        """Return the symmetric matrix that makes the normal scores of held-out samples, (M, n), uncorrelated."""
        u = normal_score(torch.stack([log_p_value(s, r) for s, r in zip(scores, self.reference, strict=True)]))
        root = whitening(u @ u.t() / u.shape[1])  # (M, rank), of the second moments, whose inverse it squares to
        values, vectors = torch.linalg.eigh(root @ root.t())
        return (vectors * values.clamp(min=0).sqrt()) @ vectors.t()  # symmetric: u changes least

    def log_p_values(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the log of each member's p-value, (B, M)."""
        scores = [member(h, z, head) for member in self.parts.values()]
        return torch.stack([log_p_value(s, r) for s, r in zip(scores, self.reference, strict=True)], 1)

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the members' p-values in one number, (B,)."""
        log_p = self.log_p_values(h, z, head)
        if self.combine == "whitened":
            log_p = torch.special.log_ndtr(normal_score(log_p) @ self.decorrelation)
        return COMBINATIONS[self.combine](log_p).to(h.dtype)
