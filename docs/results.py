"""The pages of results, from the small files that `spcp reproduce` writes.

python docs/results.py            # write results.md and results-tables.md
python docs/results.py FOLDER     # after taking over what is below FOLDER (small/, cpu/), and drawing it anew
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from spcp.config import config_for, rho_norm_for
from spcp.experiments import BUDGETS, EXPERIMENTS, Outcome, drawing, findings, judged, paper
from spcp.experiments.catalogue import BOTH_HEADS, MAIN_TABLES, PLAIN_HEAD, Claim, claims_of
from spcp.experiments.outcome import Cell, ClaimResult, Gain, judge
from spcp.experiments.page import context, number_text
from spcp.experiments.records import FILE
from spcp.metrics import mean_and_deviation
from spcp.report.figures import as_svg, for_both_schemes
from spcp.report.page import render

DOCS = Path(__file__).parent
ROOT = DOCS.parent
KEPT = DOCS / "results"
BUDGET = {"Digits": "small", "CIFAR-10": "cpu", "CIFAR-100": "cpu"}  # by setting, a column each
MAIN = {"Digits": "cifar10", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}  # the experiment with every method
TITLES = {
    "digits": "Digits",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "spoken-digits": "Spoken digits",
    "photos": "Photos",
    "embeddings": "Embeddings",
}
SAME = {"small": ("cifar100", "imagenet200", "hyperparameters"), "cpu": ("hyperparameters",)}  # as other names
MARKS = ("<!-- results, by docs/results.py -->", "<!-- end of results -->")  # in the README
CONVENTION = "FPR95 is OpenOOD's: the share of ID samples that are flagged when 95 % of the OOD samples are."
NOTE = "<!-- Written by docs/results.py: edit that. -->"
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
COLUMNS = [(group, metric) for group in ("near", "far") for metric in ("AUROC", "FPR95")]
Kept = Mapping[str, Mapping[str, Outcome]]  # by setting and name


def main() -> None:
    """Write the pages, after taking over new outcomes if a folder is named."""
    if len(sys.argv) > 1:
        take_over(Path(sys.argv[1]))
    for name, text in pages().items():
        (ROOT / name).write_text(text)


def take_over(folder: Path) -> None:
    """Keep the records of runs and the outcomes, and draw what can be drawn of them; other figures are copied."""
    matplotlib.rcParams["svg.hashsalt"] = "results"  # the same picture gives the same file
    for path in sorted((folder / "cpu/runs").rglob(FILE)):  # digits take seconds to train
        kept = KEPT / path.relative_to(folder)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
    for budget in SAME:
        for path in sorted((folder / budget).glob("*/outcome.json")):
            outcome = Outcome.read(path.read_text())
            if outcome.name in SAME[budget] or not _current(outcome):
                continue
            (KEPT / budget).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, KEPT / budget / f"{outcome.name}.json")
            for kind in EXPERIMENTS[outcome.name].figures:
                made = path.parent / "figures" / f"{kind}.svg"
                if kind in drawing.FROM_NUMBERS:
                    svg = as_svg(drawing.FIGURES[kind](None, outcome)[0])
                elif made.exists():
                    svg = made.read_text()
                else:  # it needs weights that are gone
                    continue
                (KEPT / budget / f"{outcome.name}-{kind}.svg").write_text(for_both_schemes(svg))
    for title, by_name in outcomes().items():
        summary = _summary(by_name)
        if summary:
            figure, _ = drawing.summary(*summary, title)
            _picture(title).write_text(for_both_schemes(as_svg(figure)))


def _picture(title: str) -> Path:
    return KEPT / BUDGET[title] / f"summary{'-cifar100' if title == 'CIFAR-100' else ''}.svg"


def _current(outcome: Outcome) -> bool:
    """Tell whether an outcome is of the network that its budget has now."""
    facts = outcome.about
    settings = BUDGETS[outcome.budget].settings.get(facts["data"], {})
    return bool(config_for(facts["data"], **settings).network == facts["network"])


def outcomes() -> Kept:
    """Read the outcomes that are kept, by setting and name."""
    kept: dict[str, dict[str, Outcome]] = {title: {} for title in BUDGET}
    for budget, title in (("small", "Digits"), ("cpu", "CIFAR-10")):
        for name in EXPERIMENTS:
            path = KEPT / budget / f"{name}.json"
            if name not in SAME[budget] and path.exists():
                outcome = judged(Outcome.read(path.read_text()))
                if _current(outcome):
                    kept["CIFAR-100" if name == "cifar100" else title][name] = outcome
    return kept


HEAD = """# Results

{note}

Does SPCP do what its paper says? Measured on real data on one machine without a GPU, in several settings. Every number
comes from `spcp reproduce` ([how](reproduce.md)); all of them, by seed and by set, are in `docs/results/`, and
[table by table](results-tables.md) with intervals, machine and date. The paper's own setting, 100 epochs of ResNet-18
on a GPU, has not been run: what follows is evidence about the method, not about the paper's numbers.

{settings}

## Where is it worth its while?

{worth_note}

{worth}

## In short

The energy score, in percent; mean ± deviation over seeds, where there are several. {convention}

{short}

{pictures}

## Claim by claim

What the paper claims, all of it and nothing else. Networks with the same seed are compared. Each comparison (near and
far sets, AUROC and FPR95, unless the claim says otherwise) is better, worse or unclear: its 95 % interval over seeds
(Student's t) has to leave out 0, and its p-value has to pass Holm's correction for all comparisons of the claim. Where
a claim names a bound ("within a point"), which is ours, the interval has to lie above minus that. A claim **holds** if
all comparisons are better, and **holds in part** if some are, none is worse, and the others are unclear or missing; it
is **mixed** if some are better and some are worse, **does not hold** if some are worse and none is better, and is
**unclear** otherwise. In brackets: how many are better / worse / unclear, and what could not be tested; where the claim
is no more than a word ("competitive") these are **counted**, not tested. Three seeds show only what is large beside the
deviation. One seed shows nothing, so its comparisons are not judged, but it is told how many are as claimed.
[Table by table](results-tables.md) has the means that are compared. The paper has its ablations and its table of
compatibility on CIFAR-100, we have them on CIFAR-10. Scores that run features through the head once more (ASH,
GradNorm) are given with the truncating head, which the network was trained with, and with the plain one.

"""


def pages() -> dict[str, str]:
    """Write the first page, which a reader can take in, and the tables."""
    kept = outcomes()
    lines = [
        HEAD.format(
            note=NOTE,
            settings="\n".join(_settings(kept)).rstrip(),
            worth_note=WORTH,
            worth="\n".join(_worth(kept)).rstrip(),
            convention=CONVENTION,
            short="\n".join(_short(kept)).rstrip(),
            pictures="\n\n".join(_pictures(kept)),
        )
    ]
    lines += [*_claims(kept, ours=False), "Claims of ours, about what we added:", "", *_claims(kept, ours=True)]
    lines += [
        "## What to make of it",
        "",
        *_remarks(kept),
        "",
        *_questions(kept),
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
            tables += [f"## {title}", "", *_means(by_name)]
            tables += [_section(outcome) for outcome in by_name.values()]
    return {
        "docs/results.md": "\n".join(lines).rstrip() + "\n",
        "docs/results-tables.md": "\n".join(tables).rstrip() + "\n",
        "README.md": _between(MARKS, "\n".join(["", *_worth(kept)]), (ROOT / "README.md").read_text()),
    }


def _between(marks: tuple[str, str], text: str, page: str) -> str:
    """Replace what stands between two marks of a page."""
    before, _, rest = page.partition(marks[0])
    return before + marks[0] + text + marks[1] + rest.partition(marks[1])[2]


def _untested(kept: Kept) -> str:
    data = "ImageNet-200" if kept["CIFAR-100"] else "CIFAR-100 and ImageNet-200"
    return f'Not tested here: {data} as ID data, and whatever is "not run" above.\n'


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
    for path in sorted((KEPT / "decide").glob("*/*.json")):
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
    yield from _table(head, rows)


FULL = """## Where the budget full departs from the paper

- ImageNet-200 is trained for the 100 epochs of the paper's text; its released scripts have 90.
- The last weights are evaluated; the released evaluator takes the best ones on validation data.
- The threshold is updated in training only; the released code updates it at evaluation too.
- On ImageNet-200, CIDER and MOS are trained from scratch; OpenOOD fine-tunes a trained network.
- VRA, which is in no table, is OpenOOD's by default; `vra-p` is its authors'.
- The text's reduction of far FPR95 on CIFAR-10, 21.25 points, is 21.15 in its tables, which we compare with.

`tests/test_experiments.py` checks the other settings of the three benchmarks of images against the paper's.
"""


def _summary(by_name: Mapping[str, Outcome]) -> tuple[Outcome, dict[str, str]] | None:
    """Return what the summary of a setting is taken from, with its rows and their names; None if there is nothing."""
    if "cifar100" in by_name:
        main = by_name["cifar100"]
        value, paper_value = main.about.get("rho_norm", 0.0), rho_norm_for("cifar100")
        also = ", and the paper's" if value == paper_value else ""
        arms = {"Energy": "plain", "SPCP": f"SPCP, rho_norm={value:g} ({_how(main)}{also})"}
        if not also:
            arms[f"SPCP rho_norm={paper_value:g}"] = f"SPCP, rho_norm={paper_value:g} (the paper's)"
        return main, {row: name for row, name in arms.items() if row in main.rows}
    return (by_name["ablation-rho"], _arms(by_name["ablation-rho"])) if "ablation-rho" in by_name else None


def _arms(rho: Outcome) -> dict[str, str]:
    """Name the rows of the summary: plain training, what the paper's rule chose, and the paper's for CIFAR-10."""
    chosen = f"rho_norm={rho.about['rho_norm']:g}" if "rho_norm" in rho.about else ""
    arms = {"rho_norm=0": "plain", chosen: f"SPCP, {chosen} ({_how(rho)})"}
    arms.setdefault("rho_norm=3", "SPCP, rho_norm=3 (the paper's for CIFAR-10)")
    return {row: name for row, name in arms.items() if row in rho.rows}


def _how(outcome: Outcome) -> str:
    return "chosen" if len(outcome.about.get("grid", ())) > 1 else "the only value trained so far"


def _settings(kept: Kept) -> Iterator[str]:
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
        summary = _summary(kept[title])
        if summary is None:
            yield f"- **{title}** (`--budget {budget}`): not run with the network that the budget has now."
            continue
        outcome, arms = summary
        run[title] = outcome, _cell(outcome, next(iter(arms)), "id", "ACC").mean
        missing = f" {outcome.about['missing']}" if "missing" in outcome.about else ""
        yield f"- **{title}** (`--budget {budget}`): {data[title]}.{missing}"
    yield ""
    yield from _table(
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
    """Say which rho_norm was chosen, and among which."""
    grid = outcome.about.get("grid", ())
    return f"rho_norm {outcome.about['rho_norm']:g} of {', '.join(f'{value:g}' for value in grid)}" if grid else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write a table in Markdown, and the empty line after it; nothing if it has no rows."""
    if rows:
        yield from (f"| {' | '.join(head)} |", "|" + "---|" * len(head))
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""


PARTS = (
    "Places365 is missing, and there are 10 000 of 70 000 images of MNIST, 6 000 of 26 032 of SVHN and 1 200 of 5 640 "
    "of Textures (10 of its 47 classes)"
)


def _seeds(count: int) -> str:
    return "1, so nothing is tested" if count == 1 else f"up to {count}"


def _short(kept: Kept) -> Iterator[str]:
    columns = [*COLUMNS, ("id", "ACC")]
    rows: list[list[str]] = []
    for title, by_name in kept.items():
        summary = _summary(by_name)
        lines = [(summary[0], row, name) for row, name in summary[1].items()] if summary else []
        for outcome, row, name in [*lines, *_longest(by_name)]:
            cells = [_cell(outcome, row, *column) for column in columns]
            texts = [number_text(cell.mean, cell.std if len(cell.seeds) > 1 else None, 1) for cell in cells]
            rows.append([f"{title}: {name}", str(len(cells[0].seeds)), *texts])
        if title in PAPER and lines:
            benchmark, tables = PAPER[title]
            for method, name in (("Energy", "plain"), ("SPCP", "SPCP")):
                figures = [paper.figure(tables, benchmark, "ResNet-18", method, *column) for column in columns]
                texts = ["" if figure is None else number_text(*figure, 1) for figure in figures]
                rows.append([f"{title}: the paper's {name}, far with Places365", "3", *texts])
    yield from _table(["setting", "seeds", *(" ".join(column) for column in columns)], rows)


def _longest(by_name: Mapping[str, Outcome]) -> Iterator[tuple[Outcome, str, str]]:
    """Yield the rows of the networks that were trained longest, if that is longer than usual, with their names."""
    outcome = by_name.get("training-length")
    if outcome is None:
        return
    lengths = {row: int(row.partition(" for ")[2].split()[0]) for row in outcome.rows}
    longest = max(lengths.values())
    for row, epochs in lengths.items():
        if epochs == longest > outcome.about["epochs"]:
            name = row.partition(" for ")[0].replace("Vanilla", "plain").replace("SPCP ", "SPCP, ")
            yield outcome, row, f"{name}, {epochs} epochs"


WORTH = """The AUROC of energy after plain training, and what SPCP adds, in points; first where plain energy is worst on
far sets. *Chosen* is the rho_norm that validation data choose, *the paper's* is its value for as many classes. In
brackets whether SPCP detects better, by AUROC and FPR95 on near and on far sets, as the claims below are judged."""
Compared = tuple[str, Outcome, str, str, str]  # name, outcome, and its rows: plain, SPCP chosen, SPCP as in the paper


def _worth(kept: Kept) -> Iterator[str]:
    """Write what SPCP adds to plain training for each kind of data and training, and in the paper."""
    rows = []
    for name, outcome, plain, *arms in _compared(kept):
        if plain not in outcome.rows or not any(arm in outcome.rows for arm in arms):
            continue
        levels = [_cell(outcome, plain, group, "AUROC").mean for group in ("near", "far")]
        seeds = max(len(outcome.seeds(arm)) for arm in arms if arm in outcome.rows)
        gains = [_gained(outcome, plain, arm) for arm in arms]
        rows.append((levels[1], [name, str(seeds), *(f"{level:.1f}" for level in levels), *gains]))
    for title, (benchmark, tables) in PAPER.items():
        levels, gains = [], []
        for group in ("near", "far"):
            figures = (
                paper.figure(tables, benchmark, "ResNet-18", each, group, "AUROC") for each in ("Energy", "SPCP")
            )
            plain_mean, mean = (figure[0] for figure in figures if figure)
            levels.append(f"{plain_mean:.1f}")
            gains.append(f"{mean - plain_mean:+.1f} {group}")
        name = f"*{title} in the paper: ResNet-18, 100 epochs, far with Places365*"
        rows.append((math.inf, [name, "3", *levels, "", ", ".join(gains)]))
    rows.sort(key=lambda row: row[0])
    yield from _table(
        ["data", "seeds", "plain: near", "plain: far", "SPCP, chosen", "SPCP, the paper's"], [row for _, row in rows]
    )


def _compared(kept: Kept) -> Iterator[Compared]:
    """Yield what can be compared: each kind of data, and the networks of CIFAR-10 that were trained differently."""
    for title, by_name in kept.items():
        if "ablation-rho" in by_name:
            rho = by_name["ablation-rho"]
            yield title, rho, "rho_norm=0", f"rho_norm={rho.about.get('rho_norm', 0):g}", "rho_norm=3"
        if "cifar100" in by_name:
            yield title, by_name["cifar100"], "Energy", "SPCP", f"SPCP rho_norm={rho_norm_for('cifar100'):g}"
        if "audio" in by_name:
            audio = by_name["audio"]
            of_one = "" if _how(audio) == "chosen" else f" (rho_norm {audio.about['rho_norm']:g}, {_how(audio)})"
            yield TITLES[audio.about["data"]] + of_one, audio, "Vanilla", "SPCP", ""
        for suffix in dict.fromkeys(row.partition(" for ")[2] for _, row, _ in _longest(by_name)):
            rows = [f"{name} for {suffix}" for name in ("Vanilla", "SPCP rho_norm=3")]
            yield f"{title}, {suffix}", by_name["training-length"], rows[0], "", rows[1]
        if "augmentation" in by_name:
            rows = [f"{name} not augmented" for name in ("Vanilla", "SPCP", "SPCP rho_norm=3")]
            yield f"{title}, not augmented", by_name["augmentation"], *rows


def _gained(outcome: Outcome, plain: str, arm: str) -> str:
    """Write the gain of AUROC over plain training, and whether detection is better."""
    result = judge(Claim("", ((arm, plain),)), outcome.values, {})
    if not result.gains:
        return ""
    means = {gain.column: gain.difference.mean for gain in result.gains if gain.metric == "AUROC"}
    verdict = result.support.value if result.tested else "one seed"
    return f"{', '.join(f'{mean:+.1f} {group}' for group, mean in means.items())} ({verdict})"


PAPER = {title: (name, MAIN_TABLES[name][1]) for title, name in MAIN.items() if title != "Digits"}


def _pictures(kept: Kept) -> Iterator[str]:
    for title, by_name in kept.items():
        if _picture(title).exists() and _summary(by_name):
            where = f"results/{BUDGET[title]}/{_picture(title).name}"
            yield f"![{title}: AUROC of energy, set by set, plain training and SPCP]({where})"


def _cell(outcome: Outcome, row: str, column: str, metric: str) -> Cell:
    cell = outcome.cell(row, column, metric)
    assert cell is not None, (outcome.name, row, column, metric)
    return cell


def _claims(kept: Kept, *, ours: bool) -> Iterator[str]:
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
        values = [_summary(kept[title]) for title in titles]
        chosen = [_chosen(summary[0]) if summary else "not run" for summary in values]
        yield (
            "| Data with fewer classes want a larger rho_norm (not tested: what was chosen) | "
            + " | ".join(chosen)
            + " |"
        )
    yield ""


def _texts(ours: bool) -> dict[str, list[str]]:
    """List the claims, with the experiments that are about them."""
    texts: dict[str, list[str]] = {}
    for name, experiment in EXPERIMENTS.items():
        if experiment.note.startswith("Not in the paper") == ours:
            for claim in claims_of(name, BUDGETS["small"], 1.0, [""]):
                texts.setdefault(claim.text, []).append(name)
    return texts


def _chosen(outcome: Outcome) -> str:
    grid = outcome.about.get("grid", ())
    classes = 100 if outcome.about["data"] == "cifar100" else 10
    return f"{outcome.about['rho_norm']:g} for {classes} classes" if len(grid) > 1 else "one value trained"


def _verdict(text: str, outcomes: Sequence[Outcome]) -> str:
    """Say how a claim did in one setting, or why it was not judged."""
    if not outcomes:
        return "not run"
    outcome = outcomes[0]
    claim = _claim(text, outcome)
    if claim is None:
        one_value = len(outcome.about.get("grid", ())) == 1 and callable(EXPERIMENTS[outcome.name].claims)
        return "one value trained" if one_value else "did not learn" if outcome.unlearnt else "rows are missing"
    on = " on spoken digits" if outcome.name == "audio" else ""
    if not claim.tested:
        as_claimed = sum(gain.difference.mean > -claim.margin for gain in claim.gains)
        return f"one seed{on}: {as_claimed} of {len(claim.gains)} as claimed"
    counts = "/".join(str(count) for count in claim.counts.values())
    return f"**{claim.support.value}**{on} ({counts}{claim.untested})"


def _claim(text: str, outcome: Outcome) -> ClaimResult | None:
    return next((claim for claim in outcome.claims if claim.text == text), None)


FEW = 4  # comparisons of a claim that are written out


def _means(by_name: Mapping[str, Outcome]) -> Iterator[str]:
    """Write the means that the claims of a setting compare: first what is said to be better, then the other."""
    yield "What the claims compare, where these are few: first what is said to be better, then the other."
    yield ""
    yield "| claim | " + " | ".join(" ".join(column) for column in COLUMNS) + " | |"
    yield "|---|" + "---|" * (len(COLUMNS) + 1)
    for text, names in (_texts(False) | _texts(True)).items():
        outcome = next((by_name[name] for name in names if name in by_name), None)
        claim = _claim(text, outcome) if outcome is not None else None
        if outcome is None or claim is None or len(claim.gains) > FEW:
            continue
        means = {(gain.column, gain.metric): _against(outcome, gain) for gain in claim.gains}
        cells = [means.pop(column, "") for column in COLUMNS]
        rest = "; ".join(f"{' '.join(column)} {mean}" for column, mean in means.items())
        yield f"| {text} | " + " | ".join(cells) + f" | {rest} |"
    yield ""


def _against(outcome: Outcome, gain: Gain) -> str:
    """Write the means of two rows over the seeds that both have."""
    cells = [_cell(outcome, row, gain.column, gain.metric) for row in (gain.row, gain.other)]
    by_seed = [dict(zip(cell.seeds, cell.by_seed, strict=True)) for cell in cells]
    shared = by_seed[0].keys() & by_seed[1].keys()
    means = [sum(values[seed] for seed in shared) / len(shared) for values in by_seed]
    digits = 1 if max(map(abs, means)) >= 5 else 2
    return " vs ".join(f"{mean:.{digits}f}" for mean in means)


def _remarks(kept: Kept) -> Iterator[str]:
    """Sum up what follows from the numbers: tables with the settings side by side, and sentences."""
    ranked = {title: by_name[MAIN[title]] for title, by_name in kept.items() if MAIN[title] in by_name}
    yield from _table(  # every method of the main table that learnt
        ["the best by AUROC", "near", "SPCP's place", "far", "SPCP's place"],
        [[title, *_ranking(main)] for title, main in ranked.items()],
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
    yield from _table(
        [what, *(f"{title}: {' '.join(measure)}" for title in run for measure in NUMBERS)],
        [
            [
                row.removeprefix("truncate:").replace("Vanilla", "no truncation"),
                *(_mean(each, row, *measure) for each in run.values() for measure in NUMBERS),
            ]
            for row in rows
        ],
    )


def _heads(kept: Kept) -> Iterator[str]:
    """Write the far AUROC of scores that run features through the head once more."""
    run = {title: by_name["compatibility"] for title, by_name in kept.items() if "compatibility" in by_name}
    networks = {"plain": "", "SPCP": "+SPCP", "SPCP, plain head": f"+SPCP{PLAIN_HEAD}"}
    yield from _table(
        ["far AUROC", *(f"{title}: {network}" for title in run for network in networks)],
        [
            [score, *(_mean(each, score + end, "far") for each in run.values() for end in networks.values())]
            for score in BOTH_HEADS
            if any(score in each.rows for each in run.values())
        ],
    )


def _questions(kept: Kept) -> Iterator[str]:
    """Answer three questions, setting by setting."""
    answers = {"training-length": _lengths, "scales": _scales, "prediction": _predictions}
    for name, question in QUESTIONS.items():
        yield from (f"## {question}", "")
        run = {title: by_name[name] for title, by_name in kept.items() if name in by_name}
        yield from answers[name](run)
        if "CIFAR-10" not in run:
            yield f"CIFAR-10: not run (`spcp reproduce {name} --budget cpu`).\n"
        for title, outcome in run.items():
            yield from (f"![{title}: {question}]({path})\n" for path in _drawn(outcome).values())


def _lengths(run: Mapping[str, Outcome]) -> Iterator[str]:
    """Write the gain of SPCP at each length of training."""
    for title, outcome in run.items():
        gains = findings.gains_by_length(outcome.values)
        lengths = sorted({epochs for points in gains.values() for epochs, _ in points})
        rows = []
        for (name, group), points in gains.items():
            texts = {epochs: _gain(values) for epochs, values in points}
            rows.append([f"{title}: {name}, {group}", *(texts.get(epochs, "") for epochs in lengths)])
        yield from _table(["gain of AUROC over plain training", *(f"{epochs} epochs" for epochs in lengths)], rows)


def _gain(values: Sequence[float]) -> str:
    mean, deviation = mean_and_deviation(values)
    return f"{mean:+.1f} (one seed)" if len(values) == 1 else f"{mean:+.1f} ±{deviation:.1f} ({len(values)} seeds)"


LOST = """Each kind of network takes the amount that is best for the other kinds, in one scale. The AUROC (mean of near
and far sets) that it loses to its own best, mean / worst over kinds:
"""


def _scales(run: Mapping[str, Outcome]) -> Iterator[str]:
    """Write what is lost by one amount for all networks, in each scale."""
    losses = {title: findings.losses_by_scale(outcome.values) for title, outcome in run.items()}
    losses = {title: lost for title, lost in losses.items() if lost}
    if not losses:
        return
    yield LOST
    names = list(dict.fromkeys(name for lost in losses.values() for name in lost))
    yield from _table(
        ["scale", *(f"{_of(title)}, {_kinds(len(next(iter(lost.values()))))}" for title, lost in losses.items())],
        [[name, *(_lost(lost.get(name, {})) for lost in losses.values())] for name in names],
    )
    for title, lost in losses.items():
        best = findings.best_amounts(run[title].values)
        yield f"- {_of(title)}: {findings.best_scale(lost)}. The best rho_norm by test sets: {best}."
    if not any("cifar100" in row for outcome in run.values() for row in outcome.rows):
        yield "- All of these have ten classes (the sounds six), where rho_norm is nearly proportional to the share"
        yield "  of all contributions, so they say little about a scale for other numbers of classes."
    yield ""


def _of(title: str) -> str:
    """Name the networks of a question that is asked of all data of a budget."""
    return {"Digits": "Digits and sounds", "CIFAR-10": "CIFAR-10 and CIFAR-100"}[title]


def _kinds(count: int) -> str:
    return f"{count} kind{'s' if count > 1 else ''}"


def _lost(lost: Mapping[str, float]) -> str:
    values = list(lost.values())
    return f"{sum(values) / len(values):.1f} / {max(values):.1f}" if values else ""


TOLD = """A case is a seed of a kind of network. The plain network tells three things: whether features of OOD
validation data are longer than those of ID data; whether the validation AUROC rises if that network is truncated as it
is; and the share of its positive contributions, with a bound that is fitted to these cases. In how many cases each is
right (in brackets: its rank correlation with the gain), and which of the first two beats always giving the same answer:
"""


def _predictions(run: Mapping[str, Outcome]) -> Iterator[str]:
    """Write in how many cases the plain network tells whether SPCP helps."""
    signs = dict(zip(findings.PREDICTORS, ("longer features", "truncated as it is", "positive share"), strict=True))
    rows = []
    for title, outcome in run.items():
        for each in findings.predictions(outcome.values):
            answer, usual = each.usual
            told = [f"{each.right[name]} ({each.ranks[name]:+.2f})" if name in each.right else "" for name in signs]
            rows.append(
                [
                    f"{_of(title)}, {each.amount} ({_kinds(len(each.kinds))})",
                    f"{each.rises} of {len(each.gains)}",
                    f"{each.gains.min():+.1f} to {each.gains.max():+.1f}",
                    f"{usual} ({answer})",
                    *told,
                    signs[each.best] if each.best else "none",
                ]
            )
    if rows:
        yield TOLD
    yield from _table(
        ["rho_norm", "AUROC rises in", "by points", "always the same answer", *signs.values(), "enough"], rows
    )


def _mean(outcome: Outcome, row: str, column: str, metric: str = "AUROC") -> str:
    cell = outcome.cell(row, column, metric)
    return "" if cell is None else f"{cell.mean:.1f}"


def _ranking(main: Outcome) -> Iterator[str]:
    """Name the best three rows of the main table, and the place of SPCP, for near and for far sets."""
    for group in ("near", "far"):
        again = f"SPCP rho_norm={main.about.get('rho_norm', 0):g}"  # the paper's value, where it was chosen
        means = {row: _cell(main, row, group, "AUROC").mean for row in main.learnt if row != again}
        order = sorted(means, key=lambda row: -means[row])
        yield ", ".join(f"{row} {_mean(main, row, group)}" for row in order[:3])
        yield f"{order.index('SPCP') + 1} of {len(order)}" if "SPCP" in order else ""


def _drawn(outcome: Outcome) -> dict[str, str]:
    """Return where the figures of an outcome are, by kind, as pages of docs/ name them."""
    paths = {kind: f"results/{outcome.budget}/{outcome.name}-{kind}.svg" for kind in EXPERIMENTS[outcome.name].figures}
    return {kind: path for kind, path in paths.items() if (DOCS / path).exists()}


def _section(outcome: Outcome) -> str:
    filled = context(outcome, _drawn(outcome), level=3, brief=True)
    if outcome.name == "prediction":  # its numbers are those of `scales`
        filled["tables"] = []
    return render("experiment.md.jinja", {**filled, "title": f"{TITLES[outcome.about['data']]}: {outcome.title}"})


if __name__ == "__main__":
    main()
