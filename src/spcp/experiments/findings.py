"""What experiments that are not the paper's come to, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..errors import need
from ..metrics import mean_and_deviation
from .measures import Values

KINDS = ("plain", "SPCP")  # of networks


def gains_by_norm(measured: Values, kind: str) -> tuple[list[float], list[float]]:
    """For every set and seed: the ratio of norms, and truncated less plain AUROC."""
    plain, bounded = (measured[f"{kind} network: {view} view"] for view in ("plain", "bounded"))
    x: list[float] = []
    y: list[float] = []
    for (name, metric), ratios in plain.items():
        if metric == "norm ratio":
            x += ratios
            y += [a - b for a, b in zip(bounded[name, "AUROC"], plain[name, "AUROC"], strict=True)]
    return x, y


def norms(measured: Values) -> tuple[str, ...]:
    """Whether truncated energy gains where features are long, and loses where they are short."""
    said = []
    for kind in KINDS:
        x, y = (np.asarray(own) for own in gains_by_norm(measured, kind))
        agree = int(((x > 1) == (y > 0)).sum())
        varies = len(set(x)) > 1 and len(set(y)) > 1
        rank = float(need("scipy.stats", "scipy").spearmanr(x, y).statistic) if varies else 0.0
        said.append(
            f"{kind} networks: where odd features are longer than known ones truncated energy is better, and where "
            f"they are shorter plain energy is, in {agree} of {len(x)} cases (a set and a seed each); rank correlation "
            f"of length and gain {rank:+.2f}."
        )
    return tuple(said)


def auto(measured: Values) -> tuple[str, ...]:
    """Whether "auto" comes within the seeds' deviation of the grid's winner, or above: its aim."""
    said = []
    for group in ("near", "far"):
        found, winner = (measured[row][group, "AUROC"] for row in ("SPCP auto", "SPCP"))
        points = mean_and_deviation(found)[0] - mean_and_deviation(winner)[0]
        deviation = mean_and_deviation(winner)[1]
        said.append(
            f"{group} sets: auto less the grid's winner {points:+.1f} points of AUROC; the winner deviates by "
            f"{deviation:.1f} over seeds, so the aim is {'met' if points >= -deviation else 'missed'}."
        )
    return tuple(said)


def views(measured: Values) -> tuple[str, ...]:
    """Whether two views come within a point of the better one on every set."""
    said = []
    for kind in KINDS:
        rows = [measured[f"{kind} network: {own}"] for own in ("plain view", "bounded view", "two views")]
        sets = [own for own, metric in rows[0] if metric == "AUROC" and own not in ("near", "far")]
        means = np.array([[mean_and_deviation(row[own, "AUROC"])[0] for own in sets] for row in rows])
        short = means[2] - means[:2].max(0)
        worst = int(short.argmin())
        said.append(
            f"{kind} networks: within a point of the better view on {int((short >= -1).sum())} of {len(sets)} sets, at "
            f"worst {short[worst]:+.1f} ({sets[worst]}); mean AUROC over sets {means[2].mean():.1f}, of the plain view "
            f"{means[0].mean():.1f}, of the truncated one {means[1].mean():.1f}."
        )
    return tuple(said)


FINDINGS: Mapping[str, Callable[[Values], tuple[str, ...]]] = {
    "feature-norms": norms,
    "rho-auto": auto,
    "two-views": views,
}
