"""What to make of the numbers: rankings, ablations side by side, and three questions that the paper does not ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from spcp.experiments import Outcome, findings
from spcp.experiments.catalogue import BOTH_HEADS, PLAIN_HEAD
from spcp.experiments.findings import count_seeds
from spcp.metrics import mean_and_deviation

from .archive import MAIN, TITLES, Kept, mean_text, pictures_of, shared_seeds, write_table

FINDINGS = {  # what our additions found, introduced
    "feature-norms": "",
    "rho-auto": "rho_norm = auto, ",
    "two-views": "two views of ",
    "augmentation": "",
}
QUESTIONS = {  # by the experiment that answers
    "training-length": "Does longer training turn it around?",
    "scales": "Is rho_norm the right scale to set how much is truncated?",
    "prediction": "Does a plain network tell whether SPCP will help?",
}


def write_remarks(kept: Kept) -> Iterator[str]:
    """Sum up what follows from the numbers: tables with the settings side by side, and sentences."""
    ranked = {title: by_name[MAIN[title]] for title, by_name in kept.items() if MAIN[title] in by_name}
    yield from write_table(  # every method of the main table that learnt
        ["the best by AUROC", "near", "SPCP's place", "far", "SPCP's place"],
        [
            [f"{title} ({count_seeds(len(shared_seeds(main)))})", *_ranking(main)]
            for title, main in ranked.items()
            if shared_seeds(main)
        ],
    )
    yield from _beside(kept, "ablation-stage", "truncated at")
    yield from _beside(kept, "noise-validation", "trained with")
    yield from _heads(kept)
    for title, by_name in kept.items():
        for name, what in FINDINGS.items():
            if name in by_name:
                yield from (f"- {title}, {what}{finding}" for finding in by_name[name].findings)


NUMBERS = (("near", "AUROC"), ("far", "AUROC"), ("id", "ACC"))


def _beside(kept: Kept, name: str, what: str) -> Iterator[str]:
    """Write the means of an experiment, its rows below each other and the settings side by side."""
    run = {title: by_name[name] for title, by_name in kept.items() if name in by_name}
    rows = list(dict.fromkeys(row for outcome in run.values() for row in outcome.rows))
    titles = {title: f"{title}, {count_seeds(len(shared_seeds(outcome)))}" for title, outcome in run.items()}
    yield from write_table(
        [what, *(f"{titles[title]}: {' '.join(measure)}" for title in run for measure in NUMBERS)],
        [
            [
                row.removeprefix("truncate:").replace("Vanilla", "no truncation"),
                *(
                    mean_text(each, row, *measure, over=shared_seeds(each))
                    for each in run.values()
                    for measure in NUMBERS
                ),
            ]
            for row in rows
        ],
    )


def _heads(kept: Kept) -> Iterator[str]:
    """Write the far AUROC of scores that run features through the head once more."""
    run = {title: by_name["compatibility"] for title, by_name in kept.items() if "compatibility" in by_name}
    networks = {"plain": "", "SPCP": "+SPCP", "SPCP, plain head": f"+SPCP{PLAIN_HEAD}"}
    names = [score + end for score in BOTH_HEADS for end in networks.values()]
    seeds = {title: shared_seeds(outcome, names) for title, outcome in run.items()}
    yield from write_table(
        [
            "far AUROC",
            *(f"{title}, {count_seeds(len(seeds[title]))}: {network}" for title in run for network in networks),
        ],
        [
            [
                score,
                *(
                    mean_text(each, score + end, "far", over=seeds[title])
                    for title, each in run.items()
                    for end in networks.values()
                ),
            ]
            for score in BOTH_HEADS
            if any(score in each.rows for each in run.values())
        ],
    )


def _ranking(main: Outcome) -> Iterator[str]:
    """Name the best three rows of the main table, and the place of SPCP, for near and for far sets."""
    shared = shared_seeds(main)
    rows = [row for row in main.learnt if not row.startswith("SPCP rho_norm=")]  # the paper's value is no other method
    for group in ("near", "far"):
        order = sorted(rows, key=lambda row: -float(mean_text(main, row, group, over=shared) or "nan"))
        yield ", ".join(f"{row} {mean_text(main, row, group, over=shared)}" for row in order[:3])
        yield f"{order.index('SPCP') + 1} of {len(order)}" if "SPCP" in order else ""


def write_questions(kept: Kept) -> Iterator[str]:
    """Answer three questions, setting by setting."""
    answers = {"training-length": _lengths, "scales": _scales, "prediction": _predictions}
    for name, question in QUESTIONS.items():
        yield from (f"## {question}", "")
        run = {title: by_name[name] for title, by_name in kept.items() if name in by_name}
        yield from answers[name](run)
        if "CIFAR-10" not in run:
            yield f"CIFAR-10: not run (`spcp reproduce {name} --budget cpu`).\n"
        for title, outcome in run.items():
            yield from (f"![{title}: {question}]({path})\n" for path in pictures_of(outcome).values())


def _lengths(run: Mapping[str, Outcome]) -> Iterator[str]:
    """Write the gain of SPCP at each length of training."""
    for title, outcome in run.items():
        gains = findings.gains_by_length(outcome.values)
        lengths = sorted({epochs for points in gains.values() for epochs, _ in points})
        rows = []
        for (name, group), points in gains.items():
            texts = {epochs: _gain(values) for epochs, values in points}
            rows.append([f"{title}: {name}, {group}", *(texts.get(epochs, "") for epochs in lengths)])
        yield from write_table(["gain of AUROC over plain training", *(f"{epochs} epochs" for epochs in lengths)], rows)


def _gain(values: Sequence[float]) -> str:
    mean, deviation = mean_and_deviation(values)
    return f"{mean:+.1f} (one seed)" if len(values) == 1 else f"{mean:+.1f} ±{deviation:.1f} ({len(values)} seeds)"


LOST = """Each kind of network takes the amount that is best for the other kinds, in one scale. The AUROC (mean of near
and far sets) that it loses to its own best, mean / worst over kinds; in brackets how many kinds were not trained with
such an amount, so that the nearest stands for it:
"""


def _scales(run: Mapping[str, Outcome]) -> Iterator[str]:
    """Write what is lost by one amount for all networks, in each scale."""
    losses = {title: findings.losses_by_scale(outcome.values) for title, outcome in run.items()}
    losses = {title: lost for title, lost in losses.items() if lost}
    if not losses:
        return
    yield LOST
    names = list(dict.fromkeys(name for lost in losses.values() for name in lost))
    yield from write_table(
        [
            "scale",
            *(f"{_of(lost[findings.NO_SCALE])}, {_kinds(len(lost[findings.NO_SCALE]))}" for lost in losses.values()),
        ],
        [[name, *(_lost(lost.get(name, {})) for lost in losses.values())] for name in names],
    )
    for title, lost in losses.items():
        best = findings.best_amounts(run[title].values)
        yield f"- {_of(lost[findings.NO_SCALE])}: {findings.best_scale(lost)}. The best rho_norm by test sets: {best}."
    if not any("cifar100" in row for outcome in run.values() for row in outcome.rows):
        yield "- All of these have ten classes (the sounds six), where rho_norm is nearly proportional to the share"
        yield "  of all contributions, so they say little about a scale for other numbers of classes."
    yield ""


def _of(kinds: Iterable[str]) -> str:
    """Name the data of some kinds of networks."""
    return " and ".join(dict.fromkeys(TITLES[kind.partition(" ")[0]] for kind in kinds))


def _kinds(count: int) -> str:
    return f"{count} kind{'s' if count > 1 else ''}"


def _lost(lost: Mapping[str, findings.Loss]) -> str:
    if not lost:
        return ""
    beyond = sum(loss.beyond for loss in lost.values())
    worst = max(loss.points for loss in lost.values())
    return f"{findings.mean_loss(lost):.1f} / {worst:.1f}" + (f" ({beyond})" if beyond else "")


TOLD = """A case is a seed of a kind of network. The plain network tells three things: whether features of OOD
validation data are longer than those of ID data; whether the validation AUROC rises if that network is truncated as it
is; and the share of its positive contributions, with a bound that is fitted to these cases. In how many cases each is
right (in brackets: its rank correlation with the gain), and which of the first two beats always giving the same answer:
"""


def _predictions(run: Mapping[str, Outcome]) -> Iterator[str]:
    """Write in how many cases the plain network tells whether SPCP helps."""
    signs = dict(zip(findings.PREDICTORS, ("longer features", "truncated as it is", "positive share"), strict=True))
    rows = []
    for outcome in run.values():
        for each in findings.predictions(outcome.values):
            answer, usual = each.usual
            told = [f"{each.right[name]} ({each.ranks[name]:+.2f})" if name in each.right else "" for name in signs]
            rows.append(
                [
                    f"{_of(each.kinds)}, {each.amount} ({_kinds(len(each.kinds))})",
                    f"{each.rises} of {len(each.gains)}",
                    f"{each.gains.min():+.1f} to {each.gains.max():+.1f}",
                    f"{usual} ({answer})",
                    *told,
                    signs[each.best] if each.best else "none",
                ]
            )
    if rows:
        yield TOLD
    yield from write_table(
        ["rho_norm", "AUROC rises in", "by points", "always the same answer", *signs.values(), "beats it"], rows
    )
