"""What SPCP adds to plain training, setting by setting."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

import numpy as np

from spcp.config import rho_norm_for
from spcp.experiments import Outcome, paper
from spcp.experiments.catalogue import GROUPS, MAIN_TABLES, Claim
from spcp.experiments.findings import AUROCS, count_seeds
from spcp.experiments.measures import Values
from spcp.experiments.outcome import Support, judge
from spcp.experiments.page import number_text

from . import archive
from .archive import MAIN, TITLES, Kept, cell_of, how_taken, summary_of, write_table

WORTH = """The AUROC of energy after plain training, in percent, and the points that SPCP adds; first where plain
energy is worst on far sets. *Chosen* is the rho_norm that validation data choose, *given* is the paper's value for as
many classes, or the one that is named. In brackets whether SPCP detects better, by AUROC and FPR95 (photos and
embeddings: by AUROC) on near and on far sets, as the claims below are judged."""
DECIDED = {  # what benchmarks/decide.py measured on data that no experiment has
    "photos": "Photos (fine-tuned EfficientNet-Lite0), rho_norm 0.5",
    "embeddings": "Embeddings (a perceptron), rho_norm 0.5",
}
Compared = tuple[str, Values, str, str, str]  # name, numbers, and their rows: plain, SPCP chosen, SPCP given


def write_worth(kept: Kept) -> Iterator[str]:
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
    yield from write_table(
        ["data", "plain: near", "plain: far", "SPCP, chosen", "SPCP, given"], [row for _, row in rows]
    )


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
            facts, is_chosen = by_name["audio"].about, how_taken(by_name["audio"]) == "chosen"
            name = TITLES[facts["data"]] + ("" if is_chosen else f", rho_norm {facts['rho_norm']:g}")
            yield name, values["audio"], "Vanilla", *(("SPCP", "") if is_chosen else ("", "SPCP"))
        for suffix in dict.fromkeys(row.partition(" for ")[2] for _, row, _ in _longest(by_name)):
            plain, given = (f"{name} for {suffix}" for name in ("Vanilla", "SPCP rho_norm=3"))
            yield f"{title}, {suffix}", values["training-length"], plain, "", given
        if "augmentation" in values:
            plain, chosen, given = (f"{name} not augmented" for name in ("Vanilla", "SPCP", "SPCP rho_norm=3"))
            yield f"{title}, not augmented", values["augmentation"], plain, chosen, given


def _decided() -> Iterator[Compared]:
    """Yield photos and embeddings."""
    for data, name in DECIDED.items():
        values: Values = {}
        for path in sorted((archive.KEPT / "decide" / data).glob("*.json")):
            network, _, seed = path.stem.rpartition("-")
            cells = json.loads(path.read_text())["cells"]["energy"]
            for group, metric in AUROCS:
                areas = [100 * areas[0] for where, areas in cells.items() if where.startswith(group)]
                values.setdefault(network, {}).setdefault((group, metric), {})[int(seed)] = sum(areas) / len(areas)
        yield name, values, "plain", "", "rho_norm=0.5"


def _gained(values: Values, plain: str, arm: str) -> str:
    """Write the gain of AUROC over plain training, and whether detection is better."""
    measures = tuple(measure for measure in GROUPS if measure in values.get(plain, {}))
    result = judge(Claim("", ((arm, plain),), measures), values, {})
    if not result.gains:
        return ""
    means = {gain.column: gain.difference.mean for gain in result.gains if gain.metric == "AUROC"}
    verdict = f"{DETECTS.get(result.support, result.support.value)}, " if result.tested else ""
    listed = ", ".join(f"{mean:+.1f} {group}" for group, mean in means.items())
    return f"{listed} ({verdict}{count_seeds(len(result.gains[0].difference.by_seed))})"


DETECTS = {Support.HOLDS: "better", Support.PARTLY: "better in part", Support.FAILS: "worse"}
AMOUNT = """With rho_norm 3 this network of CIFAR-10 truncates {share:.0f} % of its positive contributions. Whether
the paper's ResNet-18 does so too is not known: what is tested is the paper's value, and not the amount of truncation
that it had there."""


def write_amount(kept: Kept) -> str:
    """Say how much the paper's value for CIFAR-10 truncates here."""
    scales = kept["CIFAR-10"].get("scales")
    cell = scales and scales.cell("cifar10 whitened CNN rho_norm=3", "contributions", "truncated of positive %")
    return AMOUNT.format(share=cell.mean) if cell else ""


def write_short(kept: Kept) -> Iterator[str]:
    """Write the means of plain training and of SPCP, and the paper's."""
    columns = [*GROUPS, ("id", "ACC")]
    rows: list[list[str]] = []
    for title, by_name in kept.items():
        summary = summary_of(by_name)
        lines = [(summary[0], row, name) for row, name in summary[1].items()] if summary else []
        for outcome, row, name in [*lines, *_longest(by_name)]:
            cells = [cell_of(outcome, row, *column) for column in columns]
            texts = [number_text(cell.mean, cell.std if len(cell.seeds) > 1 else None, 1) for cell in cells]
            rows.append([f"{title}: {name}", str(len(cells[0].seeds)), *texts])
        if title in PAPER and lines:
            for method, name in (("Energy", "plain"), ("SPCP", "SPCP")):
                texts = [number_text(*_paper(title, method, *column), 1) for column in columns]
                rows.append([f"{title}: the paper's {name}, on the same sets", "3", *texts])
    yield from write_table(["setting", "seeds", *(" ".join(column) for column in columns)], rows)


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


SETS = ("cifar10", "cifar100", "tin", "mnist", "svhn", "texture")  # on which ours are measured: no Places365
PAPER = {title: (name, MAIN_TABLES[name][1]) for title, name in MAIN.items() if title != "Digits"}


def _paper(title: str, method: str, column: str, metric: str) -> paper.Figure:
    """Return the paper's mean over the sets that are here."""
    benchmark, tables = PAPER[title]
    key = (tables, benchmark, "ResNet-18", method, column, metric)
    figure = paper.group_figure(*key, SETS) if column != "id" else paper.figure(*key)
    assert figure is not None, key
    return figure
