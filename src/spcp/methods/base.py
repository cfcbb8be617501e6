"""What all training methods share: a loss, and what they change about the network."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..contributions import SPCPLinear, Truncation
from ..networks import Network

NO_TRUNCATION = Truncation()


class Outputs(NamedTuple):
    """What scores look at: features (batch, D), logits (batch, K) and predicted classes (batch,)."""

    features: Tensor
    logits: Tensor
    predictions: Tensor


class Method(nn.Module):
    """A training method. Its parameters are trained along, and its state is saved with the network's.

    Args:
        truncation: SPCP's hyperparameters, for the contributions to the head's outputs; by default none is truncated.
    """

    paper: ClassVar[str] = ""
    cost: ClassVar[str] = ""  # of a step without truncation, in words: B images, D features, K classes
    score: ClassVar[str] = "energy"  # the one its paper uses
    score_options: ClassVar[Mapping[str, Any]] = {}
    pretrained: ClassVar[bool] = False  # whether it starts from a trained network
    readable: ClassVar[tuple[str, ...]] = ("outputs", "head", "weights")  # what scores may look at, see `Score.reads`
    transient: ClassVar[tuple[str, ...]] = ()  # buffers that only training needs
    views: ClassVar[int] = 1  # augmented views of each image in a step: x holds them one after the other

    def __init__(self, *, truncation: Truncation = NO_TRUNCATION) -> None:
        super().__init__()
        self.truncation = truncation

    def head(self, network: Network) -> nn.Linear:
        """Return the layer whose contributions SPCP truncates."""
        return network.classifier

    def scoring_head(self, network: Network) -> nn.Linear:
        """Return the layer that makes logits of features, for scores that change features on their way."""
        return network.classifier

    def num_classes(self, network: Network) -> int:
        """Return how many classes there are to predict."""
        return network.classifier.out_features

    def prepare(self, network: Network, total_steps: int) -> None:
        """Change the network, once, before an optimizer is built for it and for this method."""
        if self.truncation.rho_norm:
            steps = self.truncation.total_steps or total_steps
            SPCPLinear.convert_(self.head(network), dataclasses.replace(self.truncation, total_steps=steps))

    def begin(self, network: Network, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Look at the training data once before training, in order and not augmented, if the method has to."""

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits (batch, K) of a batch; `progress` is the share of training that is done."""
        raise NotImplementedError

    def outputs(self, network: Network, x: Tensor) -> Outputs:
        """Return what scores look at, in evaluation mode."""
        h = network.forward_features(x)
        z = network.classifier(h)
        return Outputs(h, z, z.argmax(1))

    def predict(self, network: Network, x: Tensor) -> Tensor:
        """Return the predicted classes (batch,) of a batch, in evaluation mode."""
        return self.outputs(network, x).predictions

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments of the constructor, but for `truncation`."""
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, Method) and kind is not Method]
        parameters = [argument for kind in kinds for argument in inspect.signature(kind.__init__).parameters.values()]
        return {
            argument.name: getattr(self, argument.name)
            for argument in parameters
            if argument.kind is argument.KEYWORD_ONLY and argument.name != "truncation"
        }


def full_precision(x: Tensor) -> torch.autocast:
    """Compute losses in float32 under autocast: differences of sums, and covariances, need the digits."""
    return torch.autocast(x.device.type, enabled=False)


def normalised(u: Tensor) -> Tensor:
    """Scale rows to length 1."""
    return torch.nn.functional.normalize(u, dim=-1)
