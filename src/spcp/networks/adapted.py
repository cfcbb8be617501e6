"""Any classifier as a network of this library: `features`, and the last `nn.Linear` as `classifier`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..contributions import find_classifier
from .base import Network


class Adapted(Network):
    """Somebody else's model, cut in two: what comes before its classifier, and the classifier.

    The classifier is taken out of the model, so that running the model gives the features; it must be the model's last
    step. Its layers are found as `apply_spcp` finds them.
    """

    def __init__(self, model: nn.Module, classifier: str | None = None) -> None:
        super().__init__()
        name, head = find_classifier(model, classifier)
        parent, _, last = name.rpartition(".")
        owner = model.get_submodule(parent)
        if isinstance(owner, nn.Sequential):
            owner[int(last)] = nn.Identity()
        else:
            setattr(owner, last, nn.Identity())
        self.body, self.classifier = model, head

    def features(self, x: Tensor) -> Tensor:
        """What went into the classifier, (batch, D)."""
        out: Any = self.body(x)
        h = out if isinstance(out, Tensor) else out.logits  # Hugging Face's models return more than one thing
        if h.ndim != 2 or h.shape[1] != self.classifier.in_features:
            raise ValueError(
                f"Without its classifier the model gives {tuple(h.shape)}, not (batch, {self.classifier.in_features}): "
                "the classifier is not its last step. Name the last layer, or write a Network of your own."
            )
        return h


def adapt(model: nn.Module, classifier: str | None = None) -> Network:
    """A network of any classifier: one's own, torchvision's, timm's, Hugging Face's; this library's stay as they are.

    >>> network = adapt(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> network.classifier
    Linear(in_features=8, out_features=3, bias=True)
    """
    return model if isinstance(model, Network) else Adapted(model, classifier)
