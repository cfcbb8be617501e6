"""The pages of results, from the small files that `spcp reproduce` writes.

python docs/results.py            # write results.md and results-tables.md
python docs/results.py FOLDER     # after taking over what is below FOLDER (small/, cpu/), and drawing it anew
"""

from __future__ import annotations

import sys
from pathlib import Path

from evidence.answers import write_questions, write_remarks
from evidence.archive import ROOT, TITLES, Kept, outcomes, pictures_of, take_over
from evidence.claims import write_claims, write_means
from evidence.gains import (
    CONVENTION,
    DECISIONS,
    WORTH,
    write_amount,
    write_decisions,
    write_pictures,
    write_settings,
    write_short,
    write_worth,
)

from spcp.experiments import Outcome
from spcp.experiments.page import context
from spcp.report.page import render

MARKS = ("<!-- results, by docs/results.py -->", "<!-- end of results -->")  # in the README
NOTE = "<!-- Written by docs/results.py: edit that. -->"


def main() -> None:
    """Write the pages, after taking over new outcomes if a folder is named."""
    if len(sys.argv) > 1:
        take_over(Path(sys.argv[1]))
    for name, text in pages().items():
        (ROOT / name).write_text(text)


HEAD = """# Results

{note}

Does SPCP do what its paper says? **Not in general.** It helps where the energy score fails on far sets, and little
where plain training detects well, where too large a `rho_norm` does harm; so does the paper's for CIFAR-10 with the
network that we can afford. The paper's own setting, 100 epochs of ResNet-18 on a GPU, has not been run: what follows
is evidence about the method, not about the paper's numbers.

{worth_note}

{worth}

{amount}

Every number comes from `spcp reproduce` ([how](reproduce.md)), those of photos and embeddings from
`benchmarks/decide.py`; all of them, by seed and by set, are in `docs/results/`, and [table by
table](results-tables.md) with intervals, machine and date.

## What was trained

{settings}

## In short

The energy score, in percent; mean ± deviation over seeds, where there are several. {convention}

{short}

{pictures}

## Claim by claim

The claims of the paper that we judge. Networks with the same seed are compared. Each comparison (near and far sets,
AUROC and FPR95, unless the claim says otherwise) is better, worse or unclear: its 95 % interval over seeds (Student's
t) has to leave out 0, and its p-value has to pass Holm's correction for all tested comparisons of the claim. Where a
claim names a bound ("within a point"), which is ours, the interval has to lie above minus that. A claim **holds** if
all comparisons are better, and **holds in part** if some are, none is worse, and the others are unclear or missing;
it is **mixed** if some are better and some are worse, **does not hold** if some are worse and none is better, and is
**unclear** otherwise. In brackets the comparisons, and how many of the unclear ones point against the claim. Where
the claim is no more than a word ("most", "competitive"), or where there are fewer than three seeds, it is counted how
many are as claimed, and nothing is tested.

Three seeds show only what is large beside the deviation: the clearest of 4 comparisons needs a mean of more than 6
times its deviation over seeds, and the clearest of 24 more than 15 times. So unclear means that it is not known.
Claims are not corrected for each other, and some of them compare the same rows. [Table by table](results-tables.md)
has the means that are compared. The paper has its ablations and its table of compatibility on CIFAR-100, we have them
on CIFAR-10. Scores that run features through the head once more (ASH, GradNorm) are given with the truncating head,
which the network was trained with, and with the plain one.

"""


def pages() -> dict[str, str]:
    """Write the first page, which a reader can take in, and the tables."""
    kept = outcomes()
    lines = [
        HEAD.format(
            note=NOTE,
            settings="\n".join(write_settings(kept)).rstrip(),
            worth_note=WORTH,
            worth="\n".join(write_worth(kept)).rstrip(),
            amount=write_amount(kept),
            convention=CONVENTION,
            short="\n".join(write_short(kept)).rstrip(),
            pictures="\n\n".join(write_pictures(kept)),
        )
    ]
    lines += [
        *write_claims(kept, ours=False),
        "Claims of ours, about what we added:",
        "",
        *write_claims(kept, ours=True),
    ]
    lines += [
        "## What to make of it",
        "",
        *write_remarks(kept),
        "",
        *write_questions(kept),
        _untested(kept),
        DECISIONS + "\n".join(write_decisions()),
        FULL,
    ]
    tables = [
        "# Results, table by table",
        "",
        NOTE,
        "",
        "[The page of results](results.md) sums these up and says how claims are judged. AUROC is that of the energy "
        f"score unless a row names another. {CONVENTION} Mean ± deviation over seeds; in brackets the paper's mean on "
        "the same benchmark, over the same sets.",
        "",
    ]
    for title, by_name in kept.items():
        if by_name:
            tables += [f"## {title}", "", *write_means(by_name)]
            tables += [_section(outcome) for outcome in by_name.values()]
    return {
        "docs/results.md": "\n".join(lines).rstrip() + "\n",
        "docs/results-tables.md": "\n".join(tables).rstrip() + "\n",
        "README.md": _between(MARKS, "\n".join(["", *write_worth(kept)]), (ROOT / "README.md").read_text()),
    }


def _between(marks: tuple[str, str], text: str, page: str) -> str:
    """Replace what stands between two marks of a page."""
    before, _, rest = page.partition(marks[0])
    return before + marks[0] + text + marks[1] + rest.partition(marks[1])[2]


def _untested(kept: Kept) -> str:
    data = "ImageNet-200" if kept["CIFAR-100"] else "CIFAR-100 and ImageNet-200"
    return f'Not tested here: {data} as ID data, and whatever is "not run" above.\n'


FULL = """## Where the budget full departs from the paper

- ImageNet-200 is trained for the 100 epochs of the paper's text; its released scripts have 90.
- The last weights are evaluated; the released evaluator takes the best ones on validation data.
- The threshold is updated in training only; the released code updates it at evaluation too.
- On ImageNet-200, CIDER and MOS are trained from scratch; OpenOOD fine-tunes a trained network.
- VRA, which is in no table, is OpenOOD's by default; `vra-p` is its authors'.
- FPR95 is OpenOOD's, the share of ID samples that are flagged when 95 % of the OOD samples are; the paper's text has
  it the other way round.
- The text's reduction of far FPR95 on CIFAR-10, 21.25 points, is 21.15 in its tables, which we compare with.

`tests/test_experiments.py` checks the other settings of the three benchmarks of images against the paper's.
"""


def _section(outcome: Outcome) -> str:
    filled = context(outcome, pictures_of(outcome), level=3, brief=True)
    if outcome.name == "prediction":  # its numbers are those of `scales`
        filled["tables"] = []
    return render("experiment.md.jinja", {**filled, "title": f"{TITLES[outcome.about['data']]}: {outcome.title}"})


if __name__ == "__main__":
    main()
