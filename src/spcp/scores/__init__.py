"""Detectors: one file each, the score as a formula, and a thin module with its paper and its sweep list."""

from collections.abc import Mapping
from typing import Any

from .ash import ASH as ASH
from .base import Score as Score
from .base import plain_head as plain_head
from .dice import DICE as DICE
from .energy import Energy as Energy
from .fdbd import FDBD as FDBD
from .gen import GEN as GEN
from .gradnorm import GradNorm as GradNorm
from .itp import ITP as ITP
from .klm import KLM as KLM
from .knn import KNN as KNN
from .mahalanobis import Mahalanobis as Mahalanobis
from .mahalanobis import RelativeMahalanobis as RelativeMahalanobis
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
from .two_views import TwoViews as TwoViews
from .vim import ViM as ViM
from .vra import VRA as VRA

# By name: the score, and the options that make it this one.
SCORES: Mapping[str, tuple[type[Score], Mapping[str, Any]]] = {
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
    "itp": (ITP, {}),
    "klm": (KLM, {}),
    "gen": (GEN, {}),
    "she": (SHE, {}),
    "fdbd": (FDBD, {}),
    "nnguide": (NNGuide, {}),
    "vra": (VRA, {}),
    "nci": (NCI, {}),
    "relation": (Relation, {}),
    "two-views": (TwoViews, {}),
    "mos": (MOS, {}),
}
