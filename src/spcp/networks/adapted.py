"""Any classifier as a network of this library: `features`, and the last `nn.Linear` as `classifier`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..contributions import find_classifier
from .base import Network


class Adapted(Network):
    """Somebody else's model, cut in two: what comes before its classifier, and the classifier.

    The classifier is taken out of the model, so that running the model gives the features; it must be the model's last
    step. It is found as `apply_spcp` finds it.
    """

    def __init__(self, model: nn.Module, classifier: str | None = None) -> None:
        super().__init__()
        name, head = find_classifier(model, classifier)
        if model is head:
            model = nn.Identity()
        else:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Identity())
        self.body, self.classifier = model, head

    def features(self, x: Tensor) -> Tensor:
        """What went into the classifier, (batch, D)."""
        h = logits_of(self.body(x))
        if h.ndim != 2 or h.shape[1] != self.classifier.in_features:
            raise ValueError(
                f"Without its classifier the model gives {tuple(h.shape)}, not (batch, {self.classifier.in_features}): "
                "the classifier is not its last step. Name the last layer, or write a Network of your own."
            )
        return h


def logits_of(output: Any) -> Tensor:
    """The logits among what a model returns: Hugging Face's return more than one thing."""
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


def adapt(model: nn.Module, classifier: str | None = None) -> Network:
    """A network of any classifier: one's own, torchvision's, timm's, Hugging Face's; this library's stay as they are.

    The model itself is changed; adapt a copy to keep it.

    >>> network = adapt(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> network.classifier
    Linear(in_features=8, out_features=3, bias=True)
    """
    return model if isinstance(model, Network) else Adapted(model, classifier)
