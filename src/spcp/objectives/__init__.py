"""Training methods: one file each, an objective with its paper, its defaults and the detector it is scored with."""

from .base import Objective as Objective
from .cider import CIDER as CIDER
from .cross_entropy import CrossEntropy as CrossEntropy
from .logitnorm import LogitNorm as LogitNorm
from .mos import MOS as MOS
from .snn import SNN as SNN
from .t2fnorm import T2FNorm as T2FNorm
from .umap import UMAP as UMAP
from .vos import VOS as VOS
