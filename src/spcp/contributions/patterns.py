"""Contribution patterns: which weights carry a network's predictions, and how few of them do."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .clip import clip_contributions
from .eager import CHUNK
from .head import SPCPLinear, effective_threshold
from .surgery import find_classifier


@dataclass(frozen=True, eq=False)
class Pattern:
    """The mean contribution of every classifier weight over a data set.

    Attributes:
        contributions: mean of `min(W[k,d] * h[d], threshold)`, as the network adds them up, (K, D).
        truncated: share of the samples in which the weight's contribution exceeded the threshold, (K, D).
        samples: how many samples the means are over.
    """

    contributions: Tensor
    truncated: Tensor
    samples: int

    def sparsity(self) -> Sparsity:
        """Measure how few weights carry the mean contributions."""
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
        prediction: the class with the largest logit.
        logit: that logit.
        threshold: the truncation threshold; infinite for a head that does not truncate.
        contributions: `W[prediction, d] * h[d]` before truncation, by feature d, (D,).
        is_truncated: whether the contribution exceeded the threshold, by feature d, (D,).
        features: the features d, the largest contribution first, (D,); so `is_truncated[features]` is in that order.
    """

    prediction: int
    logit: float
    threshold: float
    contributions: Tensor
    is_truncated: Tensor
    features: Tensor

    def __str__(self) -> str:
        lines = [f"class {self.prediction}, logit {self.logit:.3f}, threshold {self.threshold:.4g}"]
        for d in self.features[:10].tolist():
            note = f" truncated to {self.threshold:.4g}" if self.is_truncated[d] else ""
            lines.append(f"  feature {d:5d}: {self.contributions[d]:+.4f}{note}")
        return "\n".join(lines)


@torch.no_grad()
def contribution_pattern(model: nn.Module, data: Iterable[Any], classifier: str | None = None) -> Pattern:
    """Return the mean contribution matrix of a network over a data set, batch by batch.

        mean_b min(W[k,d] * h_b[d], threshold)

    Args:
        model: a classifier; it runs in evaluation mode and returns to the mode it was in.
        data: batches, as a `DataLoader` gives them: tensors, tuples that begin with one, or dictionaries as Hugging
            Face's batches are.
        classifier: the dotted name of the last layer, where the search for it fails.
    """
    _, head = find_classifier(model, classifier)
    return pattern_of(_features(model, data, head), head)


@torch.no_grad()
def pattern_of(features: Iterable[Tensor], head: nn.Linear) -> Pattern:
    """Return the mean contribution matrix of a head over batches of its features, (B, D)."""
    W, threshold = head.weight.detach().double(), _threshold(head)
    contributions, truncated, samples = torch.zeros_like(W), torch.zeros_like(W), 0
    for h in features:
        for rows in h.double().split(max(1, CHUNK // W.numel())):
            c = rows[:, None, :] * W  # (rows, K, D)
            contributions += c.clamp(max=threshold).sum(0)
            truncated += (c > threshold).sum(0)
        samples += len(h)
    return Pattern((contributions / samples).float(), (truncated / samples).float(), samples)


def positive_share(h: Tensor, W: Tensor) -> float:
    """Return the share of the contributions `W[k,d] h[d]` of all samples that are above 0.

    rho_norm asks for the quantile 1 - rho_norm / K of all of them: where few are positive, a large rho_norm puts the
    threshold at 0.
    """
    signs = [((h > 0).double().mean(0), W > 0), ((h < 0).double().mean(0), W < 0)]  # (D,) and (K, D)
    return float(sum((share * same).mean() for share, same in signs))


def sparsity(contributions: Tensor) -> Sparsity:
    """Measure how unequally the magnitudes of a contribution matrix (or of any tensor) are spread over its entries.

    Example:
        >>> sparsity(torch.tensor([0.0, 0.0, 0.0, 2.0]))
        Sparsity(top_1_percent=1.0, top_10_percent=1.0, participation_ratio=0.25, gini=0.75)
    """
    c = contributions.detach().abs().double().flatten().sort().values  # ascending
    n, total = c.numel(), c.sum().item()
    if total == 0 or n == 0:
        raise ValueError("All contributions are zero, so their sparsity is not defined.")
    ranks = torch.arange(1, n + 1, dtype=c.dtype, device=c.device)
    return Sparsity(
        top_1_percent=c[n - max(1, round(n / 100)) :].sum().item() / total,
        top_10_percent=c[n - max(1, round(n / 10)) :].sum().item() / total,
        participation_ratio=total**2 / (n * c.square().sum().item()),
        gini=((2 * ranks - n - 1) * c).sum().item() / (n * total),
    )


@torch.no_grad()
def explain(model: nn.Module, x: Tensor | Mapping[str, Any], classifier: str | None = None) -> list[Explanation]:
    """Show which weights carried each prediction of a batch, and which of them were truncated.

    Args:
        model: a classifier, plain or with an SPCP head; it runs in evaluation mode and returns to the mode it was in.
        x: a batch of inputs: a tensor, or a dictionary as Hugging Face's batches are (labels are left out).
        classifier: the dotted name of the last layer, where the search for it fails.
    """
    _, head = find_classifier(model, classifier)
    return explanations_of(*_features_and_logits(model, x, head), head)


def explanations_of(features: Tensor, logits: Tensor, head: nn.Linear) -> list[Explanation]:
    """Explain predictions by what enters the head, (B, D), and leaves it, (B, K)."""
    threshold = _threshold(head)
    explanations = []
    for h, z in zip(features, logits, strict=True):
        k = int(z.argmax())
        c = h * head.weight[k]  # (D,)
        order = c.argsort(descending=True, stable=True)
        explanations.append(Explanation(k, z[k].item(), threshold, c, c > threshold, order))
    return explanations


@torch.no_grad()
def fit_threshold(model: nn.Module, data: Iterable[Any]) -> float:
    """Set the threshold of an SPCP head to the mean over a data set of its samples' estimates, and return it.

    This is for a network that was trained without SPCP: training does this by itself, and does better. To truncate a
    network that was not trained for it costs accuracy and may hurt detection; compare with the plain one on validation
    data. If it changes the predictions of more than a tenth of the samples, the log says so.

    Args:
        model: a classifier with an SPCP head (`apply_spcp(model, rho_norm, stages="infer")`); it runs in evaluation
            mode and returns to the mode it was in.
        data: batches of training inputs, as for `contribution_pattern`.
    """
    name, head = find_classifier(model)
    if not isinstance(head, SPCPLinear):
        raise ValueError(f"{name!r} is a plain {type(head).__name__}; call apply_spcp(model, rho_norm=...) first.")
    head._warned.add("never trained")  # this function is what the warning asks for
    total, samples = 0.0, 0
    some: list[Tensor] = []
    for h in _features(model, data, head):
        total += head.estimate(h).double().sum().item()
        some += [h] if samples < 1024 else []
        samples += len(h)
    head.threshold.fill_(total / samples)
    h = torch.cat(some)
    plain = nn.functional.linear(h, head.weight, head.bias)
    truncated = clip_contributions(h, head.weight, head.bias, head.threshold)
    changed = (plain.argmax(1) != truncated.argmax(1)).double().mean().item()
    if changed > 0.1:
        logging.getLogger("spcp").warning(
            "truncation at %.3g changes the predictions of %.0f %% of these samples; compare detection with the plain "
            "network on validation data, or truncate less (a smaller rho_norm)",
            *(head.threshold.item(), 100 * changed),
        )
    return head.threshold.item()


def _features(model: nn.Module, data: Iterable[Any], head: nn.Linear) -> Iterator[Tensor]:
    """Yield what enters the last layer, (B, D), for each batch of a data set; no batch at all is an error."""
    if isinstance(data, Tensor):
        raise TypeError("data is a tensor; give batches of inputs: a DataLoader, or [x] for a single batch.")
    empty = True
    for batch in data:
        x = batch[0] if isinstance(batch, (tuple, list)) else batch
        yield _features_and_logits(model, x, head)[0]
        empty = False
    if empty:
        raise ValueError("data holds no samples; give at least one batch.")


def _features_and_logits(model: nn.Module, x: Tensor | Mapping[str, Any], head: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return what the last layer multiplies with its weights and what it returns, (B, D) and (B, K)."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = head.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    with evaluating(model):
        try:
            device = head.weight.device
            if isinstance(x, Mapping):
                given = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in x.items()}
                _call(model, {key: value for key, value in given.items() if key not in ("label", "labels")})
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


def _call(model: nn.Module, arguments: Mapping[str, Any]) -> None:
    """Run a model on a batch of Hugging Face: by keyword where it takes them so, else on the only input."""
    taken = inspect.signature(model.forward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in taken) or arguments.keys() <= {p.name for p in taken}:
        model(**arguments)
    elif len(arguments) == 1:
        model(*arguments.values())
    else:
        raise ValueError(f"{type(model).__name__} does not take {', '.join(arguments)}; give batches of its one input.")


@contextmanager
def evaluating(*modules: nn.Module | None) -> Iterator[None]:
    """Hold modules in evaluation mode without gradients; afterwards every layer is back in its mode."""
    layers = [layer for module in modules if module is not None for layer in module.modules()]
    modes = [layer.training for layer in layers]
    try:
        for module in modules:
            if module is not None and any(layer.training for layer in module.modules()):
                module.eval()  # a module that evaluates already is left alone: other threads may use it
        with torch.no_grad():
            yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            if layer.training != mode:
                layer.training = mode


def _threshold(head: nn.Linear) -> float:
    """Return where the head truncates at inference; infinity where it does not."""
    threshold = effective_threshold(head)
    return float("inf") if threshold is None else threshold.item()
