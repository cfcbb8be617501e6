"""Which members should a consensus have? Every set of two to five of twelve scores, by its regret.

    python benchmarks/members.py SETTING ... [--seeds 3] [--arms plain SPCP] [--root DATA] [--out FOLDER] [--most 20]

Settings, networks and the regret are those of `benchmarks/decide.py`: how many points less are detected at 5 % false
alarms than by the best single score, chosen in hindsight. Sets are ordered by their largest regret over all settings:
of the means over near-OOD and far-OOD sets, and of single sets less the 8 points that the aims allow those more.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from decide import ARMS, MEAN_AIM, SET_AIM, SETTINGS, detected_at, is_single
from torch import Tensor

from spcp.conformal import log_p_value, split
from spcp.evaluation import Evaluation
from spcp.tables import to_markdown

CANDIDATES = ("msp", "energy", "gen", "rmds", "mds", "knn", "vim", "nci", "fdbd", "nnguide", "itp", "relation")
Seed = tuple[dict[str, Tensor], dict[str, dict[str, float]]]  # log p (N, members) by set; singles' rates by set


def seed_of(evaluation: Evaluation) -> Seed:
    """Return the log p-values of the candidates on every set, and what each single score detects of it."""
    roles = [role for role in evaluation.benchmark.sets() if role.startswith(("near/", "far/"))]
    reference, _ = split(len(evaluation.bank("val")))
    columns: dict[str, list[Tensor]] = {role: [] for role in ("test", *roles)}
    singles: dict[str, dict[str, float]] = {role: {} for role in roles}
    for name in filter(is_single, evaluation.default_scores()):
        score = evaluation.fitted(name)
        values = {role: evaluation.scores(score, role) for role in columns}
        for role in roles:
            singles[role][name] = detected_at(values["test"], values[role])
        if name in CANDIDATES:
            id_scores = evaluation.scores(score, "val")[reference].double().sort().values
            for role, column in columns.items():
                column.append(log_p_value(values[role], id_scores))
    return {role: torch.stack(column, 1) for role, column in columns.items()}, singles


def regrets(seeds: list[Seed], members: list[int]) -> dict[str, float]:
    """Return the regret of a set of members on every OOD set, and on the means over "near" and "far"."""
    roles = list(seeds[0][1])

    def mean(of: list[dict[str, float]], group: str) -> float:
        values = [rates[role] for rates in of for role in roles if role == group or role.partition("/")[0] == group]
        return sum(values) / len(values)

    combined = []
    for log_p, _ in seeds:
        scores = {role: values[:, members].sum(1) for role, values in log_p.items()}
        combined.append({role: detected_at(scores["test"], scores[role]) for role in roles})
    lost = {}
    for group in (*roles, "near", "far"):
        names = seeds[0][1][roles[0]]
        best = max(mean([{role: rates[name] for role, rates in s.items()} for _, s in seeds], group) for name in names)
        lost[group] = best - mean(combined, group)
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", choices=SETTINGS, metavar="SETTING", help=", ".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("reproduce"), help="where runs are kept")
    parser.add_argument("--most", type=int, default=20, help="rows to print")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = [
        [seed_of(Evaluation(*SETTINGS[setting](arm, seed, options.root, options.out))) for seed in range(options.seeds)]
        for setting in options.settings
        for arm in options.arms
    ]
    rows = []
    for count in (2, 3, 4, 5):
        for members in itertools.combinations(range(len(CANDIDATES)), count):
            lost = [regrets(seeds, list(members)) for seeds in settings]
            means = max(value for one in lost for group, value in one.items() if "/" not in group)
            sets = max(value for one in lost for group, value in one.items() if "/" in group)
            average = sum(one["near"] + one["far"] for one in lost) / (2 * len(lost))
            rows.append((max(means, sets - SET_AIM + MEAN_AIM), means, sets, average, members))
    lines = [
        ["+".join(CANDIDATES[i] for i in members), *(f"{100 * value:.1f}" for value in values)]
        for _, *values, members in sorted(rows)[: options.most]
    ]
    print(to_markdown(["members", "largest regret of a mean", "of a set", "mean regret"], lines))


if __name__ == "__main__":
    main()
