"""Which members should a consensus have? Every set of two to four of twelve scores, by its regret.

    python benchmarks/members.py [--most 12]

Reads what `benchmarks/decide.py` measured (docs/results/decide), and writes docs/which-members.md. The regret is how
many points less are detected at 5 % false alarms than by the best single score, chosen in hindsight. Sets are ordered
by their largest regret over all networks, of the means over near-OOD and far-OOD sets. What such a choice is worth is
seen where it was not made: every setting is left out once, and the best set of the others is tried on it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from decide import DOCS, Seeds, best_single, joined, read_results, roles_of, sets_of

from spcp.files import written
from spcp.scores import MEMBERS
from spcp.tables import to_markdown

BANKS = ("knn", "nnguide")  # keep features of training samples
SLOW = ("itp", "gradnorm")  # look at every contribution, which takes long where there are many classes
Network = tuple[str, str]  # setting and arm


@dataclass(frozen=True)
class Lost:
    """The regret of a set of members on the networks of some settings."""

    mean: float  # the largest of the means over near-OOD and far-OOD sets
    single: float  # the largest of a set
    average: float


def regrets_of_sets(seeds: Seeds) -> list[dict[str, float]]:
    """Return the regret of every set of members, in the order of `sets_of`: by OOD set, and on "near" and "far"."""
    rates = [seed["sets"]["rates"] for seed in seeds]
    best = {role: best_single(seeds, role) for role in roles_of(seeds)}
    columns = {role: [role] if "/" in role else [name for name in rates[0] if name.startswith(role)] for role in best}
    return [
        {
            role: best[role] - sum(seed[name][i] for seed in rates for name in names) / (1000 * len(rates) * len(names))
            for role, names in columns.items()
        }
        for i in range(len(next(iter(rates[0].values()))))
    ]


def lost(regrets: Mapping[Network, Sequence[Mapping[str, float]]], index: int, settings: Collection[str]) -> Lost:
    """Return the regret of one set of members on the networks of some settings."""
    cells = [by_set[index] for (setting, _), by_set in regrets.items() if setting in settings]
    groups = [cell[group] for cell in cells for group in ("near", "far")]
    return Lost(
        max(groups), max(v for cell in cells for role, v in cell.items() if "/" in role), sum(groups) / len(groups)
    )


def page(results: Mapping[Network, Seeds], most: int) -> str:
    """Return the page as Markdown."""
    candidates = next(iter(results.values()))[0]["sets"]["candidates"]
    sets = sets_of(candidates)
    regrets = {network: regrets_of_sets(seeds) for network, seeds in results.items()}
    settings = list(dict.fromkeys(setting for setting, _ in results))
    compact = [i for i, members in enumerate(sets) if not set(members) & set(BANKS)]
    among = {
        "all": list(range(len(sets))),
        "without a bank": compact,
        "for many classes": [i for i in compact if not set(sets[i]) & set(SLOW)],
    }

    def ordered(chosen_on: Collection[str], places: Collection[int]) -> list[int]:
        found = {i: lost(regrets, i, chosen_on) for i in places}
        return sorted(found, key=lambda i: (found[i].mean, found[i].average))

    def line(i: int) -> list[str]:
        found = lost(regrets, i, settings)
        return [joined(sets[i]), *(f"{100 * value:.1f}" for value in (found.mean, found.average, found.single))]

    now = [sets.index(tuple(sorted(MEMBERS[name], key=candidates.index))) for name in ("default", "large")]
    left_out = []
    for setting, (what, places) in itertools.product(settings, among.items()):
        best = ordered([other for other in settings if other != setting], places)[0]
        for (name, arm), by_set in regrets.items():
            if name == setting:
                near, far = (f"{100 * by_set[best][group]:.1f}" for group in ("near", "far"))
                left_out.append([setting, arm, what, joined(sets[best]), near, far])
    networks = ", ".join(f"{setting} {arm} ({len(seeds)})" for (setting, arm), seeds in results.items())
    header = ["members", "largest regret of a mean", "average", "largest regret of a set"]
    return "\n".join(
        [
            INTRODUCTION.format(networks=networks, candidates=", ".join(candidates)),
            "## The best sets\n",
            to_markdown(header, [line(i) for i in ordered(settings, among["all"])[:most]]),
            "Those that keep no features of training samples:\n",
            to_markdown(header, [line(i) for i in ordered(settings, among["without a bank"])[:most]]),
            f"Without {' and '.join(f'`{name}`' for name in SLOW)} too, for many classes:\n",
            to_markdown(header, [line(i) for i in ordered(settings, among["for many classes"])[:most]]),
            "The library's, `consensus` and `consensus-large`:\n",
            to_markdown(header, [line(i) for i in now]),
            LEFT_OUT,
            to_markdown(["left out", "network", "among", "chosen on the others", "near", "far"], left_out),
        ]
    )


INTRODUCTION = """# Which members?

Written by `benchmarks/members.py`. The regret of every set of two to four of these scores: {candidates}.
That is how many points less are detected at 5 % false alarms than by the best single score, chosen in hindsight on the
tested sets. Networks, with seeds: {networks}.
Sets are in the order of their largest regret, of means over near-OOD and far-OOD sets.
"""

LEFT_OUT = """## Left out

What a choice is worth where it was not made: the best set on all settings but one, tried on that one.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=12, help="sets to list")
    text = page(read_results(), parser.parse_args().most)
    with written(DOCS / "which-members.md") as file:
        file.write(text.encode())
    print(text)


if __name__ == "__main__":
    main()
