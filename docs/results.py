"""The pages of results, from the small files that `spcp reproduce` writes.

python docs/results.py            # write results.md and results-tables.md
python docs/results.py FOLDER     # after taking over what is below FOLDER (small/, cpu/), and drawing it anew
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evidence import archive
from evidence.answers import write_questions, write_remarks
from evidence.archive import (
    BUDGET,
    ROOT,
    TITLES,
    Kept,
    cell_of,
    outcomes,
    picture_of,
    pictures_of,
    summary_of,
    take_over,
    write_table,
)
from evidence.claims import write_claims, write_means
from evidence.gains import WORTH, write_amount, write_short, write_worth

from spcp.experiments import Outcome
from spcp.experiments.outcome import ENOUGH
from spcp.experiments.page import context, how_chosen, number_text
from spcp.metrics import mean_and_deviation
from spcp.report.page import render

MARKS = ("<!-- results, by docs/results.py -->", "<!-- end of results -->")  # in the README
CONVENTION = "FPR95 is OpenOOD's: the share of ID samples that are flagged when 95 % of the OOD samples are."
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
            settings="\n".join(_settings(kept)).rstrip(),
            worth_note=WORTH,
            worth="\n".join(write_worth(kept)).rstrip(),
            amount=write_amount(kept),
            convention=CONVENTION,
            short="\n".join(write_short(kept)).rstrip(),
            pictures="\n\n".join(_pictures(kept)),
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
        DECISIONS + "\n".join(_decisions()),
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


def _pictures(kept: Kept) -> Iterator[str]:
    """Show AUROC set by set, for each setting."""
    for title, by_name in kept.items():
        if picture_of(title).exists() and summary_of(by_name):
            where = f"results/{BUDGET[title]}/{picture_of(title).name}"
            yield f"![{title}: AUROC of energy, set by set, plain training and SPCP]({where})"


def _settings(kept: Kept) -> Iterator[str]:
    """Say what was trained and tested in each setting."""
    data = {
        "Digits": "the embedded digits (MNIST) against letters and symbols (near), textures, photographs, faces and "
        "noise (far). Plain energy is upside down there on far sets, which truncation repairs in part",
        "CIFAR-10": "CIFAR-10 against CIFAR-100 and TinyImageNet (near), MNIST, SVHN and Textures (far), by OpenOOD's "
        f"lists; {PARTS}",
        "CIFAR-100": "400 of the 500 training images of each class of CIFAR-100, against CIFAR-10 and TinyImageNet "
        "(near), and the same far sets",
    }
    run: dict[str, tuple[Outcome, float]] = {}  # with the accuracy of the plain network
    for title, budget in BUDGET.items():
        summary = summary_of(kept[title])
        if summary is None:
            yield f"- **{title}** (`--budget {budget}`): not run with the network that the budget has now."
            continue
        outcome, arms = summary
        run[title] = outcome, cell_of(outcome, next(iter(arms)), "id", "ACC").mean
        missing = f" {outcome.about['missing']}" if "missing" in outcome.about else ""
        yield f"- **{title}** (`--budget {budget}`): {data[title]}.{missing}"
    yield ""
    yield from write_table(
        [
            "trained on",
            "images",
            "network",
            "epochs",
            "plain: training loss",
            "plain: ACC",
            "seeds",
            "chosen",
            "measured",
        ],
        [
            [
                title,
                f"{outcome.about['images']:,}".replace(",", " "),
                outcome.about["network"] + (f" of width {outcome.about['width']}" if "width" in outcome.about else ""),
                str(outcome.about["epochs"]),
                f"{outcome.about['training loss of the plain network']:.3f}",
                f"{accuracy:.1f}",
                _seeds(outcome.about["seeds"]),
                _amount(outcome),
                f"{outcome.about['date']}, {outcome.about['machine']}",
            ]
            for title, (outcome, accuracy) in run.items()
        ],
    )


def _amount(outcome: Outcome) -> str:
    """Say which rho_norm was chosen, and how."""
    facts = outcome.about
    return f"rho_norm {facts['rho_norm']:g}, {how_chosen(facts)}" if "grid" in facts else ""


PARTS = (
    "Places365 is missing, and there are 10 000 of 70 000 images of MNIST, 6 000 of 26 032 of SVHN and 1 200 of 5 640 "
    "of Textures (10 of its 47 classes)"
)


def _seeds(count: int) -> str:
    return f"up to {count}" + ("" if count >= ENOUGH else ", so nothing is tested")


DECISIONS = """## Decisions

The tables above rank scores over all thresholds. This is what a detector flags whose threshold is calibrated to flag at
most 5 % of ID samples: false alarms among ID test samples, and the detection rate on near-OOD and far-OOD sets, in
percent, mean ± deviation over seeds. *Default* is the library's consensus. [Which detector?](which-detector.md) has
every score, and `auto`.

"""
CALIBRATED, FALSE_ALARMS = 2, 3  # where these rates stand in a cell of benchmarks/decide.py


def _decisions() -> Iterator[str]:
    """Write the calibrated rates of energy and of the default, as benchmarks/decide.py measured them."""
    networks: dict[tuple[str, str], list[Any]] = {}
    for path in sorted((archive.KEPT / "decide").glob("*/*.json")):
        networks.setdefault((path.parent.name, path.stem.rpartition("-")[0]), []).append(json.loads(path.read_text()))
    head = ["data", "network", "seeds", "energy: false alarms", "near", "far", "default: false alarms", "near", "far"]
    rows = []
    for (data, network), seeds in networks.items():
        texts = []
        for score in ("energy", "default"):
            for group, place in (("", FALSE_ALARMS), ("near/", CALIBRATED), ("far/", CALIBRATED)):
                rates = [
                    [sets[place] for name, sets in seed["cells"][score].items() if name.startswith(group)]
                    for seed in seeds
                ]
                mean, deviation = mean_and_deviation([100 * sum(each) / len(each) for each in rates])
                texts.append(number_text(mean, deviation if len(seeds) > 1 else None, 1))
        rows.append([TITLES.get(data, data), network, str(len(seeds)), *texts])
    yield from write_table(head, rows)


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
