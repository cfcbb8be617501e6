"""Contribution patterns: which weights carry a network's predictions, and how few of them do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .eager import CHUNK
from .head import SPCPLinear, effective_threshold
from .surgery import find_classifier


@dataclass(frozen=True, eq=False)
class Pattern:
    """The mean contribution of every classifier weight over a data set.

    Attributes:
        contributions: mean of `min(W[k,d] * h[d], threshold)`, as the network adds them up, (K, D).
        cut: share of the samples in which the weight's contribution exceeded the threshold, (K, D).
        samples: how many samples the means are over.
    """

    contributions: Tensor
    cut: Tensor
    samples: int

    def sparsity(self) -> Sparsity:
        """How few weights carry the mean contributions."""
        return sparsity(self.contributions)


@dataclass(frozen=True)
class Sparsity:
    """How unequally magnitudes are spread over n parameters; see `sparsity`.

    Attributes:
        top_1_percent: share of the total magnitude that the largest 1 % of the parameters hold.
        top_10_percent: share that the largest 10 % hold.
        participation_ratio: `(sum |c|)**2 / (n * sum c**2)`: the share of parameters that would do if all of them
            contributed alike; 1 if all are equal, 1/n if one holds everything.
        gini: 0 if all are equal, near 1 if one holds everything.
    """

    top_1_percent: float
    top_10_percent: float
    participation_ratio: float
    gini: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a prediction was made of.

    Attributes:
        predicted: the class with the largest logit.
        logit: that logit.
        threshold: the bound of the contributions; infinite for a head that does not cut.
        contributions: `W[predicted, d] * h[d]` before the cut, by feature d, (D,).
        is_cut: whether the contribution exceeded the threshold, by feature d, (D,).
        features: the features d, the largest contribution first, (D,); so `is_cut[features]` is in that order.
    """

    predicted: int
    logit: float
    threshold: float
    contributions: Tensor
    is_cut: Tensor
    features: Tensor

    def __str__(self) -> str:
        lines = [f"class {self.predicted}, logit {self.logit:.3f}, threshold {self.threshold:.4g}"]
        for d in self.features[:10].tolist():
            note = f" cut to {self.threshold:.4g}" if self.is_cut[d] else ""
            lines.append(f"  feature {d:5d}: {self.contributions[d]:+.4f}{note}")
        return "\n".join(lines)


@torch.no_grad()
def contribution_pattern(model: nn.Module, data: Iterable[Any], classifier: str | None = None) -> Pattern:
    """The mean contribution matrix of a network over a data set, batch by batch.

        mean_b min(W[k,d] * h_b[d], threshold)

    Args:
        model: a classifier; it is run in evaluation mode and put back.
        data: batches, as a `DataLoader` gives them: tensors, tuples that begin with one, or dictionaries of the model's
            keyword arguments.
        classifier: the dotted name of the last layer, where it cannot be found.
    """
    _, head = find_classifier(model, classifier)
    return pattern_of(features_of(model, data, head), head)


@torch.no_grad()
def pattern_of(features: Iterable[Tensor], head: nn.Linear) -> Pattern:
    """The same, of features (B, D) that are there already."""
    W, threshold = head.weight.detach().double(), _threshold(head)
    contributions, cut, samples = torch.zeros_like(W), torch.zeros_like(W), 0
    for h in features:
        for rows in h.double().split(max(1, CHUNK // W.numel())):
            c = rows[:, None, :] * W  # (rows, K, D)
            contributions += c.clamp(max=threshold).sum(0)
            cut += (c > threshold).sum(0)
        samples += len(h)
    return Pattern((contributions / samples).float(), (cut / samples).float(), samples)


def sparsity(contributions: Tensor) -> Sparsity:
    """How unequally the magnitudes of a contribution matrix (or of any tensor) are spread over its entries.

    Example:
        >>> sparsity(torch.tensor([0.0, 0.0, 0.0, 2.0]))
        Sparsity(top_1_percent=1.0, top_10_percent=1.0, participation_ratio=0.25, gini=0.75)
    """
    c = contributions.detach().abs().double().flatten().sort().values  # ascending
    n, total = c.numel(), c.sum().item()
    if total == 0 or n == 0:
        raise ValueError("All contributions are zero, so nothing can be said of how they are spread.")
    ranks = torch.arange(1, n + 1, dtype=c.dtype, device=c.device)
    return Sparsity(
        top_1_percent=c[n - max(1, round(n / 100)) :].sum().item() / total,
        top_10_percent=c[n - max(1, round(n / 10)) :].sum().item() / total,
        participation_ratio=total**2 / (n * c.square().sum().item()),
        gini=((2 * ranks - n - 1) * c).sum().item() / (n * total),
    )


@torch.no_grad()
def explain(model: nn.Module, x: Tensor | Mapping[str, Any], classifier: str | None = None) -> list[Explanation]:
    """Which weights carried each prediction, and which of them were cut.

    Args:
        model: a classifier, plain or with an SPCP head; it is run in evaluation mode and put back.
        x: a batch of inputs: a tensor, or a dictionary of the model's keyword arguments.
        classifier: the dotted name of the last layer, where it cannot be found.
    """
    _, head = find_classifier(model, classifier)
    threshold = _threshold(head)
    h, logits = features_and_logits(model, x, head)
    found = []
    for own, z in zip(h, logits, strict=True):
        k = int(z.argmax())
        c = own * head.weight[k]  # (D,)
        order = c.argsort(descending=True, stable=True)
        found.append(Explanation(k, z[k].item(), threshold, c, c > threshold, order))
    return found


@torch.no_grad()
def fit_threshold(model: nn.Module, data: Iterable[Any]) -> float:
    """Set the threshold of an SPCP head to the mean over a data set of its samples' estimates, and return it.

    For a network that was trained without SPCP: training does this by itself, and does better. Cutting a network that
    did not learn to live with it costs accuracy and may hurt detection; compare with the plain one on validation data.

    Args:
        model: a classifier with an SPCP head (`apply_spcp(model, rho_norm, stages="infer")`); it is run in evaluation
            mode and put back.
        data: batches of training inputs, as for `contribution_pattern`.
    """
    name, head = find_classifier(model)
    if not isinstance(head, SPCPLinear):
        raise ValueError(f"{name!r} is a plain {type(head).__name__}; call apply_spcp(model, rho_norm=...) first.")
    head._warned.add("never trained")  # this function is what the warning asks for
    total, samples = 0.0, 0
    for h in features_of(model, data, head):
        total += head.estimate(h).double().sum().item()
        samples += len(h)
    head.threshold.fill_(total / samples)
    return head.threshold.item()


def features_of(model: nn.Module, data: Iterable[Any], head: nn.Linear) -> Iterator[Tensor]:
    """What goes into the last layer, (B, D) for each batch of a data set; never nothing at all."""
    if isinstance(data, Tensor):
        raise TypeError("data is a tensor; give batches of inputs: a DataLoader, or [x] for a single batch.")
    empty = True
    for batch in data:
        x = batch[0] if isinstance(batch, (tuple, list)) else batch
        yield features_and_logits(model, x, head)[0]
        empty = False
    if empty:
        raise ValueError("data held no samples; give at least one batch.")


def features_and_logits(model: nn.Module, x: Tensor | Mapping[str, Any], head: nn.Linear) -> tuple[Tensor, Tensor]:
    """What goes into the last layer of a model and what comes out, (B, D) and (B, K), in evaluation mode."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = head.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    with _evaluating(model), torch.no_grad():
        try:
            device = head.weight.device
            if isinstance(x, Mapping):
                model(**{key: value.to(device) if isinstance(value, Tensor) else value for key, value in x.items()})
            else:
                model(x.to(device))
        finally:
            handle.remove()
    if len(seen) != 1:
        raise ValueError(f"The classifier ran {len(seen)} times in one forward pass; it must run once.")
    h, logits = seen[0]
    if h.dim() != 2:
        raise ValueError(f"The classifier's features have shape {tuple(h.shape)}; they must be (batch, D).")
    return h, logits


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, and afterwards every module as it was."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _threshold(head: nn.Linear) -> float:
    threshold = effective_threshold(head)
    return float("inf") if threshold is None else threshold.item()
