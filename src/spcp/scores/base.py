"""What all scores share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from ..contributions import plain_head as plain_head
from ..errors import InputError
from ..features import SHARD, Features


class Score(nn.Module):
    """How well samples fit what a network knows: larger is more known.

    A subclass computes `score` from features, logits and the network's head; `fit` sets the buffers named in `state`.
    The constructor only stores its arguments.
    """

    paper: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    cost: ClassVar[str] = ""  # of a batch of B, in words: D features, K classes, N training samples
    sweep: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # values to search among, OpenOOD's
    fitted_on: ClassVar[Literal["train", "val"] | None] = None
    state: ClassVar[tuple[str, ...]] = ()
    rows: ClassVar[int] = 1024  # that are scored together: what is in between stays in the cache
    reads: ClassVar[Literal["outputs", "head", "weights"]] = "outputs"  # features and logits; the head; what is in it
    needs_inputs: ClassVar[bool] = False  # whether features and logits are not enough

    def __init__(self) -> None:
        super().__init__()
        for name in self.state:
            self.register_buffer(name, None)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def fit(self, data: Features, head: nn.Linear) -> Self:
        """Learn from the features of known samples: of the training set, or of the validation set, see `fitted_on`."""
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Scores (B,) of features (B, D) and their logits (B, K)."""
        raise NotImplementedError

    def forward(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """As `score`, after a look at what it needs."""
        missing = [name for name in self.state if getattr(self, name) is None]
        if missing:
            raise InputError(f"{type(self).__name__} is not fitted; call fit with features of known samples first")
        return self.score(h, z, head)

    @torch.no_grad()
    def scores(self, data: Features, head: nn.Linear) -> Tensor:
        """Of a whole set, (N,), part by part."""
        device, found = head.weight.device, []
        for h, z, *_ in data.parts():
            for own in zip(h.split(self.rows), z.split(self.rows), strict=True):
                found.append(self(own[0].to(device), own[1].to(device), head).cpu())
        return torch.cat(found)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in self.state:  # fitted buffers have whatever size they came out with
            if prefix + name in state_dict:
                self.register_buffer(name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def energy(z: Tensor, T: float = 1.0) -> Tensor:
    """`T logsumexp(z / T)`"""
    return torch.logsumexp(z, 1) if T == 1 else T * torch.logsumexp(z / T, 1)


# What options may be: the least and the most.
RANGES: Mapping[str, tuple[float, float]] = {
    "T": (1e-6, math.inf),
    "p": (1, 99),
    "percentile": (1, 100),
    "high": (1, 100),
    "low": (0, 100),
    "k": (1, math.inf),
    "M": (1, math.inf),
    "gamma": (1e-6, math.inf),
    "share": (1e-9, 1),
    "power": (1e-6, math.inf),
    "eps": (0, math.inf),
}


def check_options(score: Score) -> None:
    """Say which option cannot be."""
    for name, value in score.options.items():
        low, high = RANGES.get(name, (-math.inf, math.inf))
        if isinstance(value, int | float) and not low <= value <= high:
            limit = f"at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            percent = ", in percent" if high in (99, 100) else ""
            raise InputError(f"{type(score).__name__}: {name} = {value:g} must be {limit}{percent}")


def head_logits(head: nn.Linear, h: Tensor) -> Tensor:
    """Logits of features in float32, whatever the head's precision."""
    z: Tensor = head(h.to(head.weight.dtype))
    return z.to(h.dtype)


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """`a / b`, and 1 for a sample without any features on: nothing over nothing."""
    return torch.where(b == 0, 1.0, a / b)


def entering(h: Tensor, head: nn.Linear) -> Tensor:
    """What the head's weights are multiplied with: T2FNorm scales features on their way into the head."""
    for hook in head._forward_pre_hooks.values():
        changed: Any = hook(head, (h,))
        if changed is not None:
            h = changed[0] if isinstance(changed, tuple) else changed
    return h


def chunks(h: Tensor, width: int, budget: int = 1 << 24) -> tuple[Tensor, ...]:
    """Rows of h a few at a time, such that `width` numbers for each stay within the budget; all at once for export."""
    if torch.compiler.is_compiling():
        return (h,)
    return h.split(max(1, min(SHARD, budget // max(1, width)))) if len(h) else (h,)


def unit(h: Tensor) -> Tensor:
    """Rows of length 1."""
    return nn.functional.normalize(h, dim=1)
