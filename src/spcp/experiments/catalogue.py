"""Every table and figure of the paper, and our additions, as data: rows, and the claims that they should bear out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..contributions.head import PAPER_STEPS
from ..errors import InputError
from .budgets import Budget
from .lab import CHOSEN, Lab, Row

GROUPS = (("near", "AUROC"), ("far", "AUROC"))


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: these rows are better than those, in each of the measures."""

    text: str
    pairs: tuple[tuple[str, str], ...]  # the better row, and the other
    measures: tuple[tuple[str, str], ...] = GROUPS  # column and metric
    margin: float = 0.0  # above 0: not worse by more than that


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    title: str
    rows: Callable[[Lab, str], list[Row]]  # for a benchmark
    benchmarks: tuple[str, ...]  # the paper's
    tables: tuple[str, ...] = ()  # that hold it in paper.csv
    claims: Callable[[Sequence[Row]], list[Claim]] = field(default=lambda rows: [])
    measure: str = "detection"  # see `measures`
    figures: tuple[str, ...] = ()  # see `drawing`
    note: str = ""


# Rows

POSTHOC = {"MSP": "msp", "Energy": "energy", "VIM": "vim", "DICE": "dice", "ReAct": "react", "ASH": "ash"}
POSTHOC |= {"SCALE": "scale"}
TRAINED = {"MOS": "mos", "VOS": "vos", "LogitNorm": "logitnorm", "CIDER": "cider", "UMAP": "umap", "SNN": "snn"}
TRAINED |= {"T2FNorm": "t2fnorm"}
COMBINED = {"MSP": "msp", "Energy": "energy", "GradNorm": "gradnorm", "KNN": "knn", "ASH": "ash"}
SPCP = Row("SPCP", "spcp")
VANILLA = Row("Vanilla")
LOGITNORM = Row("LogitNorm", "logitnorm"), Row("LogitNorm+SPCP", "logitnorm", {"rho_norm": CHOSEN})


def _main(lab: Lab, benchmark: str) -> list[Row]:
    posthoc = [Row(name, score=score) for name, score in POSTHOC.items()]
    return [*posthoc, *(Row(name, method) for name, method in TRAINED.items()), SPCP, LOGITNORM[1]]


def _stage(lab: Lab, benchmark: str) -> list[Row]:
    return [
        Row("truncate:none"),
        Row("truncate:train", "spcp", head="plain"),
        Row("truncate:infer", head="fitted"),
        Row("truncate:train+infer", "spcp"),
    ]


def _rho(lab: Lab, benchmark: str) -> list[Row]:
    values = [Row(f"rho_norm={value:g}", "spcp", {"rho_norm": value}) for value in lab.budget.grid]
    return [Row("rho_norm=0"), *values]


def _beta(lab: Lab, benchmark: str) -> list[Row]:
    # A factor per step counts for the same share of a shorter run.
    power = PAPER_STEPS / _steps(lab, benchmark) if lab.budget.tunes else 1.0
    rows = [Row(f"beta={value:g}", "spcp", {"beta": value**power}) for value in lab.budget.betas if value < 1]
    still = Row("beta=1", "spcp", {"beta": 1.0, "initial_threshold": 1000.0})  # the threshold stays where it starts
    return rows + ([still] if 1 in lab.budget.betas else [])


def _steps(lab: Lab, benchmark: str) -> int:
    config = lab.config(Row("", benchmark=benchmark), 0)
    train = lab.benchmark(benchmark).fewer(config.images).train
    return config.epochs * math.ceil(len(train or ()) / config.batch_size)


def _lambda(lab: Lab, benchmark: str) -> list[Row]:
    return [Row(f"lambda_0={value:g}", "spcp", {"initial_threshold": value}) for value in lab.budget.thresholds]


def _fixed(lab: Lab, benchmark: str) -> list[Row]:
    return [Row("Fixed", "fixed"), SPCP]  # the lab fixes the threshold at what SPCP's came to


def _l2(lab: Lab, benchmark: str) -> list[Row]:
    names = {value: f"{value:.5f}".rstrip("0") for value in lab.budget.penalties}
    penalties = [Row(f"+L2 ({name})", "l2", {"options": {"penalty": value}}) for value, name in names.items()]
    return [VANILLA, *penalties, Row("+SPCP", "spcp")]


def _backbones(lab: Lab, benchmark: str) -> list[Row]:
    return [
        dataclasses.replace(row, backbone=name, settings=settings)
        for name, settings in lab.budget.backbones.items()
        for row in (VANILLA, SPCP)
    ]


def _compatibility(lab: Lab, benchmark: str) -> list[Row]:
    rows = []
    for name, score in COMBINED.items():
        rows += [Row(name, score=score), Row(f"{name}+SPCP", "spcp", score=score)]
    return [*rows, *LOGITNORM]


def _itp(lab: Lab, benchmark: str) -> list[Row]:
    return [Row("ITP", score="itp"), SPCP]


def _pair(lab: Lab, benchmark: str) -> list[Row]:
    return [VANILLA, SPCP]


def _costs(lab: Lab, benchmark: str) -> list[Row]:
    settings = {"rho_norm": 1.0} if lab.budget.tunes else {}  # any will do: it is not trained
    return [VANILLA, Row("+LogitNorm", "logitnorm"), Row("+SPCP", "spcp", settings)]


def _hyperparameters(lab: Lab, benchmark: str) -> list[Row]:
    return _rho(lab, benchmark) + _beta(lab, benchmark) + _lambda(lab, benchmark)


def _auto(lab: Lab, benchmark: str) -> list[Row]:
    return [VANILLA, SPCP, Row("SPCP auto", "spcp", {"rho_norm": "auto"})]


def _views(lab: Lab, benchmark: str) -> list[Row]:
    return [
        Row("plain network: plain view"),
        Row("plain network: truncated view", head="auto"),  # as the score truncates it
        Row("plain network: two views", score="two-views"),
        Row("SPCP network: plain view", "spcp", head="plain"),
        Row("SPCP network: truncated view", "spcp"),
        Row("SPCP network: two views", "spcp", score="two-views"),
    ]


# Claims


def _beats(text: str, better: str, *others: str, **options: Any) -> Claim:
    return Claim(text, tuple((better, other) for other in others), **options)


ACCURACY = (("id", "ACC"),)


def _main_claims(rows: Sequence[Row]) -> list[Claim]:
    return [
        _beats("SPCP detects better than plain training (Energy)", "SPCP", "Energy"),
        _beats("SPCP detects better than every post-hoc method on the plain network", "SPCP", *POSTHOC),
        _beats("SPCP detects better than the other training methods", "SPCP", *TRAINED),
        _beats("SPCP on top of LogitNorm detects better than LogitNorm", "LogitNorm+SPCP", "LogitNorm"),
        _beats("SPCP costs at most one point of accuracy", "SPCP", "Energy", measures=ACCURACY, margin=1.0),
    ]


def _stage_claims(rows: Sequence[Row]) -> list[Claim]:
    both, none, train, infer = ("truncate:train+infer", "truncate:none", "truncate:train", "truncate:infer")
    return [
        _beats("Truncation in both stages is better than none", both, none),
        _beats("Truncation in both stages is better than in training alone", both, train),
        _beats("Truncation in both stages is better than at inference alone", both, infer),
        _beats("Truncation in training alone is better than none", train, none),
    ]


def _beta_claims(rows: Sequence[Row]) -> list[Claim]:
    names = [row.name for row in rows]
    claims = []
    if "beta=1" in names:
        claims.append(_beats("A threshold that is never updated (beta = 1) is worse", "beta=0.999", "beta=1"))
    if "beta=0" in names:
        claims.append(_beats("A threshold that follows each batch (beta = 0) is worse", "beta=0.999", "beta=0"))
    return claims


def _lambda_claims(rows: Sequence[Row]) -> list[Claim]:
    smallest = min(rows, key=lambda row: row.settings["initial_threshold"]).name
    return [_beats("A small initial threshold is worse than 1000", "lambda_0=1000", smallest)]


def _l2_claims(rows: Sequence[Row]) -> list[Claim]:
    others = [row.name for row in rows if "SPCP" not in row.name]
    return [_beats("SPCP is better than an L2 penalty on the classifier, whatever its size", "+SPCP", *others)]


def _backbone_claims(rows: Sequence[Row]) -> list[Claim]:
    names = dict.fromkeys(row.backbone for row in rows)
    return [
        _beats(f"SPCP is better than plain training of {name}", f"{name} SPCP", f"{name} Vanilla") for name in names
    ]


def _compatible_claims(rows: Sequence[Row]) -> list[Claim]:
    names = [row.name for row in rows if not row.name.endswith("+SPCP")]
    return [_beats(f"{name} detects better with SPCP", f"{name}+SPCP", name) for name in names]


def _pattern_claims(rows: Sequence[Row]) -> list[Claim]:
    names = dict.fromkeys(row.backbone for row in rows)
    measures = (("contributions", "top 1 %"), ("contributions", "participation ratio"))
    pairs = tuple((f"{name} SPCP".strip(), f"{name} Vanilla".strip()) for name in names)
    return [Claim("With SPCP contributions are spread over more weights", pairs, measures)]


def _auto_claims(rows: Sequence[Row]) -> list[Claim]:
    return [
        _beats("rho_norm = auto detects better than plain training", "SPCP auto", "Vanilla"),
        _beats("rho_norm = auto comes within a point of the grid's winner", "SPCP auto", "SPCP", margin=1.0),
    ]


def _view_claims(rows: Sequence[Row]) -> list[Claim]:
    claims = []
    for kind in ("plain", "SPCP"):
        two = f"{kind} network: two views"
        claims += [
            _beats(f"Two views of the {kind} network come within a point of each", two, *(
                f"{kind} network: {view} view" for view in ("plain", "truncated")), margin=1.0),
        ]  # fmt: skip
    claims.append(
        _beats("Two views of the SPCP network are better than the paper's score", two, "SPCP network: truncated view")
    )
    return claims


def _simple(better: str, other: str, text: str) -> Callable[[Sequence[Row]], list[Claim]]:
    return lambda rows: [_beats(text, better, other)]


def label(row: Row) -> str:
    """Return the name of a row in tables."""
    return " ".join(part for part in (row.setting, row.backbone, row.name) if part)


CIFAR100 = ("cifar100",)
EXPERIMENTS: Mapping[str, Experiment] = {
    "cifar10": Experiment(
        "Every method, as in the paper's table for CIFAR-10",
        _main,
        ("cifar10",),
        ("cifar", "appendix-r1", "appendix-r2"),
        _main_claims,
    ),
    "cifar100": Experiment(
        "Every method, as in the paper's table for CIFAR-100",
        _main,
        CIFAR100,
        ("cifar", "appendix-r3", "appendix-r4"),
        _main_claims,
    ),
    "imagenet200": Experiment(
        "Every method, as in the paper's table for ImageNet-200",
        _main,
        ("imagenet200",),
        ("imagenet", "appendix-r5", "appendix-r6"),
        _main_claims,
    ),
    "ablation-stage": Experiment(
        "Truncating in training, at inference, or both", _stage, CIFAR100, ("ablation-stage",), _stage_claims
    ),
    "ablation-rho": Experiment("How much to truncate: rho_norm", _rho, CIFAR100, figures=("curves",)),
    "ablation-beta": Experiment(
        "How fast the threshold follows: beta", _beta, CIFAR100, claims=_beta_claims, figures=("curves",)
    ),
    "ablation-lambda0": Experiment(
        "Where the threshold starts: lambda_0", _lambda, CIFAR100, claims=_lambda_claims, figures=("curves",)
    ),
    "fixed-threshold": Experiment(
        "A threshold fixed at the value that SPCP's ends with",
        _fixed,
        ("cifar10",),
        ("adaptive",),
        _simple("SPCP", "Fixed", "A threshold that adapts is better than a fixed one"),
    ),
    "l2": Experiment("A penalty on the classifier's weights instead", _l2, CIFAR100, ("l2",), _l2_claims),
    "backbones": Experiment("Other networks", _backbones, CIFAR100, ("backbone",), _backbone_claims),
    "compatibility": Experiment(
        "Together with other scores", _compatibility, CIFAR100, ("compatibility",), _compatible_claims
    ),
    "itp": Experiment(
        "Against ITP, which prunes contributions at inference",
        _itp,
        ("cifar10", "imagenet200"),
        ("itp",),
        _simple("SPCP", "ITP", "SPCP is better than ITP"),
    ),
    "overhead": Experiment(
        "What it costs",
        _costs,
        ("cifar10", "imagenet200"),
        ("overhead",),
        lambda rows: [
            _beats(
                "SPCP adds less than 10 % to a training step and to inference",
                "+SPCP",
                "Vanilla",
                measures=(("training", "ratio"), ("inference", "ratio")),
                margin=0.1,
            )
        ],
        measure="time",
    ),
    "audio": Experiment(
        "Sounds",
        _pair,
        ("audio",),
        ("audio",),
        _simple("SPCP", "Vanilla", "SPCP is better than plain training on sounds"),
    ),
    "patterns": Experiment(
        "Which weights carry the predictions",
        _backbones,
        CIFAR100,
        claims=_pattern_claims,
        measure="sparsity",
        figures=("patterns",),
    ),
    "scores": Experiment("Scores of ID and OOD inputs", _pair, ("cifar10",), figures=("scores",)),
    "hyperparameters": Experiment("All three hyperparameters", _hyperparameters, CIFAR100, figures=("curves",)),
    "feature-norms": Experiment(
        "Which network misses what: features longer or shorter than those of ID inputs",
        _views,
        ("cifar10",),
        measure="norms",
        figures=("norms",),
        note="Not in the paper.",
    ),
    "rho-auto": Experiment(
        "rho_norm without a search", _auto, ("cifar10",), claims=_auto_claims, note="Not in the paper."
    ),
    "two-views": Experiment(
        "Plain and truncated logits of one pass", _views, ("cifar10",), claims=_view_claims, note="Not in the paper."
    ),
}


def benchmarks_of(name: str, budget: Budget) -> tuple[str, ...]:
    """List the benchmarks of an experiment: the paper's, or what stands in for them."""
    benchmarks = EXPERIMENTS[name].benchmarks
    if benchmarks == ("audio",):
        return (budget.audio,)
    if budget.stand_in is not None:
        return (budget.stand_in,)
    if not budget.tunes or name in benchmarks:  # the paper's setting; or the table of one benchmark
        return benchmarks
    return ("cifar10",)


def rows_of(name: str, lab: Lab, only: Sequence[str] | None = None) -> list[Row]:
    """List the rows of an experiment, each with the benchmark it runs on: all, or those that are named."""
    benchmarks = benchmarks_of(name, lab.budget)
    rows = [
        dataclasses.replace(row, benchmark=benchmark, setting=benchmark if len(benchmarks) > 1 else "")
        for benchmark in benchmarks
        for row in EXPERIMENTS[name].rows(lab, benchmark)
    ]
    if only is None:
        return rows
    names = dict.fromkeys(part for row in rows for part in (label(row), row.backbone) if part)
    missing = next((part for part in only if part not in names), None)
    if missing is not None or not only:
        raise InputError(f"{name}: has no row {missing!r}; there are {', '.join(names)}")
    return [row for row in rows if label(row) in only or row.backbone in only]


def claims_of(name: str, rows: Sequence[Row]) -> list[Claim]:
    """List the claims of an experiment, for each setting that its rows are in."""
    claims = []
    for setting in dict.fromkeys(row.setting for row in rows):
        for claim in EXPERIMENTS[name].claims([row for row in rows if row.setting == setting]):
            pairs = tuple((f"{setting} {a}".strip(), f"{setting} {b}".strip()) for a, b in claim.pairs)
            text = f"{setting}: {claim.text}" if setting else claim.text
            claims.append(dataclasses.replace(claim, text=text, pairs=pairs))
    return claims


def paper_backbone(row: Row) -> str:
    """Return the network's name under which the paper's tables file a row."""
    return row.backbone or "ResNet-18"
