"""Measures of the rows of an experiment: by row, column and metric, a number for each seed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..config import build_method, build_network
from ..contributions import evaluating, pattern_of, plain_head
from ..data import Inputs
from . import audio
from .catalogue import label
from .lab import Lab, Row

Measure = tuple[str, str]  # column ("near", "tin", "id", ...) and metric ("AUROC", "ACC", ...)
Values = dict[str, dict[Measure, dict[int, float]]]  # by row, then by measure, then by seed
GROUPS = ("near", "far", "ood", "id")  # columns that are no single sets
HIGHER = {"AUROC", "ACC", "participation ratio"}  # is better; of all other metrics lower is

STEPS = 20  # of which a timing is the median


def _empty(rows: Sequence[Row]) -> Values:
    return {label(row): defaultdict(dict) for row in rows}


def detection(lab: Lab, rows: Sequence[Row]) -> Values:
    """Measure AUROC and FPR95 on every set and group, and accuracy."""
    values = _empty(rows)
    for seed, row in lab.tracked(rows, "scored"):
        measured = values[label(row)]
        scored = lab.scored(row, seed)
        for line in scored["rows"]:
            column = line["group"] if line["dataset"] == "mean" else line["dataset"]
            for metric in ("auroc", "fpr95"):
                measured[column, metric.upper()][seed] = 100 * line[metric]
        if row.benchmark in audio.BENCHMARKS:  # the paper's table has one column for all
            sets = [line for line in scored["rows"] if line["dataset"] != "mean"]
            for metric in ("auroc", "fpr95"):
                measured["ood", metric.upper()][seed] = 100 * sum(line[metric] for line in sets) / len(sets)
        measured["id", "ACC"][seed] = 100 * scored["rows"][0]["accuracy"]
    return values


def sparsity(lab: Lab, rows: Sequence[Row]) -> Values:
    """Measure how few weights carry the mean contributions on ID test inputs, before any truncation.

    What is cut at inference would make any network's pattern denser. The last measure is how much the head cuts.
    """
    values = _empty(rows)
    for seed, row in lab.tracked(rows):
        evaluation = lab.evaluation(row, seed)
        bank, head = evaluation.bank("test"), evaluation.model.head
        shares = pattern_of((part.features for part in bank.parts()), plain_head(head)).sparsity()
        cut = pattern_of((part.features for part in bank.parts()), head).truncated
        for metric, value in (
            ("top 1 %", 100 * shares.top_1_percent),
            ("top 10 %", 100 * shares.top_10_percent),
            ("participation ratio", shares.participation_ratio),
            ("positive %", 100 * positive_share(bank.features, head.weight.detach())),
            ("truncated %", 100 * float(cut.mean())),
        ):
            values[label(row)]["contributions", metric][seed] = value
    return values


def positive_share(h: torch.Tensor, W: torch.Tensor) -> float:
    """Return the share of the contributions `W[k,d] h[d]` of all samples that are above 0.

    rho_norm asks for the quantile 1 - rho_norm / K of all of them: where few are positive, a large rho_norm puts the
    threshold at 0.
    """
    signs = [((h > 0).double().mean(0), W > 0), ((h < 0).double().mean(0), W < 0)]  # (D,) and (K, D)
    return float(sum((share * same).mean() for share, same in signs))


def tails(lab: Lab, rows: Sequence[Row]) -> Values:
    """Measure AUROC, and how far the right tail of OOD scores reaches into the ID scores: the share above their median.

    No normalisation of the scores changes that.
    """
    values = detection(lab, rows)
    for seed, row in lab.tracked(rows):
        evaluation = lab.evaluation(row, seed)
        score = evaluation.fitted("energy")
        middle = evaluation.scores(score, "test").median()
        for group in ("near", "far"):
            roles = [role for role in evaluation.benchmark.sets() if role.startswith(f"{group}/")]
            shares = [float((evaluation.scores(score, role) > middle).float().mean()) for role in roles]
            if shares:
                values[label(row)][group, "tail overlap"][seed] = 100 * sum(shares) / len(shares)
    return values


def norms(lab: Lab, rows: Sequence[Row]) -> Values:
    """Measure AUROC, and the length of each set's features: their mean norm over that of ID test inputs."""
    values = detection(lab, rows)
    for seed, row in lab.tracked(rows):
        evaluation = lab.evaluation(row, seed)
        roles = [role for role in evaluation.benchmark.sets() if role.startswith(("near/", "far/"))]
        id_norm, *ood_norms = (evaluation.bank(role).features.norm(dim=1).mean() for role in ("test", *roles))
        for role, norm in zip(roles, ood_norms, strict=True):
            values[label(row)][role.partition("/")[2], "norm ratio"][seed] = float(norm / id_norm)
    return values


def seconds(lab: Lab, rows: Sequence[Row]) -> Values:
    """Time an epoch of training and inference on the test set: seconds, and multiples of the first row's.

    They follow from the median step. Methods take turns step by step, so that whatever else the machine does meets
    all alike.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
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


MEASURES: Mapping[str, Callable[[Lab, Sequence[Row]], Values]] = {
    "detection": detection,
    "sparsity": sparsity,
    "tails": tails,
    "norms": norms,
    "time": seconds,
}
