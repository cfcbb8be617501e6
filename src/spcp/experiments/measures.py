"""Measures of the rows of an experiment: by row, column and metric, a number for each seed."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import processes
from ..config import build_method, build_network
from ..contributions import evaluating
from ..data import Inputs
from ..methods import METHODS
from . import audio
from .catalogue import label
from .lab import Ask, Lab, Row, UntrainedError

Measure = tuple[str, str]  # column ("near", "tin", "id", ...) and metric ("AUROC", "ACC", ...)
Values = dict[str, dict[Measure, dict[int, float]]]  # by row, then by measure, then by seed
GROUPS = ("near", "far", "ood", "id")  # columns that are no single sets
HIGHER = {"AUROC", "ACC", "participation ratio"}  # is better; of all other metrics lower is

STEPS = 20  # of which a timing is the median


def measure(kind: str, lab: Lab, rows: Sequence[Row]) -> Values:
    """Measure rows, seed by seed; what neither weights nor a record can tell is left out."""
    if kind == "time":
        return seconds(lab, rows)
    values = _empty(rows)
    for seed, row in lab.tracked(rows, MEASURES[kind]):
        with contextlib.suppress(UntrainedError):
            for column, value in lab.answer(row, seed, MEASURES[kind]).items():
                values[label(row)][column][seed] = value
    return values


def _empty(rows: Sequence[Row]) -> Values:
    return {label(row): defaultdict(dict) for row in rows}


def detection(row: Row, ask: Ask) -> dict[Measure, float]:
    """Measure AUROC and FPR95 on every set and group, and accuracy."""
    scored = ask(row.score or METHODS[row.method][0].score)
    values: dict[Measure, float] = {}
    columns: dict[str, list[Mapping[str, float]]] = {}
    for role, measured in scored["sets"].items():
        group, _, name = role.partition("/")
        columns.setdefault(group, []).append(measured)
        columns[name] = [measured]
    if row.benchmark in audio.BENCHMARKS:  # the paper's table has one column for all
        columns["ood"] = list(scored["sets"].values())
    for column, sets in columns.items():
        for metric in ("auroc", "fpr95"):
            values[column, metric.upper()] = 100 * sum(measured[metric] for measured in sets) / len(sets)
    return values | {("id", "ACC"): 100 * scored["accuracy"]}


def learning(row: Row, ask: Ask) -> dict[Measure, float]:
    """Measure as `detection` does, and the training loss of the last epoch."""
    return detection(row, ask) | {("training", "loss"): ask("last epoch")["loss"]}


def sparsity(row: Row, ask: Ask) -> dict[Measure, float]:
    """Measure how few weights carry the mean contributions on ID test inputs, before any truncation.

    What is cut at inference would make any network's pattern denser. The last measure is how much the head cuts.
    """
    measured = ask("contributions")
    names = {"top 1 %": "top_1_percent", "top 10 %": "top_10_percent", "participation ratio": "participation_ratio"}
    names |= {"positive %": "positive", "truncated %": "truncated"}
    return {("contributions", metric): (100 if "%" in metric else 1) * measured[name] for metric, name in names.items()}


def tails(row: Row, ask: Ask) -> dict[Measure, float]:
    """Measure AUROC, and how far the right tail of OOD scores reaches into the ID scores: the share above their median.

    No normalisation of the scores changes that.
    """
    shares = {(group, "tail overlap"): 100 * share for group, share in ask("tails").items()}
    return detection(row, ask) | shares


def norms(row: Row, ask: Ask) -> dict[Measure, float]:
    """Measure AUROC, and the length of each set's features: their mean norm over that of ID test inputs."""
    lengths = ask("lengths", "trained")  # no head changes them
    ratios = {
        (role.partition("/")[2], "norm ratio"): length / lengths["test"]
        for role, length in lengths.items()
        if role.startswith(("near/", "far/"))
    }
    return detection(row, ask) | ratios


def scales(row: Row, ask: Ask) -> dict[Measure, float]:
    """Measure AUROC, accuracy, and how much is truncated on several scales.

    These are: the share of all contributions, the share of the positive ones, and the threshold over `mean_support`, at
    which "auto" truncates. Of OOD validation data, the AUROC, what truncating a plain network at inference adds to it,
    and the length of the features, ID = 1.
    """
    detected = {key: value for key, value in detection(row, ask).items() if key[0] in GROUPS and key[1] != "FPR95"}
    found, lengths = ask("contributions"), ask("lengths", "trained")
    outside = [length for role, length in lengths.items() if role.startswith("ood_val/")]
    values = {
        ("validation", "AUROC"): 100 * ask("validation")["auroc"],
        ("contributions", "positive %"): 100 * found["positive"],
        ("contributions", "truncated %"): 100 * found["truncated"],
        ("contributions", "truncated of positive %"): 100 * min(1.0, found["truncated"] / found["positive"]),
    }
    if found["threshold"] is not None:
        values["contributions", "threshold over support"] = found["threshold"] / found["support"]
    if outside:
        values["validation", "norm ratio"] = sum(outside) / len(outside) / lengths["val"]
    if row.method == "plain":
        values["validation", "gain at inference"] = 100 * ask("validation", "auto")["auroc"]
        values["validation", "gain at inference"] -= values["validation", "AUROC"]
    return detected | values


def seconds(lab: Lab, rows: Sequence[Row]) -> Values:
    """Time an epoch of training and inference on the test set: seconds, and multiples of the first row's.

    They follow from the median step. Methods take turns step by step, so that whatever else the machine does meets
    all alike.
    """
    device = processes.device()
    values = _empty(rows)
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        compared = [row for row in rows if row.benchmark == benchmark]
        data, config = lab.benchmark(benchmark), lab.config(compared[0], 0)
        inputs, batch = data.inputs(), config.batch_size
        sizes = {"training": len(data.fewer(config.images).train or ()), "inference": len(data.test)}
        for seed in lab.seeds:
            torch.manual_seed(seed)
            x = torch.randn(batch, *inputs.shape, device=device)
            y = torch.randint(len(inputs.class_names), (batch,), device=device)
            trainees = [_trainee(lab, row, inputs, seed, device) for row in compared]
            for column, step in (("training", _training), ("inference", _inference)):
                times: list[list[float]] = [[] for _ in compared]
                for turn in range(STEPS + 2):
                    for trainee, kept in zip(trainees, times, strict=True):
                        started = time.perf_counter()
                        step(trainee, x, y)
                        if device.type == "cuda":
                            torch.cuda.synchronize()
                        if turn > 1:  # after two to warm up
                            kept.append(time.perf_counter() - started)
                middle = [float(torch.tensor(kept).median()) * sizes[column] / batch for kept in times]
                for row, value in zip(compared, middle, strict=True):
                    values[label(row)][column, "seconds"][seed] = value
                    values[label(row)][column, "ratio"][seed] = value / middle[0]
    return values


def _trainee(lab: Lab, row: Row, inputs: Inputs, seed: int, device: torch.device) -> tuple[Any, Any, Any]:
    config = lab.config(row, seed)
    network, method = build_network(config, inputs).to(device), build_method(config).to(device)
    method.prepare(network, 1000)
    return network, method, torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, nesterov=True)


def _training(trainee: tuple[Any, Any, Any], x: torch.Tensor, y: torch.Tensor) -> None:
    network, method, optimizer = trainee
    optimizer.zero_grad()
    method(network, x, y)[0].backward()
    optimizer.step()


def _inference(trainee: tuple[Any, Any, Any], x: torch.Tensor, y: torch.Tensor) -> None:
    network, method, _ = trainee
    with evaluating(network, method):
        method.outputs(network, x)


MEASURES: Mapping[str, Callable[[Row, Ask], dict[Measure, float]]] = {
    "detection": detection,
    "learning": learning,
    "sparsity": sparsity,
    "tails": tails,
    "norms": norms,
    "scales": scales,
}
