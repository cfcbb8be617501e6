"""The base class of all scores, and what several of them use."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .. import processes
from ..bank import SHARD, FeatureBank, Part
from ..errors import InputError
from ..moments import Rows

Role = Literal["train", "val"]


class Score(nn.Module):
    """A score S(x): one number a sample, larger for in-distribution samples.

    A subclass computes `score` from features, logits and the network's head. Where it is fitted, it implements `fit`
    (training data) or `fit_held_out` (ID data that the network was not trained on), which set the buffers named in
    `state`. The constructor only stores its arguments.
    """

    paper: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    cost: ClassVar[str] = ""  # of a batch of B, in words: D features, K classes, N training samples
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}  # the least and the largest value of an option
    sweep: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # values to search among, OpenOOD's
    fitted_on: ClassVar[tuple[Role, ...]] = ()  # "train": by `fit`; "val": by `fit_held_out`
    does_without: ClassVar[tuple[Role, ...]] = ()  # of these, where there is no such data
    state: ClassVar[tuple[str, ...]] = ()
    rows: ClassVar[int] = 1024  # scored together, so that intermediate results stay in the cache
    reads: ClassVar[Literal["outputs", "head", "weights"]] = "outputs"  # features and logits; the head; what is in it
    needs_inputs: ClassVar[bool] = False  # whether features and logits are not enough
    spread: bool = False  # whether joined processes keep a share each of the rows that it was fitted on

    def __init__(self) -> None:
        super().__init__()
        for name in self.state:
            self.register_buffer(name, None)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def check_options(self) -> None:
        """Raise an error that names the first option out of its range."""
        for name, (low, high) in self.ranges.items():
            if not low <= self.options[name] <= high:
                limits = f"at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
                percent = ", in percent" if high in (99, 100) else ""
                raise InputError(f"{type(self).__name__}: {name} = {self.options[name]:g} must be {limits}{percent}")

    @property
    def is_fitted(self) -> bool:
        """Whether all of the score's buffers are set."""
        return all(getattr(self, name) is not None for name in self.state)

    def check_readable(self, readable: Collection[str], trained_by: str) -> None:
        """Raise an error where a training method leaves nothing that this score could read."""
        if self.reads not in readable:
            raise InputError(
                f"{type(self).__name__}: reads the last layer, and networks trained by {trained_by} have none that "
                "makes their logits; leave it out"
            )

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Fit the score on the bank of the training set, if it needs that."""
        return self

    def fit_held_out(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Fit the score on the bank of ID samples that the network was not trained on, if it needs them.

        Calibration needs other samples than these: `Detector.calibrate` divides what it is given.
        """
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the scores (B,) of features (B, D) and their logits (B, K)."""
        raise NotImplementedError

    def forward(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return the scores (B,) of features and logits; an error where the score is not fitted.

        Features that are not finite score NaN, whatever the formula makes of them: a detector flags them.
        """
        if not self.is_fitted:
            raise InputError(f"{type(self).__name__} is not fitted; call fit with the features of ID samples first")
        if self.spread and processes.count() == 1:
            raise self._incomplete()
        return self.score(h, z, head) + 0 * h.sum(1, dtype=torch.float32)  # 0 times inf is NaN

    def _incomplete(self) -> InputError:
        return InputError(
            f"{type(self).__name__} was fitted by several processes, each of which keeps a share of the rows; use it "
            "where they are joined, or fit it again in one process"
        )

    @torch.no_grad()
    def scores(self, data: FeatureBank, head: nn.Linear) -> Tensor:
        """Return the scores (N,) of a whole bank, computed part by part; joined processes share the parts."""
        device = head.weight.device

        def of(part: Part) -> Rows:
            pieces = zip(part.features.split(self.rows), part.logits.split(self.rows), strict=True)
            # Joined at once: many small tensors among what is freed would keep memory from being used again.
            return Rows.of(torch.cat([self(h.to(device), z.to(device), head).cpu() for h, z in pieces]))

        spread = any(module.spread for module in self.modules() if isinstance(module, Score))
        return data.merged(of, everywhere=spread).tensor

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        if self.spread:
            raise self._incomplete()
        super()._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in self.state:  # fitted buffers have whatever size they came out with
            if prefix + name in state_dict:
                self.register_buffer(name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def energy(z: Tensor, T: float = 1.0) -> Tensor:
    """Return `T logsumexp(z / T)`, (B,)."""
    return torch.logsumexp(z, 1) if T == 1 else T * torch.logsumexp(z / T, 1)


def head_logits(head: nn.Linear, h: Tensor) -> Tensor:
    """Return the logits of features in float32, whatever the precision of the head: shaped features may be large."""
    if head.weight.dtype in (torch.float16, torch.bfloat16):
        z: Tensor = functional_call(head, {name: weight.float() for name, weight in head.named_parameters()}, h.float())
    else:
        z = head(h.to(head.weight.dtype))
    return z.to(h.dtype)


def exp_ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return `exp(a / b)`, with 0 / 0 = 1, and at most e^60: logits stay finite, whatever features a network has."""
    return torch.where(b == 0, 1.0, a / b).clamp(max=60).exp()


def entering(h: Tensor, head: nn.Linear) -> Tensor:
    """Return what the head's weights are multiplied with: T2FNorm scales features on their way into the head."""
    for hook in head._forward_pre_hooks.values():
        changed: Any = hook(head, (h,))
        if changed is not None:
            h = changed[0] if isinstance(changed, tuple) else changed
    return h


def chunks(h: Tensor, width: int, budget: int = 1 << 24) -> tuple[Tensor, ...]:
    """Split h such that `width` numbers for each row stay within the budget; not at all for export."""
    if torch.compiler.is_compiling():
        return (h,)
    return h.split(max(1, min(SHARD, budget // max(1, width)))) if len(h) else (h,)


def unit(h: Tensor) -> Tensor:
    """Return the rows scaled to length 1."""
    return nn.functional.normalize(h, dim=1)
