"""Sentences on the outcome of our additions to the paper's experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import need
from .measures import Measure, Values

KINDS = ("plain", "SPCP")  # of networks


def gains_by_norm(measured: Values, kind: str) -> tuple[list[float], list[float]]:
    """Return, for every set and seed, the ratio of norms, and truncated less plain AUROC."""
    plain, truncated = (measured[f"{kind} network: {view} view"] for view in ("plain", "truncated"))
    x: list[float] = []
    y: list[float] = []
    for (name, metric), ratios in plain.items():
        if metric == "norm ratio":
            seeds = [seed for seed in ratios if seed in truncated.get((name, "AUROC"), {})]
            x += [ratios[seed] for seed in seeds]
            y += [truncated[name, "AUROC"][seed] - plain[name, "AUROC"][seed] for seed in seeds]
    return x, y


def norms(measured: Values) -> tuple[str, ...]:
    """Tell whether truncated energy gains where features are long, and loses where they are short."""
    sentences = []
    for kind in KINDS:
        x, y = map(np.asarray, gains_by_norm(measured, kind))
        agree, (better, usual) = int(((x > 1) == (y > 0)).sum()), _usual(y)
        sentences.append(
            f"{kind} networks: truncated energy is better where OOD features are longer than ID features, and plain "
            f"energy where they are shorter, in {agree} of {len(x)} cases (a set and a seed each), while "
            f"{'truncated' if better else 'plain'} energy is better in {usual}; rank correlation of length and gain "
            f"{_rank(x, y):+.2f}."
        )
    return tuple(sentences)


def _usual(gains: np.ndarray) -> tuple[bool, int]:
    """Return whether most gains are above 0, and how many are on that side: what a prediction has to beat."""
    rises = int((gains > 0).sum())
    return (True, rises) if 2 * rises >= len(gains) else (False, len(gains) - rises)


def auto(measured: Values) -> tuple[str, ...]:
    """Tell how far "auto" is from plain training and from the value that a search chose."""
    sentences = []
    for group in ("near", "far"):
        ours = measured["SPCP auto"]
        gains = {name: _gains(ours, measured[row], group) for name, row in (("plain", "Vanilla"), ("search", "SPCP"))}
        if not all(gains.values()):  # no seed that both have
            continue
        points = {name: float(np.mean([*values.values()])) for name, values in gains.items()}
        sentences.append(
            f"{group} sets: its AUROC is {_apart(points['plain'])} plain training and {_apart(points['search'])} the "
            f"value chosen on validation data ({count_seeds(len(gains['search']))})."
        )
    return tuple(sentences)


def _apart(points: float) -> str:
    return f"{abs(points):.1f} points {'above' if points >= 0 else 'below'}"


def views(measured: Values) -> tuple[str, ...]:
    """Tell whether two views come within a point of the better one on every set."""
    sentences = []
    for kind in KINDS:
        rows = [measured[f"{kind} network: {view}"] for view in ("plain view", "truncated view", "two views")]
        sets = [name for name, metric in rows[0] if metric == "AUROC" and name not in ("near", "far")]
        seeds = sorted(set.intersection(*(set(row[sets[0], "AUROC"]) for row in rows)))
        means = np.array([[_mean_over(row, seeds, (name, "AUROC")) for name in sets] for row in rows])
        short = means[2] - means[:2].max(0)
        worst = int(short.argmin())
        sentences.append(
            f"{kind} networks: AUROC within a point of the better view on {int((short >= -1).sum())} of {len(sets)} "
            f"sets, at worst {_apart(short[worst])} it ({sets[worst]}); mean over sets {means[2].mean():.1f}, of the "
            f"plain view alone {means[0].mean():.1f}, of the truncated one alone {means[1].mean():.1f}."
        )
    return tuple(sentences)


AUROCS = (("near", "AUROC"), ("far", "AUROC"))
SCALES = {  # how much is truncated, by the column and metric that say it
    "rho_norm": None,  # asked for
    "the share of all contributions": ("contributions", "truncated %"),
    "the share of the positive contributions": ("contributions", "truncated of positive %"),
    "the threshold over the mean support": ("contributions", "threshold over support"),
}


@dataclass(frozen=True)
class Curve:
    """What truncation does to one kind of network, over the seeds that all of its rows have."""

    seeds: int
    plain: float  # AUROC, the mean of near and far sets
    auto: float | None
    rho_norm: np.ndarray  # (n,), above 0
    auroc: np.ndarray  # (n,)
    scales: Mapping[str, np.ndarray]  # by the names of SCALES, (n,) each

    @property
    def best(self) -> float:
        """Return the largest AUROC of all."""
        return max(self.plain, float(self.auroc.max()), self.plain if self.auto is None else self.auto)


def _rows_by_kind(measured: Values) -> dict[str, dict[str, str]]:
    """Return, by the kind of network, its rows: "plain", "auto", "rho_norm=0.5" and the like."""
    rows: dict[str, dict[str, str]] = {}
    for row in measured:
        kind, _, name = row.rpartition(" ")
        rows.setdefault(kind, {})[name] = row
    return rows


def curves_of(measured: Values) -> dict[str, Curve]:
    """Return a curve for each kind of network that has a plain run and at least two values of rho_norm."""
    curves = {}
    for kind, by_name in _rows_by_kind(measured).items():
        values = sorted((float(name[9:]), row) for name, row in by_name.items() if name.startswith("rho_norm="))
        if "plain" not in by_name or len(values) < 2:
            continue
        used = [by_name["plain"], *(row for _, row in values)]
        seeds = sorted(set.intersection(*(set(measured[row]["near", "AUROC"]) for row in used)))
        if not seeds:
            continue
        rows = [measured[row] for _, row in values]
        auto = measured.get(by_name.get("auto", ""), {})
        asked = np.array([value for value, _ in values])
        curves[kind] = Curve(
            len(seeds),
            _mean_over(measured[by_name["plain"]], seeds, *AUROCS),
            _mean_over(auto, seeds, *AUROCS) if set(seeds) <= set(auto.get(AUROCS[0], {})) else None,
            asked,
            np.array([_mean_over(by, seeds, *AUROCS) for by in rows]),
            {
                name: asked if measure is None else np.array([_mean_over(by, seeds, measure) for by in rows])
                for name, measure in SCALES.items()
            },
        )
    return curves


def _mean_over(by: Mapping[Measure, Mapping[int, float]], seeds: Sequence[int], *measures: Measure) -> float:
    return float(np.mean([by[measure][seed] for measure in measures for seed in seeds]))


class Loss(NamedTuple):
    """What a kind of network loses to its best by an amount of truncation that was not chosen on it."""

    points: float  # of AUROC
    beyond: bool = False  # whether nothing like that amount was trained, so that the nearest stands for it


def losses_on_scale(curves: Mapping[str, Curve], scale: str) -> dict[str, Loss]:
    """Return what each kind of network loses if its amount is chosen on the others.

    On the others, the value of the scale with the largest mean AUROC is chosen, among those that were trained on them;
    between the values that were trained, AUROC is interpolated, and beyond them it stays as it is at the last one.
    """

    def at(curve: Curve, value: np.ndarray) -> np.ndarray:
        order = np.argsort(curve.scales[scale])
        return np.interp(value, curve.scales[scale][order], curve.auroc[order])

    lost = {}
    for kind, curve in curves.items():
        others = [other for name, other in curves.items() if name != kind]
        points = np.unique(np.concatenate([other.scales[scale] for other in others]))
        chosen = points[np.mean([at(other, points) - other.plain for other in others], 0).argmax()]
        beyond = not curve.scales[scale].min() <= chosen <= curve.scales[scale].max()
        lost[kind] = Loss(curve.best - float(at(curve, chosen)), beyond)
    return lost


NO_SCALE = "no truncation"  # what a scale has to beat, too
Losses = Mapping[str, Mapping[str, Loss]]  # by scale and kind


def losses_by_scale(measured: Values) -> Losses:
    """Return what each kind of network loses, by the scale of the one amount that all of them take, the least first."""
    curves = curves_of(measured)
    if len(curves) < 2:
        return {}
    losses = {scale: losses_on_scale(curves, scale) for scale in SCALES}
    losses["auto"] = {kind: Loss(curve.best - curve.auto) for kind, curve in curves.items() if curve.auto is not None}
    losses[NO_SCALE] = {kind: Loss(curve.best - curve.plain) for kind, curve in curves.items()}
    complete = [name for name, lost in losses.items() if len(lost) == len(curves)]
    return {name: losses[name] for name in sorted(complete, key=lambda name: mean_loss(losses[name]))}


def mean_loss(by_kind: Mapping[str, Loss]) -> float:
    """Return the mean over kinds of networks, in points."""
    return float(np.mean([loss.points for loss in by_kind.values()]))


def best_scale(losses: Losses) -> str:
    """Say which scales transfer best, by how much, and whether one value of rho_norm transfers at all.

    A scale on which every kind lacks the amount that suits the others says nothing.
    """
    lost = {name: mean_loss(by_kind) for name, by_kind in losses.items()}
    known = [name for name in losses if name in SCALES and not all(loss.beyond for loss in losses[name].values())]
    if len(known) < 2:
        return "no scale can be told from another, because the kinds were trained with other amounts on them"
    best = [name for name in known if lost[name] < lost[known[0]] + 0.05]
    ahead = "" if "rho_norm" in best else f", by {lost['rho_norm'] - lost[best[0]]:.1f} points over rho_norm"
    useless = "" if lost["rho_norm"] < lost[NO_SCALE] else "; one value of rho_norm for all is no better than none"
    return f"{' and '.join(best)} transfer{'s' if len(best) == 1 else ''} best{ahead}{useless}"


def best_amounts(measured: Values) -> str:
    """List the rho_norm with the highest AUROC on the test sets, for each kind of network."""
    return "; ".join(
        f"{kind} {'none' if curve.plain >= curve.auroc.max() else f'{curve.rho_norm[curve.auroc.argmax()]:g}'} "
        f"({count_seeds(curve.seeds)})"
        for kind, curve in curves_of(measured).items()
    )


def scales(measured: Values) -> tuple[str, ...]:
    """Tell which scale means the same for other networks: what is lost if the amount is taken over from others."""
    losses = losses_by_scale(measured)
    if not losses:
        return ()
    told = "; ".join(
        f"{'one value of ' if name in SCALES else ''}{name} {mean_loss(by_kind):.1f} (at worst "
        f"{max(by_kind.values()).points:.1f})"
        for name, by_kind in losses.items()
    )
    return (
        f"one amount for all of {len(losses[NO_SCALE])} kinds of networks, chosen on the others, loses this much AUROC "
        f"(mean of near and far sets) to the best of each kind: {told}. So {best_scale(losses)}.",
        f"the best rho_norm by test sets: {best_amounts(measured)}.",
    )


PREDICTORS: Mapping[str, tuple[Measure, float | None]] = {  # what the plain network tells, and above what it is a yes
    "longer features of OOD validation data than of ID data": (("validation", "norm ratio"), 1.0),
    "a higher validation AUROC if the plain network is truncated as it is": (("validation", "gain at inference"), 0.0),
    "the share of positive contributions": (("contributions", "positive %"), None),
}


AMOUNTS = {"chosen": "chosen on validation data", "auto": "auto", "3": "3"}  # of truncation


@dataclass(frozen=True)
class Case:
    """What a plain network told, by the names of PREDICTORS, and what SPCP made of one like it: gains of AUROC.

    Gains are means of near and far sets, by the names of AMOUNTS; "chosen" is for the kind of network.
    """

    kind: str
    told: Mapping[str, float]
    gains: Mapping[str, float]


def cases_of(measured: Values) -> list[Case]:
    """Return a case for each kind of network and seed that has a plain run; one value of rho_norm is not a choice."""
    cases = []
    for kind, by_name in _rows_by_kind(measured).items():
        if "plain" not in by_name:
            continue
        rows = {name: measured[row] for name, row in by_name.items()}
        amounts = {text: rows[name] for text, name in (("auto", "auto"), ("3", "rho_norm=3")) if name in rows}
        values = {name: by.get(("validation", "AUROC"), {}) for name, by in rows.items() if "rho_norm=" in name}
        shared = set.intersection(*map(set, values.values())) if len(values) > 1 else set()
        if shared:
            area = {name: np.mean([by_seed[seed] for seed in shared]) for name, by_seed in values.items()}
            amounts["chosen"] = rows[max(area, key=lambda name: area[name])]
        plain = rows["plain"]
        for seed in plain["near", "AUROC"]:
            gains = {
                text: float(np.mean([by[g, "AUROC"][seed] - plain[g, "AUROC"][seed] for g in ("near", "far")]))
                for text, by in amounts.items()
                if seed in by["near", "AUROC"]
            }
            told = {
                name: plain[measure][seed]
                for name, (measure, _) in PREDICTORS.items()
                if seed in plain.get(measure, {})
            }
            if gains and told:
                cases.append(Case(kind, told, gains))
    return cases


@dataclass(frozen=True)
class Prediction:
    """How well plain networks tell whether SPCP, with one amount, helps."""

    amount: str
    kinds: tuple[str, ...]  # of networks
    gains: np.ndarray  # of AUROC, (cases,)
    right: Mapping[str, int]  # in how many cases, by the names of PREDICTORS
    ranks: Mapping[str, float]  # the rank correlation of what is told and the gain

    @property
    def rises(self) -> int:
        """Return in how many cases AUROC rises."""
        return int((self.gains > 0).sum())

    @property
    def usual(self) -> tuple[str, int]:
        """Return the answer that is right more often, and how often: what a prediction has to beat."""
        rises, count = _usual(self.gains)
        return "yes" if rises else "no", count

    @property
    def best(self) -> str | None:
        """Return what tells best, if it beats the usual answer; a bound fitted to the cases predicts nothing."""
        names = [name for name in self.right if PREDICTORS[name][1] is not None]
        name = max(names, key=lambda name: self.right[name], default=None)
        return name if name is not None and self.right[name] > self.usual[1] else None


def predictions(measured: Values) -> list[Prediction]:
    """Return how well the plain network predicts the gain of each amount that at least three cases have."""
    cases = cases_of(measured)
    found = []
    for amount, text in AMOUNTS.items():
        known = [case for case in cases if amount in case.gains]
        if len(known) < 3:
            continue
        y = np.array([case.gains[amount] for case in known])
        right, ranks = {}, {}
        for name, (_, bound) in PREDICTORS.items():
            x = np.array([case.told.get(name, np.nan) for case in known])
            if not np.isnan(x).any():
                right[name] = int(((x > bound) == (y > 0)).sum()) if bound is not None else _best_split(x, y > 0)
                ranks[name] = _rank(x, y)
        found.append(Prediction(text, tuple(dict.fromkeys(case.kind for case in known)), y, right, ranks))
    return found


def prediction(measured: Values) -> tuple[str, ...]:
    """Tell how well the plain network predicts whether SPCP helps."""
    sentences = []
    for each in predictions(measured):
        told = []
        for name, count in each.right.items():
            hindsight = " with a bound fitted to these cases" if PREDICTORS[name][1] is None else ""
            told.append(f"{name}: right in {count}{hindsight}, rank correlation {each.ranks[name]:+.2f}")
        answer, usual = each.usual
        sentences.append(
            f"with rho_norm {each.amount} AUROC rises in {each.rises} of {len(each.gains)} cases (a seed of one of "
            f"{len(each.kinds)} kinds of networks), by {each.gains.min():+.1f} to {each.gains.max():+.1f} points. "
            f"Predicted by {'; by '.join(told)}. Always saying {answer} is right in {usual}, so "
            + (f"the best sign is {each.best}." if each.best else "none of these is enough.")
        )
    return tuple(sentences)


def _best_split(x: np.ndarray, is_up: np.ndarray) -> int:
    """Return in how many cases the best bound on x, in either direction, tells whether AUROC rises."""
    above = [(x > bound) == is_up for bound in (-np.inf, *x)]
    return max(max(int(right.sum()), len(x) - int(right.sum())) for right in above)


def _rank(x: np.ndarray, y: np.ndarray) -> float:
    varies = len(set(x)) > 1 and len(set(y)) > 1
    return float(need("scipy.stats", "scipy").spearmanr(x, y).statistic) if varies else 0.0


def lengths(measured: Values) -> tuple[str, ...]:
    """Tell the gain of SPCP at each length of training, over the seeds that both have."""
    return tuple(
        f"{name}, {group} sets, gain of AUROC over plain training: "
        + ", ".join(
            f"{np.mean(gains):+.1f} after {epochs} epochs ({count_seeds(len(gains))})" for epochs, gains in points
        )
        + "."
        for (name, group), points in gains_by_length(measured).items()
    )


def augmentation(measured: Values) -> tuple[str, ...]:
    """Tell the gain of SPCP with and without augmentation, and how closely the plain networks fit their data."""
    sentences = []
    for suffix, what in (("", "augmented"), (" not augmented", "not augmented")):
        plain = measured.get(f"Vanilla{suffix}")
        if plain is None:
            continue
        told = []
        for name in ("SPCP", "SPCP rho_norm=3"):
            gains = {group: _gains(measured.get(name + suffix, {}), plain, group) for group in ("near", "far")}
            if all(gains.values()):
                listed = ", ".join(f"{group} {np.mean([*values.values()]):+.1f}" for group, values in gains.items())
                told.append(f"{name} {listed} ({count_seeds(len(gains['near']))})")
        loss = np.mean(list(plain["training", "loss"].values()))
        gained = f"; gain of AUROC over plain training: {'; '.join(told)}" if told else ""
        sentences.append(f"{what}: training loss {loss:.3f}{gained}.")
    return tuple(sentences)


def _gains(
    ours: Mapping[Measure, Mapping[int, float]], plain: Mapping[Measure, Mapping[int, float]], group: str
) -> dict[int, float]:
    """Return the gain of AUROC for each seed that both have."""
    rows = [by.get((group, "AUROC"), {}) for by in (ours, plain)]
    return {seed: rows[0][seed] - rows[1][seed] for seed in sorted(rows[0].keys() & rows[1].keys())}


def count_seeds(count: int) -> str:
    """Write a number of seeds: "one seed", "3 seeds"."""
    return "one seed" if count == 1 else f"{count} seeds"


def gains_by_length(measured: Values) -> dict[tuple[str, str], list[tuple[int, list[float]]]]:
    """Return, by method and group, epochs and the gain of AUROC over plain training of the same length, by seed.

    Lengths are compared over the seeds that all of them have.
    """
    gains: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for row, by in measured.items():
        name, _, length = row.partition(" for ")
        for group in ("near", "far"):
            gained = _gains(by, measured.get(f"Vanilla for {length}", {}), group)
            if name != "Vanilla" and gained:
                gains.setdefault((name, group), {})[int(length.split()[0])] = gained
    shared = {key: set.intersection(*map(set, lengths.values())) for key, lengths in gains.items()}
    return {
        key: [(epochs, [gained[seed] for seed in sorted(shared[key])]) for epochs, gained in lengths.items()]
        for key, lengths in gains.items()
        if shared[key]
    }


FINDINGS: Mapping[str, Callable[[Values], tuple[str, ...]]] = {
    "feature-norms": norms,
    "rho-auto": auto,
    "two-views": views,
    "scales": scales,
    "prediction": prediction,
    "training-length": lengths,
    "augmentation": augmentation,
}
PARTIAL = ("scales", "prediction", "training-length", "augmentation")  # which also tell something of some of their rows
