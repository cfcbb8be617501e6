"""SPCP's hyperparameters: how much to truncate, how fast the threshold moves, and at which stages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from .quantile import RhoNorm

Stages = Literal["both", "train", "infer", "neither"]


@dataclass(frozen=True)
class Truncation:
    """How an SPCP head truncates contributions. By default it does not.

    Args:
        rho_norm: how much to truncate, 0 to K; about `rho_norm * D` contributions of a sample exceed the threshold. The
            paper's grid is 0.1 0.2 0.3 0.4 0.5 1 2 3 5. With 0 the head is a plain `nn.Linear`. "auto" needs no search:
            the threshold then follows `mean_support`, the mean of the positive contributions to the largest logit.
        beta: share of the old threshold kept at each step. By default it follows `total_steps`; 1 fixes the threshold
            at `initial_threshold`, which must then be given.
        total_steps: forward passes in training mode that the run will make (each micro-batch counts). By default
            `beta = 0.999 ** (39100 / total_steps)`, which is the paper's 0.999 at the paper's length: with 0.999 in a
            short run the initial threshold would never fade, and nothing would ever be truncated.
        initial_threshold: where the threshold starts, by default at 1000: high, as a warm-up.
        stages: when to truncate: "both" in training and at inference, "train", "infer" or "neither". The threshold is
            updated in training in each case.
        subset: estimate the threshold on this many random samples of a batch instead of all.
    """

    rho_norm: RhoNorm = 0.0
    beta: float | None = None
    total_steps: int | None = None
    initial_threshold: float | None = None
    stages: Stages = "both"
    subset: int | None = None

    def __post_init__(self) -> None:
        for name, default in (("rho_norm", "auto"), ("beta", None), ("initial_threshold", None)):
            value = getattr(self, name)
            if value is default or value == default:
                continue
            if not hasattr(value, "__float__"):
                raise TypeError(f"{name} is {value!r}; it must be a number{' or auto' if default else ''}.")
            object.__setattr__(self, name, float(value))  # numpy's and torch's scalars become plain numbers
        for name, count in (("total_steps", self.total_steps), ("subset", self.subset)):
            if not (count is None or isinstance(count, int)):
                raise TypeError(f"{name} is {count!r}; it must be a whole number.")
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}; it must be at least 1.")
        if self.beta is not None and not 0 <= self.beta <= 1:
            raise ValueError(f"beta is {self.beta}; it must lie between 0 and 1.")
        if self.initial_threshold is not None and math.isnan(self.initial_threshold):
            raise ValueError("initial_threshold is NaN; it must be a number.")
        if self.beta == 1 and self.initial_threshold is None:
            raise ValueError(
                "A fixed threshold (beta = 1) needs initial_threshold: the last one of an adaptive run, for example."
            )
        if self.stages not in get_args(Stages):
            raise ValueError(f"stages is {self.stages!r}; it must be 'both', 'train', 'infer' or 'neither'.")

    def check(self, num_classes: int) -> None:
        """Raise a `ValueError` if `rho_norm` is out of range for so many classes; all else is checked before."""
        if self.rho_norm != "auto" and not 0 <= self.rho_norm <= num_classes:
            raise ValueError(
                f"rho_norm is {self.rho_norm:g}; it must lie between 0 and {num_classes}, the number of classes "
                "(0.1 to 5 is usual), or be 'auto'."
            )

    def applies(self, *, training: bool) -> bool:
        """Return whether contributions are truncated in training (or else at inference)."""
        return self.rho_norm != 0 and self.stages in ("both", "train" if training else "infer")
