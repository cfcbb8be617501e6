"""Every table and figure of the paper, and our additions, as data: rows, and the claims that they should bear out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import rho_norm_for
from ..contributions.head import PAPER_BETA, PAPER_STEPS
from ..errors import InputError
from .budgets import PENALTIES, THRESHOLDS, Budget
from .lab import CHOSEN, ON_NOISE, Lab, Row

GROUPS = tuple((group, metric) for group in ("near", "far") for metric in ("AUROC", "FPR95"))
NEAR, FAR, ACCURACY = GROUPS[:2], GROUPS[2:], (("id", "ACC"),)
EVERY_SET = (("every set", "AUROC"), ("every set", "FPR95"))  # stands for all near and far sets


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: these rows are better than those, in each of the measures."""

    text: str
    pairs: tuple[tuple[str, str], ...]  # the better row, and the other
    measures: tuple[tuple[str, str], ...] = GROUPS  # column and metric
    margin: float = 0.0  # above 0: not worse by more than that
    test: bool = True  # False: the paper's words ("competitive", "most") are no test, so comparisons are only counted
    chosen: bool = False  # about the rho_norm that validation data choose: not judged where only one was trained


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    title: str
    rows: Sequence[Row] | Callable[[Lab, str], Sequence[Row]]  # that may depend on the budget and the benchmark
    benchmarks: tuple[str, ...]  # the paper's
    tables: tuple[str, ...] = ()  # that hold it in paper.csv
    claims: Sequence[Claim] | Callable[[Budget, float], Sequence[Claim]] = ()  # may depend on the rho_norm chosen
    measure: str = "detection"  # see `measures`
    figures: tuple[str, ...] = ()  # see `drawing`
    note: str = ""


# Rows

POSTHOC = {"MSP": "msp", "Energy": "energy", "VIM": "vim", "DICE": "dice", "ReAct": "react", "ASH": "ash"}
POSTHOC |= {"SCALE": "scale"}
TRAINED = {"MOS": "mos", "VOS": "vos", "LogitNorm": "logitnorm", "CIDER": "cider", "UMAP": "umap", "SNN": "snn"}
TRAINED |= {"T2FNorm": "t2fnorm"}
UNPRINTED = ("VIM", "MOS", "VOS")  # commented out in the paper's tables, so that no claim of it is about them
COMBINED = {"MSP": "msp", "Energy": "energy", "GradNorm": "gradnorm", "KNN": "knn", "ASH": "ash"}
ALSO_COMBINED = {"ReAct": "react", "SCALE": "scale", "DICE": "dice"}  # not in the paper's table
BOTH_HEADS = ("GradNorm", "ASH", *ALSO_COMBINED)  # scores that run features through the head once more
SCORES = tuple(dict.fromkeys([*(POSTHOC | COMBINED | ALSO_COMBINED).values(), "itp", "two-views"]))  # all of a row
PLAIN_HEAD = " (plain head)"
PENALTY_NAMES = {value: f"+L2 ({f'{value:.5f}'.rstrip('0')})" for value in PENALTIES}

VANILLA, SPCP = Row("Vanilla"), Row("SPCP", "spcp")
LOGITNORM_SPCP = Row("LogitNorm+SPCP", "logitnorm", {"rho_norm": CHOSEN})
MAIN = (
    *(Row(name, score=score) for name, score in POSTHOC.items()),
    *(Row(name, method) for name, method in TRAINED.items()),
    SPCP,
)
STAGES = (
    Row("truncate:none"),
    Row("truncate:train", "spcp", head="plain"),
    Row("truncate:infer", head="fitted"),
    Row("truncate:train+infer", "spcp"),
)
COMPATIBILITY = (
    *(
        Row(name + suffix, method, score=score, head=head, paper=name + suffix.removesuffix(PLAIN_HEAD))
        for name, score in (COMBINED | ALSO_COMBINED).items()
        for suffix, method, head in (
            ("", "plain", "trained"),
            ("+SPCP", "spcp", "trained"),
            ("+SPCP" + PLAIN_HEAD, "spcp", "plain"),
        )
        if head == "trained" or name in BOTH_HEADS
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


def _main(lab: Lab, benchmark: str) -> list[Row]:
    """Every method; where rho_norm is chosen, the paper's value for CIFAR-100, too."""
    given = rho_norm_for("cifar100")
    paper = Row(f"SPCP rho_norm={given:g}", "spcp", {"rho_norm": given}, paper="SPCP")
    return [*MAIN, *([paper] if benchmark == "cifar100" and lab.budget.tunes else [])]


def _rho(lab: Lab, benchmark: str) -> list[Row]:
    values = [Row(f"rho_norm={value:g}", "spcp", {"rho_norm": value}) for value in lab.budget.grid]
    return [Row("rho_norm=0"), *values]


def _beta(lab: Lab, benchmark: str) -> list[Row]:
    # A factor per step counts for the same share of a shorter run.
    power = PAPER_STEPS / _steps(lab, benchmark) if lab.budget.tunes else 1.0
    changed = {value: {"beta": value**power} for value in lab.budget.betas if value < 1} | {
        PAPER_BETA: {}
    }  # the default
    rows = [Row(f"beta={value:g}", "spcp", changed[value]) for value in lab.budget.betas if value < 1]
    still = Row("beta=1", "spcp", {"beta": 1.0, "initial_threshold": 1000.0})  # the threshold stays where it starts
    return rows + ([still] if 1 in lab.budget.betas else [])


def _steps(lab: Lab, benchmark: str) -> int:
    plain = Row("", benchmark=benchmark)
    config = lab.config(plain, 0)
    return config.epochs * math.ceil(lab.images(plain) / config.batch_size)


def _lambda(lab: Lab, benchmark: str) -> list[Row]:
    changed = {value: {"initial_threshold": value} for value in lab.budget.thresholds} | {1000.0: {}}  # the default
    return [Row(f"lambda_0={value:g}", "spcp", changed[value]) for value in lab.budget.thresholds]


def _l2(lab: Lab, benchmark: str) -> list[Row]:
    penalties = [Row(PENALTY_NAMES[value], "l2", {"options": {"penalty": value}}) for value in lab.budget.penalties]
    return [VANILLA, *penalties, Row("+SPCP", "spcp")]


def _backbones(lab: Lab, benchmark: str) -> list[Row]:
    return [
        dataclasses.replace(row, backbone=name, paper_backbone=paper, settings=settings)
        for paper, (name, settings) in lab.budget.backbones.items()
        for row in (VANILLA, SPCP)
    ]


def _plain_backbones(lab: Lab, benchmark: str) -> list[Row]:
    return [row for row in _backbones(lab, benchmark) if row.method == "plain"]


def _lengths(lab: Lab, benchmark: str) -> list[Row]:
    methods: list[tuple[str, str, dict[str, Any]]] = [("Vanilla", "plain", {})]
    methods += [(f"SPCP rho_norm={value:g}", "spcp", {"rho_norm": value}) for value in (0.5, 3.0)]
    usual = lab.config(Row("", benchmark=benchmark), 0)

    def changed(epochs: int) -> dict[str, int]:  # the warm-up keeps its share
        return (
            {} if epochs == usual.epochs else {"epochs": epochs, "warmup": round(usual.warmup * epochs / usual.epochs)}
        )

    return [
        Row(f"{name} for {epochs} epochs", method, settings | changed(epochs))
        for epochs in lab.budget.lengths
        for name, method, settings in methods
    ]


def _variants(lab: Lab, benchmark: str) -> list[Row]:
    """Plain training and every amount of truncation, for each network that a budget has for a benchmark."""
    methods: list[tuple[str, str, dict[str, Any]]] = [("plain", "plain", {}), ("auto", "spcp", {"rho_norm": "auto"})]
    methods += [(f"rho_norm={value:g}", "spcp", {"rho_norm": value}) for value in lab.budget.grid]
    return [
        Row(name, method, {**settings, **truncation}, backbone=network)
        for network, settings in lab.budget.variants[benchmark].items()
        for name, method, truncation in methods
    ]


def _augmentation(lab: Lab, benchmark: str) -> list[Row]:
    methods: list[tuple[str, str, dict[str, Any]]] = [("Vanilla", "plain", {}), ("SPCP", "spcp", {"rho_norm": CHOSEN})]
    methods += [("SPCP rho_norm=3", "spcp", {"rho_norm": 3.0})]
    kinds: list[tuple[str, dict[str, str]]] = [("", {}), (" not augmented", {"augment": "none"})]
    kinds = [(" not augmented", {})] if benchmark == "digits" else kinds  # digits never are
    return [
        Row(name + suffix, method, settings | changed)
        for suffix, changed in kinds
        for name, method, settings in methods
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


def _printed(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in UNPRINTED]


BOTH, NONE = "truncate:train+infer", "truncate:none"
TRAIN, INFER = "truncate:train", "truncate:infer"
# "preserves": at most one point of accuracy, which is our bound
POINT: Mapping[str, Any] = {"measures": ACCURACY, "margin": 1.0}
MAIN_CLAIMS = (
    _beats("SPCP detects better than plain training (Energy)", "SPCP", "Energy"),
    _beats(
        "SPCP detects better on nearly every set than plain training", "SPCP", "Energy", measures=EVERY_SET, test=False
    ),
    _beats("SPCP preserves the accuracy, within a point", "SPCP", "Energy", **POINT),
    _beats("SPCP detects better than the post-hoc methods on the plain network", "SPCP", *_printed(POSTHOC)),
    _beats("SPCP is competitive with the other training methods", "SPCP", *_printed(TRAINED), test=False),
)
LARGE_CLAIMS = (*MAIN_CLAIMS, _beats("LogitNorm detects better with SPCP", "LogitNorm+SPCP", "LogitNorm"))
STAGE_CLAIMS = (
    _beats("Truncation in training alone is better than at inference alone", TRAIN, INFER),
    _beats("Truncation at inference alone helps on far sets", INFER, NONE, measures=FAR),
    _beats("Truncation at inference alone hurts on near sets", NONE, INFER, measures=NEAR),
    _beats("Truncation at inference alone costs accuracy", NONE, INFER, measures=ACCURACY),
    _beats("Truncation in both stages is better than in none, in one, or in the other", BOTH, NONE, TRAIN, INFER),
)


def _rho_claims(budget: Budget, rho_norm: float) -> list[Claim]:
    best, most, paper = (f"rho_norm={value:g}" for value in (rho_norm, max(budget.grid), rho_norm_for("cifar10")))
    claims = [
        _beats("A suitable rho_norm (chosen on validation data) is better than none", best, "rho_norm=0", chosen=True),
        _beats("A suitable rho_norm preserves the accuracy, within a point", best, "rho_norm=0", **POINT, chosen=True),
    ]
    if budget.tunes:  # data of ten classes; otherwise CIFAR-100, for which the paper has another value
        claims.append(_beats(f"The paper's {paper}, for CIFAR-10, is better than none", paper, "rho_norm=0"))
    if best != most:
        text = "Too large a rho_norm (the largest of the grid) is worse than a suitable one"
        claims.append(_beats(text, best, most, chosen=True))
    return claims


SMALLER_BETAS = ("beta=0", "beta=0.9", "beta=0.99")
BETA_CLAIMS = (
    _beats("A threshold that is never updated (beta = 1) is worse", "beta=0.999", "beta=1"),
    _beats("A smaller beta may be worse, as its threshold is unstable", "beta=0.999", *SMALLER_BETAS, test=False),
)
LAMBDA_CLAIM = _beats("A small initial threshold is worse than 1000", "lambda_0=1000", f"lambda_0={THRESHOLDS[0]:g}")
FIXED_CLAIM = _beats("A threshold that adapts is better than a fixed one", "SPCP", "Fixed")
NOISE_CLAIM = _beats(
    "Gaussian noise can stand in for OOD validation data, within a point",
    "rho_norm chosen on noise",
    "rho_norm chosen on OOD data",
    margin=1.0,
    chosen=True,
)
L2_CLAIM = _beats(
    "SPCP is better than an L2 penalty on the classifier, whatever its size", "+SPCP", *PENALTY_NAMES.values()
)
COMPATIBILITY_CLAIMS = (
    *(
        _beats(
            f"{name} detects better with SPCP" + (", scored with the truncating head" if name in BOTH_HEADS else ""),
            f"{name}+SPCP",
            name,
        )
        for name in (*COMBINED, "LogitNorm")
    ),
    *(
        _beats(f"{name} detects better with SPCP, scored with the plain head", f"{name}+SPCP{PLAIN_HEAD}", name)
        for name in BOTH_HEADS
        if name in COMBINED
    ),
    Claim(
        "Most post-hoc methods detect better with SPCP",
        tuple((f"{name}+SPCP", name) for name in (*COMBINED, *ALSO_COMBINED)),
        test=False,
    ),
)


def _backbone_claims(budget: Budget, rho_norm: float) -> list[Claim]:
    pairs = tuple((f"{name} SPCP", f"{name} Vanilla") for name, _ in budget.backbones.values())
    return [
        Claim("SPCP detects better than plain training, whatever the network", pairs),
        Claim("SPCP preserves the accuracy of every network, within a point", pairs, ACCURACY, 1.0),
    ]


def _pattern_claims(budget: Budget, rho_norm: float) -> list[Claim]:
    pairs = tuple((f"{name} SPCP", f"{name} Vanilla") for name, _ in budget.backbones.values())
    measures = (("contributions", "top 1 %"), ("contributions", "participation ratio"))
    return [Claim("With SPCP predictions rest on more weights", pairs, measures)]


OVERHEAD_CLAIM = _beats(
    "SPCP adds little to a training step and to inference, at most 10 %",
    "+SPCP",
    "Vanilla",
    measures=(("training", "ratio"), ("inference", "ratio")),
    margin=0.1,
)
TAIL_CLAIM = _beats(
    "With SPCP the right tails of the scores of OOD and ID inputs overlap less",
    "SPCP",
    "Vanilla",
    measures=(("near", "tail overlap"), ("far", "tail overlap")),
)
AUTO_CLAIMS = (
    _beats("rho_norm = auto detects better than plain training", "SPCP auto", "Vanilla"),
    _beats("rho_norm = auto comes within a point of the grid's winner", "SPCP auto", "SPCP", margin=1.0, chosen=True),
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
VARIANTS = ("variants",)  # stands for the benchmarks of a budget's variants
CURVES = ("curves",)
OURS = "Not in the paper."
EACH_ROW = " Each row says what was trained on which data; what is said of all is about the first."
HEADS = (
    "Scores that run features through the head once more are given with both heads. The truncating one is the default, "
    "because the network was trained with it; the paper does not say which it took, and its released evaluator takes "
    "the plain one. ReAct, SCALE and DICE on SPCP networks are not in the paper's table."
)
EXPERIMENTS: Mapping[str, Experiment] = {
    **{
        key: Experiment(
            f"Every method, as in the paper's tables for {name}",
            (*MAIN, LOGITNORM_SPCP) if key == "imagenet200" else _main,
            (key,),
            tables,
            LARGE_CLAIMS if key == "imagenet200" else MAIN_CLAIMS,
        )
        for key, (name, tables) in MAIN_TABLES.items()
    },
    "ablation-stage": Experiment(
        "Truncating in training, at inference, or both", STAGES, CIFAR100, ("ablation-stage",), STAGE_CLAIMS
    ),
    "ablation-rho": Experiment("How much to truncate: rho_norm", _rho, CIFAR100, claims=_rho_claims, figures=CURVES),
    "ablation-beta": Experiment(
        "How fast the threshold follows: beta",
        _beta,
        CIFAR100,
        claims=BETA_CLAIMS,
        figures=CURVES,
        note="In a run that is n times shorter, beta is taken to the power of n: in short ones 0 and 0.9 are alike.",
    ),
    "ablation-lambda0": Experiment(
        "Where the threshold starts: lambda_0", _lambda, CIFAR100, claims=(LAMBDA_CLAIM,), figures=CURVES
    ),
    "fixed-threshold": Experiment(
        "A threshold fixed at the value that SPCP's ends with",
        (Row("Fixed", "fixed"), SPCP),
        CIFAR10,
        ("adaptive",),
        (FIXED_CLAIM,),
    ),
    "noise-validation": Experiment(
        "Gaussian noise instead of OOD validation data",
        (
            VANILLA,
            Row("rho_norm chosen on OOD data", "spcp", {"rho_norm": CHOSEN}),
            Row("rho_norm chosen on noise", "spcp", {"rho_norm": ON_NOISE}),
        ),
        CIFAR10,
        claims=(NOISE_CLAIM,),
    ),
    "l2": Experiment("A penalty on the classifier's weights instead", _l2, CIFAR100, ("l2",), (L2_CLAIM,)),
    "backbones": Experiment("Other networks", _backbones, CIFAR100, ("backbone",), _backbone_claims),
    "compatibility": Experiment(
        "Together with other scores", COMPATIBILITY, CIFAR100, ("compatibility",), COMPATIBILITY_CLAIMS, note=HEADS
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
        (_beats("SPCP detects better than plain training on sounds", "SPCP", "Vanilla"),),
    ),
    "example": Experiment(
        "Contributions to one class, of ID and of OOD inputs (figure 1)",
        (VANILLA, SPCP),
        CIFAR10,
        measure="sparsity",
        figures=("example",),
    ),
    "patterns": Experiment(
        "Which weights carry the predictions (figure 2), without truncation",
        _backbones,
        CIFAR100,
        claims=_pattern_claims,
        measure="sparsity",
        figures=("patterns",),
    ),
    "sparse-patterns": Experiment(
        "Patterns of plain networks (appendix A)",
        _plain_backbones,
        ("cifar10", "cifar100", "imagenet200"),
        measure="sparsity",
        figures=("patterns",),
    ),
    "scores": Experiment(
        "Scores of ID and OOD inputs (figure 3)",
        (VANILLA, SPCP),
        CIFAR10,
        claims=(TAIL_CLAIM,),
        note="Overlap of tails: the share of the OOD scores that exceed the median of the ID scores.",
        measure="tails",
        figures=("scores",),
    ),
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
    "scales": Experiment(
        "How to say how much to truncate: which scale means the same for other networks and data",
        _variants,
        VARIANTS,
        measure="scales",
        figures=("scales",),
        note=OURS + EACH_ROW,
    ),
    "prediction": Experiment(
        "Whether SPCP will help, told from the plain network",
        _variants,
        VARIANTS,
        measure="scales",
        figures=("prediction",),
        note=OURS + EACH_ROW,
    ),
    "training-length": Experiment(
        "How long to train", _lengths, CIFAR10, measure="learning", figures=("lengths",), note=OURS
    ),
    "augmentation": Experiment(
        "Overconfident on purpose: not augmented", _augmentation, CIFAR10, measure="learning", note=OURS
    ),
}


def benchmarks_of(name: str, budget: Budget) -> tuple[str, ...]:
    """List the benchmarks of an experiment: the paper's, or what stands in for them."""
    benchmarks = EXPERIMENTS[name].benchmarks
    if benchmarks == ("audio",):
        return (budget.audio,)
    if benchmarks == VARIANTS:
        return tuple(budget.variants)
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


def claims_of(name: str, budget: Budget, rho_norm: float, settings: Sequence[str]) -> list[Claim]:
    """List the claims of an experiment, for each setting that its rows are in; none where nothing is learnt."""
    listed = EXPERIMENTS[name].claims if budget.verdicts else ()
    claims = []
    for setting in settings:
        for claim in listed(budget, rho_norm) if callable(listed) else listed:
            pairs = tuple((f"{setting} {a}".strip(), f"{setting} {b}".strip()) for a, b in claim.pairs)
            text = f"{setting}: {claim.text}" if setting else claim.text
            claims.append(dataclasses.replace(claim, text=text, pairs=pairs))
    return claims
