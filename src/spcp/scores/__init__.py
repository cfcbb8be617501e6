"""Scores: one file each, with the formula, the paper, the ranges of the options and the values to search among."""

from collections.abc import Collection
from typing import Any

from ..errors import InputError
from .ash import ASH as ASH
from .base import Score as Score
from .consensus import COMBINATIONS as COMBINATIONS
from .consensus import MEMBERS as MEMBERS
from .consensus import Consensus as Consensus
from .dice import DICE as DICE
from .energy import Energy as Energy
from .fdbd import FDBD as FDBD
from .fitting import Fitting as Fitting
from .gen import GEN as GEN
from .gradnorm import GradNorm as GradNorm
from .itp import ITP as ITP
from .klm import KLM as KLM
from .knn import KNN as KNN
from .mahalanobis import Mahalanobis as Mahalanobis
from .mahalanobis import RelativeMahalanobis as RelativeMahalanobis
from .mahalanobis import SphericalMahalanobis as SphericalMahalanobis
from .maxlogit import MaxLogit as MaxLogit
from .mos import MOS as MOS
from .msp import MSP as MSP
from .nci import NCI as NCI
from .nnguide import NNGuide as NNGuide
from .odin import ODIN as ODIN
from .react import ReAct as ReAct
from .relation import Relation as Relation
from .scale import SCALE as SCALE
from .she import SHE as SHE
from .single import SINGLE, Table, build
from .two_views import TwoViews as TwoViews
from .vim import ViM as ViM
from .vra import VRA as VRA
from .vra import VRAP as VRAP

# By name: the class, and the options that make it this score.
SCORES: Table = {
    **SINGLE,
    "consensus": (Consensus, {}),
    **{f"consensus-{name}": (Consensus, {"members": MEMBERS[name]}) for name in MEMBERS if name != "default"},
}
DEFAULT = "consensus"  # what `Detector`, `spcp train` and `spcp calibrate` use unless told otherwise


def build_score(name: str, **options: Any) -> Score:
    """Build a score by its name, with options in their ranges.

    >>> build_score("knn", k=10).options
    {'k': 10}
    """
    if name in ("auto", "auto-proxies"):
        raise InputError(f"{name!r} is no score, but chooses one; call spcp.choice.auto_detector, or spcp calibrate")
    return build(SCORES, name, options)


def applicable(roles: Collection[str], readable: Collection[str] | None = None) -> list[str]:
    """Return the names of the scores of features that can be fitted on some sets ("train", "val").

    `readable` is what a training method leaves to be read (`Method.readable`). MOS is for networks of its own.
    """
    return [
        name
        for name, (kind, options) in SCORES.items()
        if name != "mos"
        and not kind.needs_inputs
        and all(role in roles or role in kind.does_without for role in kind.fitted_on)
        and (readable is None or kind.reads in readable)
        and _has_members(options.get("members"), roles)
    ]


def _has_members(members: Collection[str] | None, roles: Collection[str]) -> bool:
    """Tell whether all of a consensus's members, if they are given, can be fitted on some sets."""
    return members is None or all(set(SINGLE[name][0].fitted_on) <= set(roles) for name in members)


def name_of(score: Score) -> str:
    """Return the name of a score in `SCORES`, or of its class where it is not there."""
    return next((name for name, (kind, _) in SCORES.items() if type(score) is kind), type(score).__name__)
