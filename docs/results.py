"""The page of results, from the small files that `spcp reproduce` writes.

python docs/results.py            # write results.md
python docs/results.py FOLDER     # after taking over what is below FOLDER (small/, cpu/), and drawing it anew
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from spcp.experiments import BUDGETS, EXPERIMENTS, Outcome, drawing
from spcp.experiments.outcome import Cell
from spcp.experiments.page import about, cell_words, gain_words, tables
from spcp.report.figures import as_svg

DOCS = Path(__file__).parent
KEPT = DOCS / "results"
SETTINGS = {"small": "Small", "cpu": "CIFAR-10"}
SAME = ("cifar100", "imagenet200", "hyperparameters")  # the runs of others, beside other figures of the paper
NOTE = "<!-- Written by docs/results.py: edit that. -->"


def main() -> None:
    """Take over, and write."""
    if len(sys.argv) > 1:
        take_over(Path(sys.argv[1]))
    (DOCS / "results.md").write_text(page())


def take_over(folder: Path) -> None:
    """Keep the outcomes, and draw what can be drawn of them; other figures are copied."""
    for budget in SETTINGS:
        for path in sorted((folder / budget).glob("*/outcome.json")):
            name = path.parent.name
            (KEPT / budget).mkdir(parents=True, exist_ok=True)
            found = Outcome.read(path.read_text())
            if found.about["seeds"] < BUDGETS[budget].seeds:
                sys.exit(f"{path}: has {found.about['seeds']} seeds; reproduce it with all {BUDGETS[budget].seeds}")
            shutil.copy(path, KEPT / budget / f"{name}.json")
            for kind in EXPERIMENTS[name].figures:
                picture = KEPT / budget / f"{name}-{kind}.svg"
                if kind in ("curves", "norms"):
                    picture.write_text(as_svg(drawing.FIGURES[kind](None, found)[0]))
                else:
                    shutil.copy(path.parent / "figures" / f"{kind}.svg", picture)


def outcomes() -> dict[str, dict[str, Outcome]]:
    """All that are kept, by setting and name."""
    return {
        budget: {
            name: Outcome.read((KEPT / budget / f"{name}.json").read_text())
            for name in EXPERIMENTS
            if (KEPT / budget / f"{name}.json").exists()
        }
        for budget in SETTINGS
    }


HEAD = """# Results

{note}

Does SPCP work, and where? Measured on real data on one machine without a GPU, in two settings in which the plain
network knows its training images almost by heart, as the paper's does. Everything here comes from `spcp reproduce`
([how](reproduce.md)), and every number carries its seeds, its machine and its date. All, by seed and by set, are
in `docs/results/`, a small file each.

{settings}

## In short

{short}

## Claim by claim

A claim **holds** if the difference between networks with the same seed is above 0 on near and on far sets, in every
comparison that it makes: the 95 % interval over seeds (Student's t) lies above 0. It **holds in part** if that is so
for some; it **does not hold** if the difference is the other way round for some and above 0 for none; otherwise it is
**unclear**. Where a claim names a margin, the interval has to lie above minus that. AUROC is of the energy score, if
not said otherwise.

"""


def page() -> str:
    """The page."""
    kept = outcomes()
    lines = [HEAD.format(note=NOTE, settings="\n".join(_settings(kept)), short="\n".join(_short(kept)))]
    lines += _claims(kept)
    for budget, title in SETTINGS.items():
        lines += [f"## {title}", ""]
        for name, found in kept[budget].items():
            if name not in SAME:
                lines += _section(budget, name, found)
    return "\n".join(lines).rstrip() + "\n"


def _settings(kept: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    told = {
        "small": "the embedded digits (MNIST) against letters and symbols (near), textures, photographs, faces and "
        "noise (far)",
        "cpu": "CIFAR-10 against CIFAR-100 and TinyImageNet (near), MNIST, SVHN and Textures (far), with OpenOOD's "
        "lists; Places365 is missing, and Textures, SVHN and MNIST are not complete",
    }
    for budget, title in SETTINGS.items():
        if "ablation-stage" in kept[budget]:
            own = kept[budget]["ablation-stage"].about
            network = own["network"] + (f" of width {own['width']}" if "width" in own else "")
            loss = own["training loss of the plain network"]
            yield (
                f"- **{title}** (`--budget {budget}`): {told[budget]}; {own['images']} training images, {network}, "
                f"{own['epochs']} epochs, in the last of which the training loss of the plain network is {loss:.2f}; "
                f"{own['seeds']} seeds; {own['machine']}; {own['date']}. rho_norm {own['rho_norm']:g}, chosen by the "
                "paper's rule on validation data."
            )


def _short(kept: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    for budget, title in SETTINGS.items():
        found = kept[budget].get("ablation-stage")
        if found is None:
            continue
        parts = []
        for group in ("near", "far"):
            before, after = (_cell(found, f"truncate:{own}", group, "AUROC") for own in ("none", "train+infer"))
            parts.append(f"{group} {before.mean:.1f} ±{before.std:.1f} → {after.mean:.1f} ±{after.std:.1f}")
        accuracy = [_cell(found, f"truncate:{own}", "id", "ACC") for own in ("none", "train+infer")]
        yield (
            f"- {title}: energy AUROC of plain training → SPCP: {', '.join(parts)}; accuracy "
            f"{accuracy[0].mean:.1f} → {accuracy[1].mean:.1f}."
        )
    for budget, title in SETTINGS.items():
        found = kept[budget].get("feature-norms")
        if found is not None:
            yield from (f"- {title}, {own}" for own in found.findings)
    yield from _said(kept)


def _cell(found: Outcome, row: str, column: str, metric: str) -> Cell:
    cell = found.cell(row, column, metric)
    assert cell is not None, (found.name, row, column, metric)
    return cell


def _said(kept: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    """What the tables come to; the words are to be read again when the numbers change."""
    small, cifar = kept["small"], kept["cpu"]

    def mean(found: Outcome, row: str, column: str, metric: str = "AUROC") -> str:
        return f"{_cell(found, row, column, metric).mean:.1f}"

    if "ablation-rho" in cifar:
        rho = cifar["ablation-rho"]
        names = {"mnist": "MNIST", "svhn": "SVHN", "texture": "Textures", "near": "near sets"}
        moves = [
            f"{name} {mean(rho, 'rho_norm=0', own)} → {mean(rho, 'rho_norm=1', own)}" for own, name in names.items()
        ]
        yield (
            f"- CIFAR-10, set by set, plain → rho_norm 1: {', '.join(moves)}. What is won on MNIST is lost elsewhere. "
            "The validation data, TinyImageNet, are near, and so choose a small rho_norm, which changes little."
        )
    if "cifar10" in small:
        main, itp = small["cifar10"], small["itp"]
        others = [f"{name} {mean(main, name, 'far')}" for name in ("CIDER", "SNN", "VIM")]
        yield (
            f"- SPCP is not the best there is on the digits' far sets: ITP {mean(itp, 'ITP', 'far')}, "
            f"{', '.join(others)}, SPCP {mean(main, 'SPCP', 'far')}. LogitNorm does not learn in so few steps "
            f"(accuracy {mean(main, 'LogitNorm', 'id', 'ACC')}), so what is said of it there says little."
        )
    if "ablation-stage" in small:
        stage = small["ablation-stage"]
        rows = ("truncate:infer", "truncate:train+infer")
        far, near, accuracy = (
            " against ".join(mean(stage, row, column, metric) for row in rows)
            for column, metric in (("far", "AUROC"), ("near", "AUROC"), ("id", "ACC"))
        )
        yield (
            f"- Truncation at inference alone is better than in both stages on the digits' far sets ({far}), and worse "
            f"on near sets ({near}) and in accuracy ({accuracy})."
        )
    for name, what, words in (
        (
            "rho-auto",
            '`rho_norm="auto"`',
            "So auto does as well as the search on digits, for one training and without odd data. On CIFAR-10, where "
            "validation data ask for less to be cut, it trades near sets for far ones. It is offered, not the default.",
        ),
        (
            "two-views",
            "Two views",
            "So two views protect from the worse of the two, but do not come within a point of the better one "
            "everywhere: they are offered, not the default.",
        ),
    ):
        for budget, title in SETTINGS.items():
            if name in kept[budget]:
                yield f"- {what}, {title}: {' '.join(kept[budget][name].findings)}"
        if all(name in own for own in kept.values()):
            yield f"- {words}"
    yield (
        "- Not run here: the budget `full`, CIFAR-100 and ImageNet-200 as known data, DenseNet, and on CIFAR-10 the "
        "training methods other than LogitNorm. Networks go by the paper's names; what stands in for them is small, "
        "see [budgets](reproduce.md#budgets)."
    )


def _claims(kept: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    yield "| claim | " + " | ".join(SETTINGS.values()) + " |"
    yield "|---|" + "---|" * len(SETTINGS)
    words: dict[tuple[str, str], dict[str, str]] = {}
    for budget, found in kept.items():
        for name, own in found.items():
            if name in SAME:
                continue
            for verdict in own.verdicts:
                words.setdefault((name, verdict.says), {})[budget] = verdict.word
    for (name, says), by in words.items():
        cells = [f"**{by[budget]}**" if budget in by else "not run" for budget in SETTINGS]
        yield f"| {says} (`{name}`) | " + " | ".join(cells) + " |"
    yield ""


def _section(budget: str, name: str, found: Outcome) -> Iterator[str]:
    yield f"### {SETTINGS[budget]}: {found.title}"
    yield ""
    yield about(found)
    yield ""
    for own in found.verdicts:
        yield f"- {own.says}: **{own.word}**. " + "; ".join(gain_words(gain) for gain in own.gains) + "."
    yield from (f"- {own}" for own in found.findings)
    if found.verdicts or found.findings:
        yield ""
    for table in tables(found)[: 2 if name in ("scores", "feature-norms") else 1]:
        yield "| | " + " | ".join(table["columns"]) + " |"
        yield "|---|" + "---:|" * len(table["columns"])
        for row, cells in table["lines"]:
            yield f"| {row} | " + " | ".join(cell_words(own, brief=True) for own in cells) + " |"
        yield ""
    for kind in EXPERIMENTS[name].figures:
        yield f"![{found.title}](results/{budget}/{name}-{kind}.svg)"
        yield ""


if __name__ == "__main__":
    main()
