"""The scores that stand on their own, by name; `consensus` is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError, did_you_mean
from .ash import ASH
from .base import Score
from .dice import DICE
from .energy import Energy
from .fdbd import FDBD
from .gen import GEN
from .gradnorm import GradNorm
from .itp import ITP
from .klm import KLM
from .knn import KNN
from .mahalanobis import Mahalanobis, RelativeMahalanobis, SphericalMahalanobis
from .maxlogit import MaxLogit
from .mos import MOS
from .msp import MSP
from .nci import NCI
from .nnguide import NNGuide
from .odin import ODIN
from .react import ReAct
from .relation import Relation
from .scale import SCALE
from .she import SHE
from .two_views import TwoViews
from .vim import ViM
from .vra import VRA, VRAP

# By name: the class, and the options that make it this score.
Table = Mapping[str, tuple[type[Score], Mapping[str, Any]]]

SINGLE: Table = {
    "msp": (MSP, {}),
    "maxlogit": (MaxLogit, {}),
    "energy": (Energy, {}),
    "odin": (ODIN, {}),
    "dice": (DICE, {}),
    "react": (ReAct, {}),
    "ash": (ASH, {}),
    "ash-s": (ASH, {"kind": "s"}),
    "ash-p": (ASH, {"kind": "p"}),
    "scale": (SCALE, {}),
    "gradnorm": (GradNorm, {}),
    "knn": (KNN, {}),
    "vim": (ViM, {}),
    "mds": (Mahalanobis, {}),
    "rmds": (RelativeMahalanobis, {}),
    "mdspp": (SphericalMahalanobis, {}),
    "itp": (ITP, {}),
    "klm": (KLM, {}),
    "gen": (GEN, {}),
    "she": (SHE, {}),
    "fdbd": (FDBD, {}),
    "nnguide": (NNGuide, {}),
    "vra": (VRA, {}),
    "vra-p": (VRAP, {}),
    "nci": (NCI, {}),
    "relation": (Relation, {}),
    "two-views": (TwoViews, {}),
    "mos": (MOS, {}),
}


def build(table: Table, name: str, options: Mapping[str, Any]) -> Score:
    """Build a score by its name in a table, with options in their ranges."""
    if name not in table:
        raise InputError(f"there is no score {name!r}{did_you_mean(name, table)}; choose one of {', '.join(table)}")
    kind, defaults = table[name]
    try:
        score = kind(**{**defaults, **options})
    except TypeError as error:
        raise InputError(f"{name}: {error}") from error
    score.check_options()
    return score
