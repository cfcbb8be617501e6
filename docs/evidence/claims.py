"""The claims of the paper and ours, with a verdict for each setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spcp.experiments import BUDGETS, EXPERIMENTS, Outcome
from spcp.experiments.catalogue import GROUPS, claims_of
from spcp.experiments.findings import count_seeds
from spcp.experiments.outcome import ClaimResult, Gain, Support

from .archive import MAIN, Kept, cell_of, summary_of


def write_claims(kept: Kept, *, ours: bool) -> Iterator[str]:
    """Write a row for each claim there is, and a column for each setting that was run."""
    titles = [title for title, by_name in kept.items() if by_name] or list(kept)
    yield "| claim | " + " | ".join(titles) + " |"
    yield "|---|" + "---|" * len(titles)
    for text, names in _texts(ours).items():
        cells = [
            _verdict(text, [kept[title][name] for name in names if name in kept[title]])
            if title != "CIFAR-100" or MAIN[title] in names
            else ""  # an ablation, which is on CIFAR-10
            for title in titles
        ]
        run = next((name for name in names if any(name in kept[title] for title in titles)), names[0])
        yield f"| {text} (`{run}`) | " + " | ".join(cells) + " |"
    if not ours:
        values = [summary_of(kept[title]) for title in titles]
        chosen = [_chosen(summary[0]) if summary else "not run" for summary in values]
        yield (
            "| Data with fewer classes want a larger rho_norm (not tested: what was chosen) | "
            + " | ".join(chosen)
            + " |"
        )
        yield f"| {PREMISE} | " + " | ".join(_premise(kept[title]) for title in titles) + " |"
    yield ""


PREMISE = (
    "Predictions of plain networks rest on few weights (`patterns`; not tested: the share of the mean contributions "
    "that the largest 1 % of them hold, which is 3.6 % if they are normally distributed)"
)


def _premise(by_name: Mapping[str, Outcome]) -> str:
    """Say how few weights carry the mean contributions of a plain network."""
    patterns = by_name.get("patterns")
    cell = patterns and patterns.cell(patterns.rows[0], "contributions", "top 1 %")
    return f"{cell.mean:.1f} %" if cell else ""


def _texts(ours: bool) -> dict[str, list[str]]:
    """List the claims, with the experiments that are about them."""
    texts: dict[str, list[str]] = {}
    for name, experiment in EXPERIMENTS.items():
        if experiment.note.startswith("Not in the paper") == ours:
            for claim in claims_of(name, BUDGETS["small"], 1.0, [""]):
                texts.setdefault(claim.text, []).append(name)
    return texts


def _chosen(outcome: Outcome) -> str:
    facts, classes = outcome.about, 100 if outcome.about["data"] == "cifar100" else 10
    on = f", on {count_seeds(facts['chosen on seeds'])}" if "chosen on seeds" in facts else ""
    return f"{facts['rho_norm']:g} for {classes} classes{on}" if len(facts.get("grid", ())) > 1 else "one value trained"


def _verdict(text: str, outcomes: Sequence[Outcome]) -> str:
    """Say how a claim did in one setting, or why it was not judged."""
    if not outcomes:
        return "not run"
    outcome = outcomes[0]
    claim = _claim(text, outcome)
    if claim is None:
        return _why_not(text, outcome)
    on = " on spoken digits" if outcome.name == "audio" else ""
    if claim.support is Support.SAME:
        return claim.support.value
    if claim.is_tested:
        return f"**{claim.support.value}**{on} ({claim.tally})"
    fewest, most = (f(len(gain.difference.by_seed) for gain in claim.gains) for f in (min, max))
    return f"{count_seeds(most) if fewest == most else f'{fewest} to {most} seeds'}{on}: {claim.tally}"


def _why_not(text: str, outcome: Outcome) -> str:
    """Say why a claim was not judged."""
    wanted = claims_of(outcome.name, BUDGETS[outcome.budget], outcome.about.get("rho_norm", 0.0), [""])
    claim = next((claim for claim in wanted if claim.text == text), None)
    if claim is None:
        return "the largest was chosen"
    if claim.chosen and len(outcome.about.get("grid", ())) == 1:
        return "one value trained"
    return (
        "did not learn" if {row for pair in claim.pairs for row in pair} & set(outcome.unlearnt) else "rows are missing"
    )


def _claim(text: str, outcome: Outcome) -> ClaimResult | None:
    return next((claim for claim in outcome.claims if claim.text == text), None)


FEW = 4  # comparisons of a claim that are written out


def write_means(by_name: Mapping[str, Outcome]) -> Iterator[str]:
    """Write the means that the claims of a setting compare: first what is said to be better, then the other."""
    yield "What the claims compare, where these are few: first what is said to be better, then the other."
    yield ""
    yield "| claim | " + " | ".join(" ".join(column) for column in GROUPS) + " | |"
    yield "|---|" + "---|" * (len(GROUPS) + 1)
    for text, names in (_texts(False) | _texts(True)).items():
        outcome = next((by_name[name] for name in names if name in by_name), None)
        claim = _claim(text, outcome) if outcome is not None else None
        if outcome is None or claim is None or len(claim.gains) > FEW:
            continue
        means = {(gain.column, gain.metric): _against(outcome, gain) for gain in claim.gains}
        cells = [means.pop(column, "") for column in GROUPS]
        rest = "; ".join(f"{' '.join(column)} {mean}" for column, mean in means.items())
        yield f"| {text} | " + " | ".join(cells) + f" | {rest} |"
    yield ""


def _against(outcome: Outcome, gain: Gain) -> str:
    """Write the means of two rows over the seeds that both have."""
    cells = [cell_of(outcome, row, gain.column, gain.metric) for row in (gain.row, gain.other)]
    by_seed = [dict(zip(cell.seeds, cell.by_seed, strict=True)) for cell in cells]
    shared = by_seed[0].keys() & by_seed[1].keys()
    means = [sum(values[seed] for seed in shared) / len(shared) for values in by_seed]
    digits = 1 if max(map(abs, means)) >= 5 else 2
    return " vs ".join(f"{mean:.{digits}f}" for mean in means)
