"""What all training methods share: a loss, and what they change about the network."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..contributions import RhoNorm, SPCPLinear, Truncation
from ..networks import Network


class Method(nn.Module):
    """A training method. Its parameters are trained along, and its state is saved with the network's.

    Args:
        rho_norm: bound the contributions to the head's outputs, as SPCP does; 0 leaves them alone.
        beta: of the threshold's moving average; by default from the length of the run.
        initial_threshold: where the threshold starts, 1000 by default; with `beta=1` it stays there and must be given.
        subset: estimate the threshold on so many samples of a batch; by default on all.
    """

    paper: ClassVar[str] = ""
    cost: ClassVar[str] = ""  # of a step, in words, without the bound: B images, D features, K classes
    detector: ClassVar[str] = "energy"  # what the paper scores it with
    detector_options: ClassVar[Mapping[str, Any]] = {}
    pretrained: ClassVar[bool] = False  # whether it starts from a trained network
    readable: ClassVar[tuple[str, ...]] = (
        "outputs",
        "head",
        "weights",
    )  # what detectors may look at, see `Score.reads`
    transient: ClassVar[tuple[str, ...]] = ()  # buffers that only training needs
    views: ClassVar[int] = 1  # augmented views of each image in a step: x holds them one after the other

    def __init__(
        self,
        *,
        rho_norm: RhoNorm = 0.0,
        beta: float | None = None,
        initial_threshold: float | None = None,
        subset: int | None = None,
    ) -> None:
        super().__init__()
        if beta == 1 and initial_threshold is None:
            raise ValueError("a fixed threshold needs initial_threshold: the last one of an adaptive run, for example.")
        self.rho_norm, self.beta, self.subset = rho_norm, beta, subset
        self.initial_threshold = 1000.0 if initial_threshold is None else initial_threshold

    def head(self, network: Network) -> nn.Linear:
        """The layer whose contributions SPCP bounds."""
        return network.classifier

    def scoring_head(self, network: Network) -> nn.Linear:
        """The layer that makes logits of features, for detectors that change features on their way."""
        return network.classifier

    def num_classes(self, network: Network) -> int:
        """How many classes there are to predict."""
        return network.classifier.out_features

    def prepare(self, network: Network, total_steps: int) -> None:
        """Change the network, once, before an optimizer is built for it and for this method."""
        if self.rho_norm:
            SPCPLinear.convert_(
                self.head(network),
                Truncation(
                    rho_norm=self.rho_norm,
                    beta=self.beta,
                    total_steps=total_steps,
                    initial_threshold=self.initial_threshold,
                    subset=self.subset,
                ),
            )

    def begin(self, network: Network, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Look at the training data once before training, in order and not augmented, if the method has to."""

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Loss and logits (batch, K) of a batch; `progress` is the share of training that is done."""
        raise NotImplementedError

    def outputs(self, network: Network, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (batch, D), logits (batch, K) and classes (batch,) in evaluation mode: what detectors look at."""
        h = network.forward_features(x)
        z = network.classifier(h)
        return h, z, z.argmax(1)

    def predict(self, network: Network, x: Tensor) -> Tensor:
        """The classes (batch,) of a batch, in evaluation mode."""
        return self.outputs(network, x)[2]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, Method)]
        parameters = [own for kind in kinds for own in inspect.signature(kind.__init__).parameters.values()]
        return {own.name: getattr(self, own.name) for own in parameters if own.kind is own.KEYWORD_ONLY}


def full_precision(x: Tensor) -> torch.autocast:
    """Losses in float32 under autocast: differences of sums, and covariances, need the digits."""
    return torch.autocast(x.device.type, enabled=False)


def normalised(u: Tensor) -> Tensor:
    """Rows of length 1."""
    return torch.nn.functional.normalize(u, dim=-1)
