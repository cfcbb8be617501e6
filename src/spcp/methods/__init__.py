"""Training methods: one file each, an method with its paper, its defaults and the detector it is scored with."""

from collections.abc import Mapping
from typing import Any

from .base import Method as Method
from .cider import CIDER as CIDER
from .cross_entropy import CrossEntropy as CrossEntropy
from .logitnorm import LogitNorm as LogitNorm
from .mos import MOS as MOS
from .snn import SNN as SNN
from .t2fnorm import T2FNorm as T2FNorm
from .umap import UMAP as UMAP
from .vos import VOS as VOS

# By name, as runs are configured: the method, and the options that make it this method. None: the benchmark's own.
METHODS: Mapping[str, tuple[type[Method], Mapping[str, Any]]] = {
    "plain": (CrossEntropy, {}),
    "spcp": (CrossEntropy, {"rho_norm": None}),
    "fixed": (CrossEntropy, {"rho_norm": None, "beta": 1.0}),
    "l2": (CrossEntropy, {"penalty": 1e-3}),
    "logitnorm": (LogitNorm, {}),
    "logitnorm+spcp": (LogitNorm, {"rho_norm": None}),
    "t2fnorm": (T2FNorm, {}),
    "t2fnorm+spcp": (T2FNorm, {"rho_norm": None}),
    "cider": (CIDER, {}),
    "cider+spcp": (CIDER, {"rho_norm": None}),
    "snn": (SNN, {}),
    "vos": (VOS, {}),
    "vos+spcp": (VOS, {"rho_norm": None}),
    "mos": (MOS, {}),
    "umap": (UMAP, {}),
}
