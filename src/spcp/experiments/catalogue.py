"""Every table and figure of the paper, and our additions, as data: rows, and the claims that they should bear out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contributions.head import PAPER_STEPS
from ..errors import InputError
from .budgets import BACKBONES, PENALTIES, THRESHOLDS, Budget
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
    rows: Sequence[Row] | Callable[[Lab, str], Sequence[Row]]  # that may depend on the budget and the benchmark
    benchmarks: tuple[str, ...]  # the paper's
    tables: tuple[str, ...] = ()  # that hold it in paper.csv
    claims: tuple[Claim, ...] = ()  # those about rows that are not there are left out
    measure: str = "detection"  # see `measures`
    figures: tuple[str, ...] = ()  # see `drawing`
    note: str = ""


# Rows

POSTHOC = {"MSP": "msp", "Energy": "energy", "VIM": "vim", "DICE": "dice", "ReAct": "react", "ASH": "ash"}
POSTHOC |= {"SCALE": "scale"}
TRAINED = {"MOS": "mos", "VOS": "vos", "LogitNorm": "logitnorm", "CIDER": "cider", "UMAP": "umap", "SNN": "snn"}
TRAINED |= {"T2FNorm": "t2fnorm"}
COMBINED = {"MSP": "msp", "Energy": "energy", "GradNorm": "gradnorm", "KNN": "knn", "ASH": "ash"}
PENALTY_NAMES = {value: f"+L2 ({f'{value:.5f}'.rstrip('0')})" for value in PENALTIES}

VANILLA, SPCP = Row("Vanilla"), Row("SPCP", "spcp")
LOGITNORM_SPCP = Row("LogitNorm+SPCP", "logitnorm", {"rho_norm": CHOSEN})
MAIN = (
    *(Row(name, score=score) for name, score in POSTHOC.items()),
    *(Row(name, method) for name, method in TRAINED.items()),
    SPCP,
    LOGITNORM_SPCP,
)
STAGES = (
    Row("truncate:none"),
    Row("truncate:train", "spcp", head="plain"),
    Row("truncate:infer", head="fitted"),
    Row("truncate:train+infer", "spcp"),
)
COMPATIBILITY = (
    *(
        Row(name + suffix, method, score=score)
        for name, score in COMBINED.items()
        for suffix, method in (("", "plain"), ("+SPCP", "spcp"))
    ),
    Row("LogitNorm", "logitnorm"),
    LOGITNORM_SPCP,
)
VIEWS = (
    Row("plain network: plain view"),
    Row("plain network: truncated view", head="auto"),  # as the score truncates it
    Row("plain network: two views", score="two-views"),
    Row("SPCP network: plain view", "spcp", head="plain"),
    Row("SPCP network: truncated view", "spcp"),
    Row("SPCP network: two views", "spcp", score="two-views"),
)


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


def _l2(lab: Lab, benchmark: str) -> list[Row]:
    penalties = [Row(PENALTY_NAMES[value], "l2", {"options": {"penalty": value}}) for value in lab.budget.penalties]
    return [VANILLA, *penalties, Row("+SPCP", "spcp")]


def _backbones(lab: Lab, benchmark: str) -> list[Row]:
    return [
        dataclasses.replace(row, backbone=name, settings=settings)
        for name, settings in lab.budget.backbones.items()
        for row in (VANILLA, SPCP)
    ]


def _costs(lab: Lab, benchmark: str) -> list[Row]:
    settings = {"rho_norm": 1.0} if lab.budget.tunes else {}  # any will do: it is not trained
    return [VANILLA, Row("+LogitNorm", "logitnorm"), Row("+SPCP", "spcp", settings)]


def _hyperparameters(lab: Lab, benchmark: str) -> list[Row]:
    return _rho(lab, benchmark) + _beta(lab, benchmark) + _lambda(lab, benchmark)


def label(row: Row) -> str:
    """Return the name of a row in tables."""
    return " ".join(part for part in (row.setting, row.backbone, row.name) if part)


# Claims


def _beats(text: str, better: str, *others: str, **options: Any) -> Claim:
    return Claim(text, tuple((better, other) for other in others), **options)


BOTH, NONE = "truncate:train+infer", "truncate:none"
MAIN_CLAIMS = (
    _beats("SPCP detects better than plain training (Energy)", "SPCP", "Energy"),
    _beats("SPCP detects better than every post-hoc method on the plain network", "SPCP", *POSTHOC),
    _beats("SPCP detects better than the other training methods", "SPCP", *TRAINED),
    _beats("SPCP on top of LogitNorm detects better than LogitNorm", "LogitNorm+SPCP", "LogitNorm"),
    _beats("SPCP costs at most one point of accuracy", "SPCP", "Energy", measures=(("id", "ACC"),), margin=1.0),
)
STAGE_CLAIMS = (
    _beats("Truncation in both stages is better than none", BOTH, NONE),
    _beats("Truncation in both stages is better than in training alone", BOTH, "truncate:train"),
    _beats("Truncation in both stages is better than at inference alone", BOTH, "truncate:infer"),
    _beats("Truncation in training alone is better than none", "truncate:train", NONE),
)
BETA_CLAIMS = (
    _beats("A threshold that is never updated (beta = 1) is worse", "beta=0.999", "beta=1"),
    _beats("A threshold that follows each batch (beta = 0) is worse", "beta=0.999", "beta=0"),
)
LAMBDA_CLAIM = _beats("A small initial threshold is worse than 1000", "lambda_0=1000", f"lambda_0={THRESHOLDS[0]:g}")
L2_CLAIM = _beats(
    "SPCP is better than an L2 penalty on the classifier, whatever its size",
    "+SPCP",
    "Vanilla",
    *PENALTY_NAMES.values(),
)
COMPATIBILITY_CLAIMS = tuple(
    _beats(f"{name} detects better with SPCP", f"{name}+SPCP", name) for name in (*COMBINED, "LogitNorm")
)
BACKBONE_CLAIMS = tuple(
    _beats(f"SPCP is better than plain training of {name}", f"{name} SPCP", f"{name} Vanilla") for name in BACKBONES
)
PATTERN_CLAIM = Claim(
    "With SPCP contributions are spread over more weights",
    tuple((f"{name} SPCP", f"{name} Vanilla") for name in BACKBONES),
    (("contributions", "top 1 %"), ("contributions", "participation ratio")),
)
OVERHEAD_CLAIM = _beats(
    "SPCP adds less than 10 % to a training step and to inference",
    "+SPCP",
    "Vanilla",
    measures=(("training", "ratio"), ("inference", "ratio")),
    margin=0.1,
)
AUTO_CLAIMS = (
    _beats("rho_norm = auto detects better than plain training", "SPCP auto", "Vanilla"),
    _beats("rho_norm = auto comes within a point of the grid's winner", "SPCP auto", "SPCP", margin=1.0),
)
VIEW_CLAIMS = (
    *(
        _beats(
            f"Two views of the {kind} network come within a point of each",
            *(f"{kind} network: {view}" for view in ("two views", "plain view", "truncated view")),
            margin=1.0,
        )
        for kind in ("plain", "SPCP")
    ),
    _beats(
        "Two views of the SPCP network are better than the paper's score",
        "SPCP network: two views",
        "SPCP network: truncated view",
    ),
)
MAIN_TABLES = {  # the appendix first: the main table's row of MOS, commented out, has FPR95 and AUROC swapped
    "cifar10": ("CIFAR-10", ("appendix-r1", "appendix-r2", "cifar")),
    "cifar100": ("CIFAR-100", ("appendix-r3", "appendix-r4", "cifar")),
    "imagenet200": ("ImageNet-200", ("appendix-r5", "appendix-r6", "imagenet")),
}
CIFAR10, CIFAR100, BOTH_SIZES = ("cifar10",), ("cifar100",), ("cifar10", "imagenet200")
CURVES = ("curves",)
OURS = "Not in the paper."
EXPERIMENTS: Mapping[str, Experiment] = {
    **{
        key: Experiment(f"Every method, as in the paper's table for {name}", MAIN, (key,), tables, MAIN_CLAIMS)
        for key, (name, tables) in MAIN_TABLES.items()
    },
    "ablation-stage": Experiment(
        "Truncating in training, at inference, or both", STAGES, CIFAR100, ("ablation-stage",), STAGE_CLAIMS
    ),
    "ablation-rho": Experiment("How much to truncate: rho_norm", _rho, CIFAR100, figures=CURVES),
    "ablation-beta": Experiment(
        "How fast the threshold follows: beta", _beta, CIFAR100, claims=BETA_CLAIMS, figures=CURVES
    ),
    "ablation-lambda0": Experiment(
        "Where the threshold starts: lambda_0", _lambda, CIFAR100, claims=(LAMBDA_CLAIM,), figures=CURVES
    ),
    "fixed-threshold": Experiment(
        "A threshold fixed at the value that SPCP's ends with",
        (Row("Fixed", "fixed"), SPCP),
        CIFAR10,
        ("adaptive",),
        (_beats("A threshold that adapts is better than a fixed one", "SPCP", "Fixed"),),
    ),
    "l2": Experiment("A penalty on the classifier's weights instead", _l2, CIFAR100, ("l2",), (L2_CLAIM,)),
    "backbones": Experiment("Other networks", _backbones, CIFAR100, ("backbone",), BACKBONE_CLAIMS),
    "compatibility": Experiment(
        "Together with other scores", COMPATIBILITY, CIFAR100, ("compatibility",), COMPATIBILITY_CLAIMS
    ),
    "itp": Experiment(
        "Against ITP, which prunes contributions at inference",
        (Row("ITP", score="itp"), SPCP),
        BOTH_SIZES,
        ("itp",),
        (_beats("SPCP is better than ITP", "SPCP", "ITP"),),
    ),
    "overhead": Experiment("What it costs", _costs, BOTH_SIZES, ("overhead",), (OVERHEAD_CLAIM,), measure="time"),
    "audio": Experiment(
        "Sounds",
        (VANILLA, SPCP),
        ("audio",),
        ("audio",),
        (_beats("SPCP is better than plain training on sounds", "SPCP", "Vanilla"),),
    ),
    "patterns": Experiment(
        "Which weights carry the predictions",
        _backbones,
        CIFAR100,
        claims=(PATTERN_CLAIM,),
        measure="sparsity",
        figures=("patterns",),
    ),
    "scores": Experiment("Scores of ID and OOD inputs", (VANILLA, SPCP), CIFAR10, figures=("scores",)),
    "hyperparameters": Experiment("All three hyperparameters", _hyperparameters, CIFAR100, figures=CURVES),
    "feature-norms": Experiment(
        "Which network misses what: features longer or shorter than those of ID inputs",
        VIEWS,
        CIFAR10,
        measure="norms",
        figures=("norms",),
        note=OURS,
    ),
    "rho-auto": Experiment(
        "rho_norm without a search",
        (VANILLA, SPCP, Row("SPCP auto", "spcp", {"rho_norm": "auto"})),
        CIFAR10,
        claims=AUTO_CLAIMS,
        note=OURS,
    ),
    "two-views": Experiment("Plain and truncated logits of one pass", VIEWS, CIFAR10, claims=VIEW_CLAIMS, note=OURS),
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
    benchmarks, listed = benchmarks_of(name, lab.budget), EXPERIMENTS[name].rows
    rows = [
        dataclasses.replace(row, benchmark=benchmark, setting=benchmark if len(benchmarks) > 1 else "")
        for benchmark in benchmarks
        for row in (listed(lab, benchmark) if callable(listed) else listed)
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
        for claim in EXPERIMENTS[name].claims:
            pairs = tuple((f"{setting} {a}".strip(), f"{setting} {b}".strip()) for a, b in claim.pairs)
            text = f"{setting}: {claim.text}" if setting else claim.text
            claims.append(dataclasses.replace(claim, text=text, pairs=pairs))
    return claims


def paper_backbone(row: Row) -> str:
    """Return the network's name under which the paper's tables file a row."""
    return row.backbone or "ResNet-18"
