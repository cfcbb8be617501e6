"""Unleashing Mask (Zhu et al., 2023): masks a trained network until its loss is as at an earlier stage of training."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..networks import Network
from .base import Method, Outputs


def top_share_mask(scores: Tensor, share: float) -> Tensor:
    """Return True for the `round(share * n)` entries of the largest |score|."""
    keep = round(share * scores.numel())
    mask = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    mask[scores.detach().abs().flatten().topk(keep).indices] = True
    return mask.view(scores.shape)


def umap_loss(z: Tensor, y: Tensor, eta: Tensor | float) -> Tensor:
    """Return `|CE(z, y) - eta| + eta`."""
    return (F.cross_entropy(z, y) - eta).abs() + eta


class UMAP(Method):
    """`|CE(z, y) - eta| + eta`; z are the logits of a trained network under a mask.

    It learns a score for each weight, at random at first, and leaves the weights; those of the largest |score|, a
    `share` of each layer, are kept. The mask is hard; its gradient goes straight through to |score|. BatchNorm goes on
    counting, in statistics of the masked network's own. `eta` is the mean training loss under a random mask that keeps
    `random_share` of each layer; a very small network may not survive that, and then eta is far too large. The unmasked
    network still classifies.
    """

    paper = "Unleashing Mask: Explore the Intrinsic Out-of-Distribution Detection Capability, ICML 2023"
    cost = "one pass forwards and backwards, and a sort of each layer; the data once before; two passes when it scores"
    pretrained = True
    eta: Tensor

    def __init__(self, *, share: float = 0.8, random_share: float = 0.965, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        if self.truncation.rho_norm:
            raise ValueError("UMAP masks a network that is trained already; train that one with SPCP instead.")
        self.share, self.random_share, self.seed = share, random_share, seed
        self.register_buffer("eta", torch.tensor(0.0))

    def prepare(self, network: Network, total_steps: int) -> None:
        """Freeze the network, and give each weight of its layers a random score, as the authors do."""
        network.requires_grad_(False)
        self.names = [
            f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)
        ]
        weights = dict(network.named_parameters())
        self.scores = nn.ParameterList([nn.Parameter(torch.empty_like(weights[name])) for name in self.names])
        for scores in self.scores:
            nn.init.kaiming_uniform_(scores, a=math.sqrt(5))
        for name, value in self._network_statistics(network).items():
            self.register_buffer(_flat(name), value.clone())

    @torch.no_grad()
    def begin(self, network: Network, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Set eta to the mean loss under a random mask, and start from the statistics of the trained network."""
        for name, value in self._network_statistics(network).items():
            getattr(self, _flat(name)).copy_(value)
        rng = torch.Generator().manual_seed(self.seed)
        weights = dict(network.named_parameters())
        masked = {}
        for name in self.names:
            noise = torch.rand(weights[name].shape, generator=rng).to(weights[name].device)
            masked[name] = weights[name] * top_share_mask(noise, self.random_share)
        training = network.training
        network.eval()
        total, count = 0.0, 0
        for x, y in batches:
            total += F.cross_entropy(functional_call(network, masked, (x,)), y, reduction="sum").item()
            count += len(y)
        network.train(training)
        self.eta.fill_(total / max(count, 1))

    def masked_weights(self, network: Network) -> dict[str, Tensor]:
        """Return the weights that the masked network runs with."""
        weights = dict(network.named_parameters())
        masked = {}
        for name, scores in zip(self.names, self.scores, strict=True):
            hard = top_share_mask(scores, self.share).to(scores.dtype)
            size = scores.abs()
            masked[name] = weights[name] * (hard + size - size.detach())  # straight through
        return masked

    def _network_statistics(self, network: Network) -> dict[str, Tensor]:
        """Return the buffers of the network's BatchNorm layers by name."""
        norms = {name for name, module in network.named_modules() if isinstance(module, _BatchNorm)}
        return {name: value for name, value in network.named_buffers() if name.rpartition(".")[0] in norms}

    def masked_state(self, network: Network) -> dict[str, Tensor]:
        """Return the weights and statistics that the masked network runs with; training updates the latter in place."""
        statistics = {name: getattr(self, _flat(name)) for name in self._network_statistics(network)}
        return self.masked_weights(network) | statistics

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits of the masked network."""
        z = functional_call(network, self.masked_state(network), (x,))
        return umap_loss(z, y, self.eta), z

    def outputs(self, network: Network, x: Tensor) -> Outputs:
        """Return features and logits of the masked network, and the class of the unmasked one."""
        seen: list[Tensor] = []
        hook = network.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        z = functional_call(network, self.masked_state(network), (x,))
        hook.remove()
        return Outputs(seen[0], z, self.predict(network, x))

    def predict(self, network: Network, x: Tensor) -> Tensor:
        """Return the class of the unmasked network."""
        return network(x).argmax(1)

    @torch.no_grad()
    def scoring_head(self, network: Network) -> nn.Linear:
        """Return the classifier, masked."""
        head = copy.copy(network.classifier)
        name = next(name for name, module in network.named_modules() if module is network.classifier)
        head._parameters = head._parameters.copy()
        del head._parameters["weight"]
        head.weight = self.masked_weights(network)[f"{name}.weight"]
        return head


def _flat(name: str) -> str:
    """Return a name for a buffer of the masked network; those of modules may have no dots."""
    return "masked_" + name.replace(".", "_")
