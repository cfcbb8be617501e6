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
from spcp.experiments.outcome import Cell, Support
from spcp.experiments.page import context
from spcp.report.figures import as_svg
from spcp.report.page import render

DOCS = Path(__file__).parent
KEPT = DOCS / "results"
SETTINGS = {"small": "Small", "cpu": "CIFAR-10"}
SAME = ("cifar100", "imagenet200", "hyperparameters")  # the runs of others, beside other figures of the paper
NOTE = "<!-- Written by docs/results.py: edit that. -->"


def main() -> None:
    """Write the page, after taking over new outcomes if a folder is named."""
    if len(sys.argv) > 1:
        take_over(Path(sys.argv[1]))
    (DOCS / "results.md").write_text(page())


def take_over(folder: Path) -> None:
    """Keep the outcomes, and draw what can be drawn of them; other figures are copied."""
    for budget in SETTINGS:
        for path in sorted((folder / budget).glob("*/outcome.json")):
            name = path.parent.name
            (KEPT / budget).mkdir(parents=True, exist_ok=True)
            outcome = Outcome.read(path.read_text())
            if outcome.about["seeds"] < BUDGETS[budget].seeds:
                sys.exit(f"{path}: has {outcome.about['seeds']} seeds; reproduce it with all {BUDGETS[budget].seeds}")
            shutil.copy(path, KEPT / budget / f"{name}.json")
            for kind in EXPERIMENTS[name].figures:
                picture = KEPT / budget / f"{name}-{kind}.svg"
                if kind in ("curves", "norms"):
                    picture.write_text(as_svg(drawing.FIGURES[kind](None, outcome)[0]))
                else:
                    shutil.copy(path.parent / "figures" / f"{kind}.svg", picture)


def outcomes() -> dict[str, dict[str, Outcome]]:
    """Read the outcomes that are kept, by setting and name."""
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
network fits its training images almost perfectly, as the paper's does. Everything here comes from `spcp reproduce`
([how](reproduce.md)), and every number carries its seeds, its machine and its date. All, by seed and by set, are
in `docs/results/`, a small file each.

{settings}

## In short

{short}

## Claim by claim

A claim **holds** if the difference between networks with the same seed is above 0 on near and on far sets, in every
comparison that it makes: the 95 % interval over seeds (Student's t) lies above 0. It **holds in part** if that is so
for some; it **does not hold** if the interval lies below 0 for some and above 0 for none; otherwise it is **unclear**.
Where a claim names a margin, the interval has to lie above minus that. AUROC is that of the energy score unless a row
names another.

"""


def page() -> str:
    """Write the page of results."""
    kept = outcomes()
    lines = [HEAD.format(note=NOTE, settings="\n".join(_settings(kept)), short="\n".join(_short(kept)))]
    lines += _claims(kept)
    for budget, title in SETTINGS.items():
        lines += [f"## {title}", ""]
        lines += [_section(budget, outcome) for name, outcome in kept[budget].items() if name not in SAME]
    return "\n".join(lines).rstrip() + "\n"


def _settings(kept: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    data = {
        "small": "the embedded digits (MNIST) against letters and symbols (near), textures, photographs, faces and "
        "noise (far)",
        "cpu": "CIFAR-10 against CIFAR-100 and TinyImageNet (near), MNIST, SVHN and Textures (far), with OpenOOD's "
        "lists; Places365 is missing, and Textures, SVHN and MNIST are not complete",
    }
    for budget, title in SETTINGS.items():
        if "ablation-stage" in kept[budget]:
            about = kept[budget]["ablation-stage"].about
            network = about["network"] + (f" of width {about['width']}" if "width" in about else "")
            loss = about["training loss of the plain network"]
            yield (
                f"- **{title}** (`--budget {budget}`): {data[budget]}; {about['images']} training images, {network}, "
                f"{about['epochs']} epochs, in the last of which the training loss of the plain network is {loss:.2f}; "
                f"{about['seeds']} seeds; {about['machine']}; {about['date']}. rho_norm {about['rho_norm']:g}, chosen "
                "by the paper's rule on validation data."
            )


def _short(kept: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    for budget, title in SETTINGS.items():
        outcome = kept[budget].get("ablation-stage")
        if outcome is None:
            continue
        parts = []
        for group in ("near", "far"):
            before, after = (_cell(outcome, f"truncate:{stage}", group, "AUROC") for stage in ("none", "train+infer"))
            parts.append(f"{group} {before.mean:.1f} ±{before.std:.1f} → {after.mean:.1f} ±{after.std:.1f}")
        accuracy = [_cell(outcome, f"truncate:{stage}", "id", "ACC") for stage in ("none", "train+infer")]
        yield (
            f"- {title}: energy AUROC of plain training → SPCP: {', '.join(parts)}; accuracy "
            f"{accuracy[0].mean:.1f} → {accuracy[1].mean:.1f}."
        )
    for budget, title in SETTINGS.items():
        outcome = kept[budget].get("feature-norms")
        if outcome is not None:
            yield from (f"- {title}, {finding}" for finding in outcome.findings)
    yield from _remarks(kept)


def _cell(outcome: Outcome, row: str, column: str, metric: str) -> Cell:
    cell = outcome.cell(row, column, metric)
    assert cell is not None, (outcome.name, row, column, metric)
    return cell


def _remarks(kept: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    """Sum up the tables; read these sentences again when the numbers change."""
    small, cifar = kept["small"], kept["cpu"]

    def mean(outcome: Outcome, row: str, column: str, metric: str = "AUROC") -> str:
        return f"{_cell(outcome, row, column, metric).mean:.1f}"

    if "ablation-rho" in cifar:
        rho = cifar["ablation-rho"]
        names = {"mnist": "MNIST", "svhn": "SVHN", "texture": "Textures", "near": "near sets"}
        moves = [
            f"{name} {mean(rho, 'rho_norm=0', key)} → {mean(rho, 'rho_norm=1', key)}" for key, name in names.items()
        ]
        yield (
            f"- CIFAR-10, set by set, plain → rho_norm 1: {', '.join(moves)}. MNIST gains what other sets lose. "
            "The OOD validation data, TinyImageNet, are near, so they select a small rho_norm, which changes little."
        )
    if "cifar10" in small:
        main, itp = small["cifar10"], small["itp"]
        others = [f"{name} {mean(main, name, 'far')}" for name in ("CIDER", "SNN", "VIM")]
        yield (
            f"- SPCP is not the best there is on the digits' far sets: ITP {mean(itp, 'ITP', 'far')}, "
            f"{', '.join(others)}, SPCP {mean(main, 'SPCP', 'far')}. LogitNorm does not learn in so few steps "
            f"(accuracy {mean(main, 'LogitNorm', 'id', 'ACC')}), so its numbers there mean little."
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
            "So auto does as well as the search on digits, for one training and without OOD data. On CIFAR-10, where "
            "validation data select less truncation, it trades near sets for far ones. It is offered, not the default.",
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
        if all(name in by_name for by_name in kept.values()):
            yield f"- {words}"
    yield (
        "- Not run here: the budget `full`, CIFAR-100 and ImageNet-200 as ID data, DenseNet, and on CIFAR-10 the "
        "training methods other than LogitNorm. Networks go by the paper's names; what stands in for them is small, "
        "see [budgets](reproduce.md#budgets)."
    )


def _claims(kept: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    yield "| claim | " + " | ".join(SETTINGS.values()) + " |"
    yield "|---|" + "---|" * len(SETTINGS)
    support: dict[tuple[str, str], dict[str, Support]] = {}
    for budget, by_name in kept.items():
        for name, outcome in by_name.items():
            for claim in outcome.claims if name not in SAME else ():
                support.setdefault((name, claim.text), {})[budget] = claim.support
    for (name, text), by_budget in support.items():
        cells = [f"**{by_budget[budget].value}**" if budget in by_budget else "not run" for budget in SETTINGS]
        yield f"| {text} (`{name}`) | " + " | ".join(cells) + " |"
    yield ""


def _section(budget: str, outcome: Outcome) -> str:
    name = outcome.name
    pictures = {kind: f"results/{budget}/{name}-{kind}.svg" for kind in EXPERIMENTS[name].figures}
    filled = context(outcome, pictures, level=3, brief=True)
    shown = 2 if name in ("scores", "feature-norms") else 1
    title = f"{SETTINGS[budget]}: {outcome.title}"
    return render("experiment.md.jinja", {**filled, "title": title, "tables": filled["tables"][:shown]})


if __name__ == "__main__":
    main()
