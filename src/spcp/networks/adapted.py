"""Any classifier as a network of this library: `forward_features`, and its last `nn.Linear` as `classifier`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..contributions import evaluating, find_classifier
from .base import Network


class Adapted(Network):
    """A model in two parts: what comes before its classifier, and the classifier.

    The classifier is taken out of the model, so that running the model gives the features; it must be the model's last
    step. `apply_spcp` looks for it in the same way.
    """

    def __init__(self, model: nn.Module, classifier: str | None = None) -> None:
        super().__init__()
        name, head = find_classifier(model, classifier)
        if model is head:
            model = nn.Identity()
        else:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Identity())
        self.body, self.classifier, self.name = model, head, name

    def renamed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the original model's state dict under the names that its parts have here."""
        prefix = f"{self.name}." if self.name else ""
        return {
            f"classifier.{key.removeprefix(prefix)}" if key.startswith(prefix) else f"body.{key}": value
            for key, value in weights.items()
        }

    def original(self, name: str) -> str:
        """Return the name that a tensor of this network has in the original model."""
        part, _, rest = name.partition(".")
        return rest if part == "body" or not self.name else f"{self.name}.{rest}"

    def forward_features(self, x: Tensor) -> Tensor:
        """Return what goes into the classifier, (batch, D)."""
        h = _tensor(self.body(x))
        if h.ndim != 2 or h.shape[1] != self.classifier.in_features:
            raise ValueError(
                f"Without its classifier the model gives {tuple(h.shape)}, not (batch, {self.classifier.in_features}): "
                "the classifier is not its last step. Name the last layer, or write a Network."
            )
        return h


def adapt(model: nn.Module, classifier: str | None = None) -> Network:
    """Make a network of any classifier (torchvision's, timm's, Hugging Face's, ...); a `Network` stays as it is.

    The model itself is changed; adapt a copy to keep it.

    >>> network = adapt(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> network.classifier
    Linear(in_features=8, out_features=3, bias=True)
    """
    return model if isinstance(model, Network) else Adapted(model, classifier)


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    """Run a model in evaluation mode and return its logits (batch, K)."""
    with evaluating(model):
        return _tensor(model(x))


def agree(ours: Tensor, theirs: Tensor) -> bool:
    """Tell whether a network and the model it is made of give the same logits: whether its last layer is its last step.

    >>> agree(torch.zeros(2, 3), torch.zeros(2, 3)), agree(torch.zeros(2, 3), torch.ones(2, 3))
    (True, False)
    """
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def _tensor(output: Any) -> Tensor:
    """Return the logits among what a model returns: Hugging Face's models return more than one thing."""
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits
