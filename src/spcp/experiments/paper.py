"""The numbers of the paper's tables, as `paper.csv` holds them."""

from __future__ import annotations

import csv
import functools
from collections.abc import Collection
from importlib import resources
from typing import NamedTuple

# What the paper calls benchmarks and sets.
BENCHMARKS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet200": "ImageNet-200"}
BENCHMARKS |= {"kinetics-sound": "Kinetics-Sound"}
SETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tin": "TIN",
    "mnist": "MNIST",
    "svhn": "SVHN",
    "texture": "Textures",
    "places365": "Places365",
    "ssb_hard": "SSB-hard",
    "ninco": "NINCO",
    "inaturalist": "iNaturalist",
    "openimage_o": "OpenImage-O",
}
NEAR = {"CIFAR-10", "CIFAR-100", "TIN", "SSB-hard", "NINCO"}  # the other sets are far-OOD


class Figure(NamedTuple):
    """A mean over the paper's three seeds, and its deviation if that is given."""

    mean: float
    std: float | None


@functools.cache
def figures() -> dict[tuple[str, str, str, str, str, str], Figure]:
    """Read all of them, by table, benchmark, backbone, method, column and metric."""
    text = resources.files(__package__).joinpath("paper.csv").read_text(encoding="utf-8")
    return {
        (row["table"], row["benchmark"], row["backbone"], row["method"], row["column"], row["metric"]): Figure(
            float(row["mean"]), float(row["std"]) if row["std"] else None
        )
        for row in csv.DictReader(text.splitlines())
    }


def figure(
    tables: tuple[str, ...], benchmark: str, backbone: str, method: str, column: str, metric: str
) -> Figure | None:
    """Return one number, from the first of the tables that has it; None if none has.

    >>> figure(("cifar",), "cifar10", "ResNet-18", "SPCP", "far", "AUROC")
    Figure(mean=94.55, std=0.42)
    """
    if metric == "ratio":  # of seconds, which are another machine's
        with_method, plain = (
            figure(tables, benchmark, backbone, name, column, "seconds") for name in (method, "Vanilla")
        )
        return Figure(with_method.mean / plain.mean, None) if with_method and plain else None
    for table in tables:
        for network in (backbone, ""):  # some tables name none
            key = (table, BENCHMARKS.get(benchmark, benchmark), network, method, SETS.get(column, column), metric)
            if key in figures():
                return figures()[key]
    return None


def group_figure(
    tables: tuple[str, ...], benchmark: str, backbone: str, method: str, group: str, metric: str, sets: Collection[str]
) -> Figure | None:
    """Return the paper's mean over those sets of a group that are named, so that means are over the same sets.

    Its own mean of the group, with the deviation, if all of its sets are; None if it has no figures of single sets.

    >>> far = ("appendix-r2",), "cifar10", "ResNet-18", "SPCP", "far", "FPR95"
    >>> group_figure(*far, ["mnist", "svhn", "texture", "places365"])
    Figure(mean=20.54, std=0.67)
    >>> round(group_figure(*far, ["mnist", "svhn", "texture"]).mean, 2)
    18.57
    """
    name, here = BENCHMARKS.get(benchmark, benchmark), {SETS.get(column, column) for column in sets}
    listed = {column for _, where, _, _, column, _ in figures() if where == name and column in SETS.values()}
    members = {column for column in listed if (column in NEAR) == (group == "near")}
    if members <= here:
        return figure(tables, benchmark, backbone, method, group, metric)
    single = [figure(tables, benchmark, backbone, method, column, metric) for column in sorted(members & here)]
    known = [each.mean for each in single if each]
    return Figure(sum(known) / len(known), None) if known and len(known) == len(single) else None
