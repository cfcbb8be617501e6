"""The SPCP head: a linear classifier that truncates its contributions at a threshold it learns in training."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .clip import clip_contributions
from .quantile import threshold_estimate
from .truncation import Truncation

PAPER_BETA, PAPER_STEPS = 0.999, 39100  # CIFAR: 100 epochs of 391 steps
_FADED = 1e-6  # share of the initial threshold that no longer counts
INITIAL_THRESHOLD = 1000.0
_CHECK_EVERY = 100  # training steps between two looks at a GPU's threshold: each look waits for the GPU


class SPCPLinear(nn.Linear):
    """An `nn.Linear` whose contributions are truncated, in training and at inference.

        z_k = sum_d min(W[k,d] * h[d], threshold) + b_k
        threshold <- beta * threshold + (1 - beta) * mean_b Top(rho, W * h_b)     (each training step, first)

    where `Top(rho, .)` is the value at which the top `rho = 100 * rho_norm / K` percent of a sample's K*D
    contributions start. Outside training mode the threshold stands still. Under data parallelism the mean is that
    of the global batch, so every replica has the same threshold: where `torch.distributed` is initialised, all its
    processes must train with the head in step. Under activation checkpointing, each forward pass must be followed by
    its backward pass before the next: it is recomputed with the threshold as it then is.

    The state dict holds the threshold and the hyperparameters, so a checkpoint records how it was trained; that of an
    `nn.Linear` loads as well, and leaves both as they are.

    Args:
        in_features: D.
        out_features: K, the number of classes.
        bias: as in `nn.Linear`; it is never truncated.
        truncation: how much to truncate and when, see `Truncation`. Assign `head.truncation` to change it later; the
            threshold stays where it is.
        device: as in `nn.Linear`.
        dtype: as in `nn.Linear`. The threshold itself is float32 at least.

    Example:
        >>> head = SPCPLinear(512, 10, truncation=Truncation(rho_norm=3.0, total_steps=5000))
        >>> logits = head(torch.rand(128, 512))  # training mode: updates head.threshold, then truncates
        >>> logits = head.eval()(torch.rand(128, 512))  # truncates at the threshold as it is
    """

    threshold: Tensor
    updates: Tensor  # steps that moved the threshold
    nonfinite: Tensor  # whether a step did not, because its features or the weights were not finite

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        truncation: Truncation,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._set_up(truncation)

    @classmethod
    def convert_(cls, linear: nn.Linear, truncation: Truncation) -> SPCPLinear:
        """Turn an `nn.Linear` into an SPCP head in place: the same object, with the same parameters and hooks."""
        if not _behaves_as_linear(linear):
            raise TypeError(
                f"{type(linear).__name__} does more than an nn.Linear, so it cannot become an SPCP head; end the model "
                f"in an nn.Linear."
            )
        truncation.check(linear.out_features)
        plain_class = type(linear)
        linear.__class__ = cls
        assert isinstance(linear, cls)
        linear._set_up(truncation)
        linear._plain_class = plain_class
        return linear

    def revert_(self) -> nn.Linear:
        """Turn this head into the plain layer it would be without SPCP, in place."""
        plain_class = self._plain_class
        for name in ("threshold", "updates", "nonfinite", "_truncation", "_unchecked", "_warned", "_plain_class"):
            delattr(self, name)
        self.__class__ = plain_class  # type: ignore[assignment]
        return self

    def _set_up(self, truncation: Truncation) -> None:
        self.truncation = truncation
        device, dtype = self.weight.device, torch.promote_types(self.weight.dtype, torch.float32)
        self.register_buffer("threshold", torch.tensor(self.initial_threshold, device=device, dtype=dtype))
        self.register_buffer("updates", torch.tensor(0, device=device))
        self.register_buffer("nonfinite", torch.tensor(False, device=device), persistent=False)
        self._plain_class: type[nn.Linear] = nn.Linear  # what to revert to
        self._unchecked = 0  # steps since the last look at the buffers
        self._warned: set[str] = set()  # subjects of the warnings given

    @property
    def truncation(self) -> Truncation:
        """The hyperparameters."""
        return self._truncation

    @truncation.setter
    def truncation(self, truncation: Truncation) -> None:
        truncation.check(self.out_features)
        self._truncation = truncation

    @property
    def beta(self) -> float:
        """The share of the old threshold kept at each step: as given, or from the length of the run."""
        if self.truncation.beta is not None:
            return self.truncation.beta
        return float(PAPER_BETA ** (PAPER_STEPS / (self.truncation.total_steps or PAPER_STEPS)))

    @property
    def initial_threshold(self) -> float:
        """Where the threshold starts: as given, or at 1000."""
        initial = self.truncation.initial_threshold
        return INITIAL_THRESHOLD if initial is None else initial

    def forward(self, input: Tensor) -> Tensor:
        """Return the logits, (..., K), of features (..., D); in training mode, update the threshold first."""
        if self.training and self.is_adaptive:
            h = self._samples(input.detach())  # drawn when recomputing too, or dropout would draw other numbers
            if not _is_recomputing():
                self._update(h)
        if not self.training and not torch.compiler.is_compiling():
            self._warn_if_never_trained()
        if not self.truncation.applies(training=self.training):
            return self._logits(input, None)
        # The copy is what the backward pass will see, whatever further steps do to the threshold before it.
        return self._logits(input, self.threshold.clone() if torch.is_grad_enabled() else self.threshold)

    def _logits(self, h: Tensor, threshold: Tensor | None) -> Tensor:
        """Return the logits of features, their contributions truncated at `threshold`, if there is one."""
        W, b = self._held()
        return F.linear(h, W, b) if threshold is None else clip_contributions(h, W, b, threshold)

    def _held(self) -> tuple[Tensor, Tensor | None]:
        """Return the weights and the bias of the classes that this process holds: all."""
        return self.weight, self.bias

    def _replicas(self) -> int:
        """Return how many processes there are that train on other samples, and this one."""
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @property
    def is_adaptive(self) -> bool:
        """Whether training moves the threshold."""
        return self.truncation.rho_norm != 0 and self.beta < 1

    @property
    def initial_share(self) -> float:
        """The share of the initial threshold that is left in the present one: `beta ** updates`."""
        return float(self.beta ** self.updates.item())

    @property
    def is_warming_up(self) -> bool:
        """Whether the initial value makes up more of the threshold than was learned: then little is truncated."""
        share = self.initial_share
        residual = share * self.initial_threshold
        if math.isinf(residual):
            return share < 1
        return _FADED < share < 1 and residual > (self.threshold.item() - residual) / (1 - share)

    def _samples(self, h: Tensor) -> Tensor:
        """Return the samples to estimate the threshold on: all, or a random subset."""
        h = h.reshape(-1, h.shape[-1])  # (B, D)
        subset = self.truncation.subset
        if subset is None or subset >= h.shape[0]:
            return h
        return h[self._drawn(torch.randperm(h.shape[0], device=h.device)[:subset])]

    def _drawn(self, rows: Tensor) -> Tensor:
        """Return the rows that were drawn at random: all processes may draw other ones."""
        return rows

    def estimate(self, h: Tensor) -> Tensor:
        """Estimate the threshold from each sample, (B,), of features (B, D); their moving average is the threshold."""
        return threshold_estimate(h, self.weight, self.bias, self.truncation.rho_norm)

    def _update(self, h: Tensor) -> None:
        """Move the threshold towards the mean, over the global batch, of the samples' estimates."""
        estimates = self.estimate(h)  # (B,)
        if self._replicas() > 1:
            total = torch.stack([estimates.sum(), estimates.new_full((), h.shape[0])])  # sum and count
            dist.all_reduce(total)
            estimate = torch.where(total[1] > 0, total[0] / total[1], self.threshold)
        elif h.shape[0] == 0:
            return
        else:
            estimate = estimates.mean()
        bias = self._held()[1]
        if bias is not None:
            estimate = estimate + 0 * bias.detach().sum()  # NaN if the logits are going to be
        # What is not finite never enters. A CPU raises an error at once. Elsewhere the step is noted and the error
        # raised at the next look, since to ask a GPU is to wait for it.
        if h.device.type != "cpu" or torch.compiler.is_compiling():
            finite = estimate.isfinite()
            self.nonfinite.logical_or_(~finite)
            moved = self.threshold * self.beta + estimate * (1 - self.beta)
            self.threshold.copy_(torch.where(finite, moved, self.threshold))
            self.updates.add_(finite)
        elif math.isfinite(estimate.item()):
            self.threshold.mul_(self.beta).add_(estimate, alpha=1 - self.beta)
            self.updates.add_(1)
        else:
            self.nonfinite.fill_(True)
        if not torch.compiler.is_compiling():
            self._unchecked += 1
            if h.device.type == "cpu" or self._unchecked >= _CHECK_EVERY:
                self._check()

    def _check(self) -> None:
        """Look at the buffers (which waits for a GPU); raise an error or warn if something went wrong."""
        self._unchecked = 0
        threshold = self.threshold.item()
        if self.nonfinite.item():
            self.nonfinite.fill_(False)
            raise ValueError(
                f"Features or weights of the SPCP head are not finite; its threshold was left at {threshold:.6g}. "
                f"Look for NaN in the input, or lower the learning rate."
            )
        share = self.initial_share
        # Zero or less, or above it only by what is left of the initial threshold (and a hundredth, for rounding).
        faded = share < _FADED and math.isfinite(threshold)
        if threshold <= 0 or (faded and threshold <= 1.01 * share * self.initial_threshold):
            cure = f"rho_norm = {self._rho_text} is large for {self.out_features} classes; choose a smaller one."
            if self.truncation.rho_norm == "auto":
                cure = "The predicted class has no positive contributions either; look at the features."
            self._warn_once(
                "not positive",
                f"The SPCP threshold is {threshold:.3g}, so no contribution is positive any more. {cure}",
            )

    def _warn_if_never_trained(self) -> None:
        """Look once: a head on a network that was never trained with it truncates nothing."""
        if "never trained" in self._warned or not self.is_adaptive or effective_threshold(self) is None:
            return
        self._warned.add("never trained")  # to look again would wait for a GPU again
        if self.threshold.item() == INITIAL_THRESHOLD and self.updates.item() == 0:
            warnings.warn(
                f"The SPCP threshold is still its initial {INITIAL_THRESHOLD:g}, so nothing is truncated: train with "
                f"the head, load a checkpoint of one, or set it with fit_threshold(model, data).",
                stacklevel=2,
            )

    def _warn_once(self, subject: str, warning: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warnings.warn(warning, stacklevel=2)

    def train(self, mode: bool = True) -> SPCPLinear:
        """Set the mode as `nn.Module` does; when training gives way to evaluation, check the threshold."""
        trained = self.training and not mode
        super().train(mode)
        if trained and self.is_adaptive and not self.threshold.is_meta:
            self._check()
            steps = self.truncation.total_steps
            over = steps is None or self.updates.item() >= 0.9 * steps  # some stop early
            if over and self.is_warming_up:
                self._warn_once(
                    "warming up",
                    f"The SPCP threshold is still {self.threshold.item():.3g} after {self.updates.item()} steps, "
                    f"mostly its initial {self.initial_threshold:g}: if training ends here, SPCP did nothing. Pass "
                    f"total_steps, the number of training steps, so that beta fits the length of the run.",
                )
        return self

    def reset_parameters(self) -> None:
        """Draw the parameters as `nn.Linear` does; the threshold starts again, too."""
        super().reset_parameters()
        if "threshold" in self._buffers:  # not yet while nn.Linear constructs itself
            self.threshold.fill_(self.initial_threshold)
            self.updates.zero_()
            self.nonfinite.zero_()

    def get_extra_state(self) -> Tensor:
        """Return the hyperparameters as JSON in a tensor of bytes, which every checkpoint format can hold."""
        return torch.tensor(list(json.dumps(asdict(self.truncation)).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the hyperparameters of a checkpoint."""
        self.truncation = Truncation(**json.loads(bytes(state.tolist())))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        ours = [prefix + name for name in ("threshold", "updates", "_extra_state")]
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs)
        self.threshold = self.threshold.to(torch.promote_types(self.threshold.dtype, torch.float32))
        plain = not any(key in state_dict for key in ours)  # the checkpoint of an nn.Linear lacks all three
        missing_keys += [key for key in missing if not (plain and key in ours)]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SPCPLinear:
        """Keep the threshold in float32 at least: a moving average in half precision stands still."""
        threshold = self.threshold
        super()._apply(fn, recurse)
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        if self.threshold.dtype != dtype:
            self.threshold = threshold.to(device=self.threshold.device, dtype=dtype)
        return self

    @property
    def _rho_text(self) -> str:
        return str(self.truncation.rho_norm).removesuffix(".0")

    def extra_repr(self) -> str:
        """Describe the layer as `nn.Linear` does, with the hyperparameters."""
        subset = f", subset={self.truncation.subset}" if self.truncation.subset else ""
        options = f"rho_norm={self._rho_text}, beta={self.beta:.6g}, stages={self.truncation.stages!r}"
        return f"{super().extra_repr()}, {options}{subset}"


def effective_threshold(head: nn.Module) -> Tensor | None:
    """Return the threshold at which a layer truncates contributions at inference, or None where it does not."""
    if isinstance(head, SPCPLinear) and head.truncation.applies(training=False):
        return head.threshold
    return None


def plain_head(head: nn.Linear) -> nn.Linear:
    """Return the head without truncation, with the same parameters; a head that does not truncate, as it is."""
    if not isinstance(head, SPCPLinear) or effective_threshold(head) is None:
        return head
    plain = copy.copy(head)
    plain.truncation = replace(head.truncation, stages="neither")
    return plain


def _behaves_as_linear(module: nn.Linear) -> bool:
    """Return whether a layer is an `nn.Linear`, or a subclass that computes the same (timm has one)."""
    if type(module) is nn.Linear:
        return True
    held = {name for name, _ in (*module.named_parameters(), *module.named_buffers(), *module.named_children())}
    if not {"weight"} <= held <= {"weight", "bias"} or module.weight.is_meta:  # adapters, parametrizations, ...
        return False
    probe = torch.linspace(-1, 1, module.in_features, device=module.weight.device, dtype=module.weight.dtype)
    with torch.no_grad():
        return torch.equal(type(module).forward(module, probe), F.linear(probe, module.weight, module.bias))


def _is_recomputing() -> bool:
    """Return whether this forward pass runs inside a backward pass: activation checkpointing computes it again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
