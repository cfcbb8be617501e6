"""Training methods: one file each, a class with its paper, its defaults and the score it is used with.

SPCP goes with all of them, but for SNN and UMAP: `LogitNorm(truncation=Truncation(rho_norm=0.5))`.
"""

from collections.abc import Mapping
from typing import Any

from .base import Method as Method
from .base import Outputs as Outputs
from .cider import CIDER as CIDER
from .cross_entropy import CrossEntropy as CrossEntropy
from .logitnorm import LogitNorm as LogitNorm
from .mos import MOS as MOS
from .snn import SNN as SNN
from .t2fnorm import T2FNorm as T2FNorm
from .umap import UMAP as UMAP
from .vos import VOS as VOS

# By name, as runs are configured: the class, and the options that make it this method.
METHODS: Mapping[str, tuple[type[Method], Mapping[str, Any]]] = {
    "plain": (CrossEntropy, {}),
    "spcp": (CrossEntropy, {}),
    "fixed": (CrossEntropy, {}),
    "l2": (CrossEntropy, {"penalty": 1e-3}),
    "logitnorm": (LogitNorm, {}),
    "t2fnorm": (T2FNorm, {}),
    "cider": (CIDER, {}),
    "snn": (SNN, {}),
    "vos": (VOS, {}),
    "mos": (MOS, {}),
    "umap": (UMAP, {}),
}
TRUNCATING = ("spcp", "fixed")  # names of cross-entropy with truncation: they take the benchmark's rho_norm by default
