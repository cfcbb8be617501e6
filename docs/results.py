"""The pages of results, from the small files that `spcp reproduce` writes.

python docs/results.py            # write results.md and results-tables.md
python docs/results.py FOLDER     # after taking over what is below FOLDER (small/, cpu/), and drawing it anew
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from spcp.config import config_for
from spcp.experiments import BUDGETS, EXPERIMENTS, Outcome, drawing, judged
from spcp.experiments.catalogue import BOTH_HEADS, PLAIN_HEAD
from spcp.experiments.outcome import Cell, ClaimResult
from spcp.experiments.page import context, how_chosen, number_text
from spcp.experiments.records import FILE
from spcp.report.figures import as_svg, for_both_schemes
from spcp.report.page import render

DOCS = Path(__file__).parent
ROOT = DOCS.parent
KEPT = DOCS / "results"
SETTINGS = {"small": "Digits", "cpu": "CIFAR-10"}
SAME = {"small": ("cifar100", "imagenet200", "hyperparameters"), "cpu": ("hyperparameters",)}  # as other names
MARKS = ("<!-- results, by docs/results.py -->", "<!-- end of results -->")  # in the README
NOTE = "<!-- Written by docs/results.py: edit that. -->"
FINDINGS = {  # what our additions found, introduced
    "feature-norms": "",
    "rho-auto": "rho_norm = auto, ",
    "two-views": "two views of ",
    "training-length": "",
    "scales": "how to set how much is truncated: ",
    "prediction": "what a plain network tells of SPCP: ",
}
Kept = Mapping[str, Mapping[str, Outcome]]  # by setting and name


def main() -> None:
    """Write the pages, after taking over new outcomes if a folder is named."""
    if len(sys.argv) > 1:
        take_over(Path(sys.argv[1]))
    for name, text in pages().items():
        (ROOT / name).write_text(text)


def take_over(folder: Path) -> None:
    """Keep the records of runs and the outcomes, and draw what can be drawn of them; other figures are copied."""
    for path in sorted((folder / "cpu/runs").rglob(FILE)):  # digits take seconds to train
        kept = KEPT / path.relative_to(folder)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
    for budget in SETTINGS:
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
    for budget, by_name in outcomes().items():
        if "ablation-rho" in by_name:
            arms, title = _arms(by_name["ablation-rho"]), SETTINGS[budget]
            figure, _ = drawing.summary(by_name["ablation-rho"], arms, title)
            (KEPT / budget / "summary.svg").write_text(for_both_schemes(as_svg(figure)))


def _current(outcome: Outcome) -> bool:
    """Tell whether an outcome is of the network that its budget has now."""
    facts = outcome.about
    settings = BUDGETS[outcome.budget].settings.get(facts["data"], {})
    return bool(config_for(facts["data"], **settings).network == facts["network"])


def outcomes() -> Kept:
    """Read the outcomes that are kept, by setting and name."""
    kept = {
        budget: {path.stem: judged(Outcome.read(path.read_text())) for path in sorted((KEPT / budget).glob("*.json"))}
        for budget in SETTINGS
    }
    return {
        budget: {name: by_name[name] for name in EXPERIMENTS if name in by_name and _current(by_name[name])}
        for budget, by_name in kept.items()
    }


HEAD = """# Results

{note}

Does SPCP do what its paper says? Measured on real data on one machine without a GPU, in two settings. Every number
comes from `spcp reproduce` ([how](reproduce.md)); all of them, by seed and by set, are in `docs/results/`, and
[table by table](results-tables.md) with intervals, machine and date. The paper's own setting, 100 epochs of ResNet-18
on a GPU, has not been run: what follows is evidence about the method, not about the paper's numbers.

{settings}

## In short

The energy score, in percent; mean ± deviation over seeds, where there are several.

{short}

{pictures}

## Claim by claim

What the paper claims, all of it and nothing else. Networks with the same seed are compared. Each comparison (near and
far sets, AUROC and FPR95, unless the claim says otherwise) is better, worse or unclear: its 95 % interval over seeds
(Student's t) has to leave out 0, and its p-value has to pass Holm's correction for all comparisons of the claim. Where
a claim names a bound ("within a point"), which is ours, the interval has to lie above minus that. A claim **holds** if
all comparisons are better, and **holds in part** if some are and none is worse; it is **mixed** if some are better and
some are worse, **does not hold** if some are worse and none is better, and is **unclear** otherwise. In brackets: how
many are better / worse / unclear.

"""


def pages() -> dict[str, str]:
    """Write the first page, which a reader can take in, and the tables."""
    kept = outcomes()
    lines = [
        HEAD.format(
            note=NOTE,
            settings="\n".join(_settings(kept)),
            short="\n".join(_short(kept)),
            pictures="\n\n".join(_pictures(kept)),
        )
    ]
    lines += [*_claims(kept, ours=False), "Claims of ours, about what we added:", "", *_claims(kept, ours=True)]
    lines += ["## What to make of it", "", *_remarks(kept), "", UNTESTED, DECISIONS, FULL]
    tables = [
        "# Results, table by table",
        "",
        NOTE,
        "",
        "[The page of results](results.md) sums these up and says how claims are judged. AUROC is that of the energy "
        "score unless a row names another; FPR95 follows OpenOOD. Mean ± deviation over seeds; in brackets the paper's "
        "mean, where the benchmark is the same.",
        "",
    ]
    for budget, title in SETTINGS.items():
        tables += [f"## {title}", ""] if kept[budget] else []
        tables += [_section(budget, outcome) for name, outcome in kept[budget].items() if name not in SAME[budget]]
    return {
        "docs/results.md": "\n".join(lines).rstrip() + "\n",
        "docs/results-tables.md": "\n".join(tables).rstrip() + "\n",
        "README.md": _between(MARKS, "\n".join(["", *_short(kept), ""]), (ROOT / "README.md").read_text()),
    }


def _between(marks: tuple[str, str], text: str, page: str) -> str:
    """Replace what stands between two marks of a page."""
    before, _, rest = page.partition(marks[0])
    return before + marks[0] + text + marks[1] + rest.partition(marks[1])[2]


UNTESTED = """Not tested here: that data sets with fewer classes want a larger `rho_norm` (the paper's 3, 0.5 and 0.4
for 10, 100 and 200 classes), CIFAR-100 and ImageNet-200 as ID data, and whatever is "not run" above.
"""

DECISIONS = """## Decisions

These tables rank scores over all thresholds. What a detector flags at one, calibrated to flag at most 5 % of ID
samples, is in [Which detector?](which-detector.md): every score, the consensus that is the library's default, and
`auto`, on digits, sounds, CIFAR-10, photos and embeddings, each beside the best single score in hindsight.
"""

FULL = """## Where the budget full departs from the paper

- ImageNet-200 is trained for the 100 epochs of the paper's text; its released scripts have 90.
- The last weights are evaluated; the released evaluator takes the best ones on validation data.
- The threshold is updated in training only; the released code updates it at evaluation too.
- On ImageNet-200, CIDER and MOS are trained from scratch; OpenOOD fine-tunes a trained network.
- VRA, which is in no table, is OpenOOD's by default; `vra-p` is its authors'.
- The text's reduction of far FPR95 on CIFAR-10, 21.25 points, is 21.15 in its tables, which we compare with.

`tests/test_experiments.py` checks every other setting of every benchmark.
"""


def _arms(rho: Outcome) -> dict[str, str]:
    """Name the rows of the summary: plain training, what the paper's rule chose, and the most truncation."""
    chosen = f"rho_norm={rho.about['rho_norm']:g}" if "rho_norm" in rho.about else ""
    values = [row for row in rho.rows if row != "rho_norm=0"]
    how = "chosen" if len(rho.about.get("grid", ())) > 1 else "the only value trained so far"
    arms = {"rho_norm=0": "plain", chosen: f"SPCP, {chosen} ({how})"}
    arms.setdefault("rho_norm=3", "SPCP, rho_norm=3 (the paper's for CIFAR-10)")
    return {row: name for row, name in arms.items() if row in ("rho_norm=0", *values)}


def _settings(kept: Kept) -> Iterator[str]:
    data = {
        "small": "the embedded digits (MNIST) against letters and symbols (near), textures, photographs, faces and "
        "noise (far). Plain energy is upside down there on far sets, which truncation repairs in part",
        "cpu": "CIFAR-10 against CIFAR-100 and TinyImageNet (near), MNIST, SVHN and Textures (far), with OpenOOD's "
        "lists; Places365 is missing, and Textures, SVHN and MNIST are not complete",
    }
    for budget, title in SETTINGS.items():
        if "ablation-rho" not in kept[budget]:
            yield f"- **{title}** (`--budget {budget}`): not run with the network that the budget has now."
            continue
        rho = kept[budget]["ablation-rho"]
        about, accuracy = rho.about, _cell(rho, "rho_norm=0", "id", "ACC").mean
        network = about["network"] + (f" of width {about['width']}" if "width" in about else "")
        loss = about["training loss of the plain network"]
        grid = about.get("grid", ())
        yield (
            f"- **{title}** (`--budget {budget}`): {data[budget]}; {about['images']} training images, {network}, "
            f"{about['epochs']} epochs; the plain network ends with a training loss of {loss:.3f} and knows "
            f"{accuracy:.1f} % of the test images; {_seeds(about['seeds'])}; {about['machine']}; {about['date']}. "
            + (f"rho_norm {about['rho_norm']:g}, {how_chosen(grid)}." if grid else "")
            + (f" {about['missing']}" if "missing" in about else "")
        )


def _seeds(count: int) -> str:
    return "one seed, so nothing is tested" if count == 1 else f"up to {count} seeds"


def _short(kept: Kept) -> Iterator[str]:
    columns = [(group, metric) for group in ("near", "far") for metric in ("AUROC", "FPR95")] + [("id", "ACC")]
    yield "| | seeds | " + " | ".join(" ".join(column) for column in columns) + " |"
    yield "|---|---|" + "---|" * len(columns)
    for budget, title in SETTINGS.items():
        outcome = kept[budget].get("ablation-rho")
        if outcome is None:
            continue
        for row, name in _arms(outcome).items():
            cells = [_cell(outcome, row, *column) for column in columns]
            texts = [number_text(cell.mean, cell.std if len(cell.seeds) > 1 else None, 1) for cell in cells]
            yield f"| {title}: {name} | {len(cells[0].seeds)} | " + " | ".join(texts) + " |"


def _pictures(kept: Kept) -> Iterator[str]:
    for budget, title in SETTINGS.items():
        if (KEPT / budget / "summary.svg").exists() and "ablation-rho" in kept[budget]:
            yield f"![{title}: AUROC of energy, set by set, plain training and SPCP](results/{budget}/summary.svg)"


def _cell(outcome: Outcome, row: str, column: str, metric: str) -> Cell:
    cell = outcome.cell(row, column, metric)
    assert cell is not None, (outcome.name, row, column, metric)
    return cell


def _claims(kept: Kept, *, ours: bool) -> Iterator[str]:
    yield "| claim | " + " | ".join(SETTINGS.values()) + " |"
    yield "|---|" + "---|" * len(SETTINGS)
    claims: dict[tuple[str, str], dict[str, ClaimResult]] = {}
    for budget, by_name in kept.items():
        for name, outcome in by_name.items():
            if name not in SAME[budget] and EXPERIMENTS[name].note.startswith("Not in the paper") == ours:
                for claim in outcome.claims:
                    claims.setdefault((name, claim.text), {})[budget] = claim
    for (name, text), by_budget in claims.items():
        cells = [_verdict(by_budget[budget]) if budget in by_budget else "not run" for budget in SETTINGS]
        yield f"| {text} (`{name}`) | " + " | ".join(cells) + " |"
    yield ""


def _verdict(claim: ClaimResult) -> str:
    if all(gain.difference.interval is None for gain in claim.gains):
        better = sum(gain.difference.mean > 0 for gain in claim.gains)
        means = ", ".join(f"{gain.column} {gain.metric} {gain.difference.mean:+.1f}" for gain in claim.gains)
        return f"one seed: {means}" if len(claim.gains) <= 4 else f"one seed: {better} of {len(claim.gains)} up"
    return f"**{claim.support.value}** ({'/'.join(str(count) for count in claim.counts.values())})"


def _remarks(kept: Kept) -> Iterator[str]:
    """Sum up the tables in sentences that follow from the numbers."""
    for budget, title in SETTINGS.items():
        by_name = kept[budget]
        if "cifar10" in by_name:
            yield f"- {title}, the best by AUROC: {'; '.join(_ranking(by_name['cifar10']))}."
        if "ablation-stage" in by_name:
            stage = by_name["ablation-stage"]
            texts = [f"{row.removeprefix('truncate:')} {_numbers(stage, row)}" for row in stage.rows]
            yield f"- {title}, truncating at a stage (near AUROC, far AUROC, accuracy): {'; '.join(texts)}."
        if "compatibility" in by_name:
            scores = by_name["compatibility"]
            texts = [
                f"{name} {_mean(scores, name, 'far')} → {_mean(scores, f'{name}+SPCP', 'far')}, with the plain head "
                + _mean(scores, f"{name}+SPCP{PLAIN_HEAD}", "far")
                for name in BOTH_HEADS
                if {name, f"{name}+SPCP", f"{name}+SPCP{PLAIN_HEAD}"} <= set(scores.rows)
            ]
            if texts:
                yield f"- {title}, far AUROC of scores on plain → SPCP networks: {'; '.join(texts)}."
        if "noise-validation" in by_name:
            noise = by_name["noise-validation"]
            texts = [f"{row} {_numbers(noise, row)}" for row in noise.rows]
            yield f"- {title}, validation data (near AUROC, far AUROC, accuracy): {'; '.join(texts)}."
        for name, what in FINDINGS.items():
            if name in by_name:
                yield from (f"- {title}, {what}{finding}" for finding in by_name[name].findings)


def _mean(outcome: Outcome, row: str, column: str, metric: str = "AUROC") -> str:
    return f"{_cell(outcome, row, column, metric).mean:.1f}"


def _numbers(outcome: Outcome, row: str) -> str:
    return ", ".join(_mean(outcome, row, *key) for key in (("near", "AUROC"), ("far", "AUROC"), ("id", "ACC")))


def _ranking(main: Outcome) -> Iterator[str]:
    """Name the best three rows of the main table, and the place of SPCP."""
    for group in ("near", "far"):
        means = {row: _cell(main, row, group, "AUROC").mean for row in main.rows}
        order = sorted(means, key=lambda row: -means[row])
        best = ", ".join(f"{row} {_mean(main, row, group)}" for row in order[:3])
        place = f", SPCP is number {order.index('SPCP') + 1} of {len(order)}" if "SPCP" in order else ""
        yield f"{group} {best}{place}"


def _section(budget: str, outcome: Outcome) -> str:
    name = outcome.name
    pictures = {kind: f"results/{budget}/{name}-{kind}.svg" for kind in EXPERIMENTS[name].figures}
    pictures = {kind: path for kind, path in pictures.items() if (DOCS / path).exists()}
    filled = context(outcome, pictures, level=3, brief=True)
    if name == "prediction":  # its numbers are those of `scales`
        filled["tables"] = []
    return render("experiment.md.jinja", {**filled, "title": f"{SETTINGS[budget]}: {outcome.title}"})


if __name__ == "__main__":
    main()
