"""The pages of results, from the small files that `spcp reproduce` writes.

python docs/results.py            # write results.md and results-tables.md
python docs/results.py FOLDER     # after taking over what is below FOLDER (small/, cpu/), and drawing it anew
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from spcp.config import config_for, rho_norm_for
from spcp.experiments import BUDGETS, EXPERIMENTS, Outcome, drawing, findings, judged, paper
from spcp.experiments.catalogue import BOTH_HEADS, MAIN_TABLES, PLAIN_HEAD, Claim, claims_of
from spcp.experiments.measures import Values
from spcp.experiments.outcome import Cell, ClaimResult, Gain, Support, judge
from spcp.experiments.page import context, how_chosen, number_text
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
SAME = {
    "small": ("cifar100", "imagenet200", "hyperparameters"),
    "cpu": ("imagenet200", "hyperparameters"),
}  # no columns
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
AUROCS = (("near", "AUROC"), ("far", "AUROC"))
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
            if outcome.name in SAME[budget] or not _current(outcome) or "--only" in outcome.about["command"]:
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
            worth="\n".join(_worth(kept)).rstrip(),
            amount=_amount_of_three(kept),
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
- FPR95 is OpenOOD's, the share of ID samples that are flagged when 95 % of the OOD samples are; the paper's text has
  it the other way round.
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
        return (main, {row: name for row, name in arms.items() if row in main.rows}) if "Energy" in main.rows else None
    rho = by_name.get("ablation-rho")
    return (rho, _arms(rho)) if rho is not None and "rho_norm=0" in rho.rows else None


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
    """Say which rho_norm was chosen, and how."""
    facts = outcome.about
    return f"rho_norm {facts['rho_norm']:g}, {how_chosen(facts)}" if "grid" in facts else ""


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
            for method, name in (("Energy", "plain"), ("SPCP", "SPCP")):
                texts = [number_text(*_paper(title, method, *column), 1) for column in columns]
                rows.append([f"{title}: the paper's {name}, on the same sets", "3", *texts])
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


WORTH = """The AUROC of energy after plain training, in percent, and the points that SPCP adds; first where plain
energy is worst on far sets. *Chosen* is the rho_norm that validation data choose, *given* is the paper's value for as
many classes, or the one that is named. In brackets whether SPCP detects better, by AUROC and FPR95 (photos and
embeddings: by AUROC) on near and on far sets, as the claims below are judged."""
PARAMETERS = {"photos": "Photos (fine-tuned EfficientNet-Lite0), rho_norm 0.5"}
PARAMETERS |= {"embeddings": "Embeddings (a perceptron), rho_norm 0.5"}
Compared = tuple[str, Values, str, str, str]  # name, numbers, and their rows: plain, SPCP chosen, SPCP given


def _worth(kept: Kept) -> Iterator[str]:
    """Write what SPCP adds to plain training for each kind of data and training, and in the paper."""
    rows = []
    for name, values, plain, *arms in [*_compared(kept), *_decided()]:
        if plain not in values or not any(arm in values for arm in arms):
            continue
        levels = [float(np.mean([*values[plain][measure].values()])) for measure in AUROCS]
        gains = [_gained(values, plain, arm) for arm in arms]
        if gains[0] == gains[1]:
            gains[1] = "the same"
        rows.append((levels[1], [name, *(f"{level:.1f}" for level in levels), *gains]))
    for title in PAPER:
        means = [[_paper(title, method, *measure).mean for measure in AUROCS] for method in ("Energy", "SPCP")]
        gain = ", ".join(f"{b - a:+.1f} {group}" for a, b, (group, _) in zip(*means, AUROCS, strict=True))
        name = f"*{title} in the paper: ResNet-18, 100 epochs*"
        rows.append((math.inf, [name, *(f"{mean:.1f}" for mean in means[0]), "", gain]))
    rows.sort(key=lambda row: row[0])
    yield from _table(["data", "plain: near", "plain: far", "SPCP, chosen", "SPCP, given"], [row for _, row in rows])


def _compared(kept: Kept) -> Iterator[Compared]:
    """Yield what can be compared: each kind of data, and the networks of CIFAR-10 that were trained differently."""
    for title, by_name in kept.items():
        values = {name: outcome.values for name, outcome in by_name.items()}
        if "ablation-rho" in values:
            rho = by_name["ablation-rho"].about.get("rho_norm")
            yield title, values["ablation-rho"], "rho_norm=0", f"rho_norm={rho:g}" if rho else "", "rho_norm=3"
        if "cifar100" in values:
            given = f"SPCP rho_norm={rho_norm_for('cifar100'):g}"
            yield title, values["cifar100"], "Energy", "SPCP", given
        if "audio" in values and "SPCP" in values["audio"]:
            facts, is_chosen = by_name["audio"].about, _how(by_name["audio"]) == "chosen"
            name = TITLES[facts["data"]] + ("" if is_chosen else f", rho_norm {facts['rho_norm']:g}")
            yield name, values["audio"], "Vanilla", *(("SPCP", "") if is_chosen else ("", "SPCP"))
        for suffix in dict.fromkeys(row.partition(" for ")[2] for _, row, _ in _longest(by_name)):
            plain, given = (f"{name} for {suffix}" for name in ("Vanilla", "SPCP rho_norm=3"))
            yield f"{title}, {suffix}", values["training-length"], plain, "", given
        if "augmentation" in values:
            plain, chosen, given = (f"{name} not augmented" for name in ("Vanilla", "SPCP", "SPCP rho_norm=3"))
            yield f"{title}, not augmented", values["augmentation"], plain, chosen, given


def _decided() -> Iterator[Compared]:
    """Yield what benchmarks/decide.py measured on data that no experiment has."""
    for data, name in PARAMETERS.items():
        values: Values = {}
        for path in sorted((KEPT / "decide" / data).glob("*.json")):
            network, _, seed = path.stem.rpartition("-")
            cells = json.loads(path.read_text())["cells"]["energy"]
            for group, metric in AUROCS:
                areas = [100 * areas[0] for where, areas in cells.items() if where.startswith(group)]
                values.setdefault(network, {}).setdefault((group, metric), {})[int(seed)] = sum(areas) / len(areas)
        yield name, values, "plain", "", "rho_norm=0.5"


def _gained(values: Values, plain: str, arm: str) -> str:
    """Write the gain of AUROC over plain training, and whether detection is better."""
    measures = tuple(measure for measure in COLUMNS if measure in values.get(plain, {}))
    result = judge(Claim("", ((arm, plain),), measures), values, {})
    if not result.gains:
        return ""
    means = {gain.column: gain.difference.mean for gain in result.gains if gain.metric == "AUROC"}
    count = len(result.gains[0].difference.by_seed)
    verdict = f"{DETECTS.get(result.support, result.support.value)}, {count} seeds" if result.tested else _few(count)
    return f"{', '.join(f'{mean:+.1f} {group}' for group, mean in means.items())} ({verdict})"


DETECTS = {Support.HOLDS: "better", Support.PARTLY: "better in part", Support.FAILS: "worse"}


def _few(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"


AMOUNT = """With rho_norm 3 this network of CIFAR-10 truncates {share:.0f} % of its positive contributions. Whether
the paper's ResNet-18 does so too is not known: what is tested is the paper's value, and not the amount of truncation
that it had there."""


def _amount_of_three(kept: Kept) -> str:
    """Say how much the paper's value for CIFAR-10 truncates here."""
    scales = kept["CIFAR-10"].get("scales")
    cell = scales and scales.cell("cifar10 whitened CNN rho_norm=3", "contributions", "truncated of positive %")
    return AMOUNT.format(share=cell.mean) if cell else ""


SETS = ("cifar10", "cifar100", "tin", "mnist", "svhn", "texture")  # on which ours are measured: no Places365


def _paper(title: str, method: str, column: str, metric: str) -> paper.Figure:
    """Return the paper's mean over the sets that are here."""
    benchmark, tables = PAPER[title]
    key = (tables, benchmark, "ResNet-18", method, column, metric)
    figure = paper.group_figure(*key, SETS) if column != "id" else paper.figure(*key)
    assert figure is not None, key
    return figure


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
    on = f", on {_few(facts['chosen on seeds'])}" if "chosen on seeds" in facts else ""
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
    return f"{_few(most) if fewest == most else f'{fewest} to {most} seeds'}{on}: {claim.tally}"


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
        [[f"{title} ({_few(len(_shared(main)))})", *_ranking(main)] for title, main in ranked.items() if _shared(main)],
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
    titles = {title: f"{title}, {_few(len(_shared(outcome)))}" for title, outcome in run.items()}
    yield from _table(
        [what, *(f"{titles[title]}: {' '.join(measure)}" for title in run for measure in NUMBERS)],
        [
            [
                row.removeprefix("truncate:").replace("Vanilla", "no truncation"),
                *(_mean(each, row, *measure, over=_shared(each)) for each in run.values() for measure in NUMBERS),
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
            [
                score,
                *(
                    _mean(each, score + end, "far", over=_shared(each))
                    for each in run.values()
                    for end in networks.values()
                ),
            ]
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
    yield from _table(
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
    yield from _table(
        ["rho_norm", "AUROC rises in", "by points", "always the same answer", *signs.values(), "beats it"], rows
    )


def _mean(outcome: Outcome, row: str, column: str, metric: str = "AUROC", *, over: set[int]) -> str:
    by_seed = outcome.values.get(row, {}).get((column, metric), {})
    return f"{sum(by_seed[seed] for seed in over) / len(over):.1f}" if over and over <= by_seed.keys() else ""


def _shared(outcome: Outcome) -> set[int]:
    """Return the seeds that all rows have."""
    return set.intersection(*(set(outcome.seeds(row)) for row in outcome.learnt))


def _ranking(main: Outcome) -> Iterator[str]:
    """Name the best three rows of the main table, and the place of SPCP, for near and for far sets."""
    shared = _shared(main)
    rows = [row for row in main.learnt if not row.startswith("SPCP rho_norm=")]  # the paper's value is no other method
    for group in ("near", "far"):
        order = sorted(rows, key=lambda row: -float(_mean(main, row, group, over=shared) or "nan"))
        yield ", ".join(f"{row} {_mean(main, row, group, over=shared)}" for row in order[:3])
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
