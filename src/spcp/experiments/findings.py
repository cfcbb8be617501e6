"""Sentences on the outcome of our additions to the paper's experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..errors import need
from ..metrics import mean_and_deviation
from .measures import Values

KINDS = ("plain", "SPCP")  # of networks


def gains_by_norm(measured: Values, kind: str) -> tuple[list[float], list[float]]:
    """Return, for every set and seed, the ratio of norms, and truncated less plain AUROC."""
    plain, truncated = (measured[f"{kind} network: {view} view"] for view in ("plain", "truncated"))
    x: list[float] = []
    y: list[float] = []
    for (name, metric), ratios in plain.items():
        if metric == "norm ratio":
            x += ratios.values()
            y += [truncated[name, "AUROC"][seed] - plain[name, "AUROC"][seed] for seed in ratios]
    return x, y


def norms(measured: Values) -> tuple[str, ...]:
    """Tell whether truncated energy gains where features are long, and loses where they are short."""
    sentences = []
    for kind in KINDS:
        x, y = map(np.asarray, gains_by_norm(measured, kind))
        agree = int(((x > 1) == (y > 0)).sum())
        varies = len(set(x)) > 1 and len(set(y)) > 1
        rank = float(need("scipy.stats", "scipy").spearmanr(x, y).statistic) if varies else 0.0
        sentences.append(
            f"{kind} networks: where OOD features are longer than ID features truncated energy is better, and where "
            f"they are shorter plain energy is, in {agree} of {len(x)} cases (a set and a seed each); rank correlation "
            f"of length and gain {rank:+.2f}."
        )
    return tuple(sentences)


def auto(measured: Values) -> tuple[str, ...]:
    """Tell whether "auto" comes within the seeds' deviation of the grid's winner, or above: its aim."""
    sentences = []
    for group in ("near", "far"):
        ours, theirs = (measured[name][group, "AUROC"] for name in ("SPCP auto", "SPCP"))
        seeds = ours.keys() & theirs.keys()
        winner, deviation = mean_and_deviation([theirs[seed] for seed in seeds])
        points = mean_and_deviation([ours[seed] for seed in seeds])[0] - winner
        sentences.append(
            f"{group} sets: auto less the grid's winner {points:+.1f} points of AUROC; the winner deviates by "
            f"{deviation:.1f} over seeds, so the aim is {'met' if points >= -deviation else 'missed'}."
        )
    return tuple(sentences)


def views(measured: Values) -> tuple[str, ...]:
    """Tell whether two views come within a point of the better one on every set."""
    sentences = []
    for kind in KINDS:
        rows = [measured[f"{kind} network: {view}"] for view in ("plain view", "truncated view", "two views")]
        sets = [name for name, metric in rows[0] if metric == "AUROC" and name not in ("near", "far")]
        means = np.array([[mean_and_deviation(list(row[name, "AUROC"].values()))[0] for name in sets] for row in rows])
        short = means[2] - means[:2].max(0)
        worst = int(short.argmin())
        sentences.append(
            f"{kind} networks: within a point of the better view on {int((short >= -1).sum())} of {len(sets)} sets, at "
            f"worst {short[worst]:+.1f} ({sets[worst]}); mean AUROC over sets {means[2].mean():.1f}, of the plain view "
            f"{means[0].mean():.1f}, of the truncated one {means[1].mean():.1f}."
        )
    return tuple(sentences)


FINDINGS: Mapping[str, Callable[[Values], tuple[str, ...]]] = {
    "feature-norms": norms,
    "rho-auto": auto,
    "two-views": views,
}
