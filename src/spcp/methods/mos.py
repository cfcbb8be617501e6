"""MOS (Huang and Li, 2021): classes in groups, each group with a class "others"."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..networks import Network
from .base import Method, Outputs

Groups = Sequence[Sequence[int]]


def group_columns(groups: Groups) -> list[slice]:
    """Return where each group's logits are: first "others", then its classes in their order.

    >>> group_columns([[0, 1], [2]])
    [slice(0, 3, None), slice(3, 5, None)]
    """
    ends = accumulate(len(group) + 1 for group in groups)
    return [slice(end - len(group) - 1, end) for group, end in zip(groups, ends, strict=True)]


def mos_loss(z: Tensor, y: Tensor, groups: Groups) -> Tensor:
    """Return the sum over groups of `CE(z_group, y if it is in the group else others)`."""
    losses = []
    for group, columns in zip(groups, group_columns(groups), strict=True):
        target = torch.zeros_like(y)  # others
        for place, k in enumerate(group, 1):
            target[y == k] = place
        losses.append(F.cross_entropy(z[:, columns], target))
    return torch.stack(losses).sum()


def mos_score(z: Tensor, groups: Groups) -> Tensor:
    """Return `max_g -p_others`, (B,)."""
    return torch.stack([-z[:, columns].softmax(1)[:, 0] for columns in group_columns(groups)]).amax(0)


def mos_class_scores(z: Tensor, groups: Groups) -> Tensor:
    """Return the probability of each class within its group, (B, K)."""
    order = torch.tensor([k for group in groups for k in group], device=z.device)
    scores = torch.cat([z[:, columns].softmax(1)[:, 1:] for columns in group_columns(groups)], 1)
    return scores[:, order.argsort()]


class MOS(Method):
    """`sum_g CE(z_g, y if it is in g else others)`; the classifier gets a column "others" for each group.

    Args:
        groups: lists of class numbers; by default about sqrt(K) groups of neighbours.
        options: `truncation`, see `Method`.
    """

    paper = "MOS: Towards Scaling Out-of-Distribution Detection for Large Semantic Space, CVPR 2021"
    cost = "one pass forwards and backwards; a softmax in each group"
    score = "mos"
    readable = ("outputs",)  # its logits belong to several softmaxes

    def __init__(self, *, groups: Groups | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.groups: Groups = groups or []

    def num_classes(self, network: Network) -> int:
        """Return how many classes are in groups."""
        return sum(map(len, self.groups))

    def prepare(self, network: Network, total_steps: int) -> None:
        """Give the classifier a column for each class and for each group."""
        old = network.classifier
        num_classes = old.out_features
        if not self.groups:
            count = max(1, round(num_classes**0.5))
            self.groups = [part.tolist() for part in torch.arange(num_classes).tensor_split(count)]
        if sorted(k for group in self.groups for k in group) != list(range(num_classes)):
            raise ValueError(f"groups must hold each of the {num_classes} classes once.")
        network.classifier = nn.Linear(old.in_features, num_classes + len(self.groups), device=old.weight.device)
        super().prepare(network, total_steps)

    @property
    def score_options(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the groups, which the score needs."""
        return {"groups": [list(group) for group in self.groups]}

    def outputs(self, network: Network, x: Tensor) -> Outputs:
        """Return features, logits with a column "others" for each group, and the class most probable in its group."""
        h = network.forward_features(x)
        z = network.classifier(h)
        return Outputs(h, z, mos_class_scores(z, self.groups).argmax(1))

    def forward(self, network: Network, x: Tensor, y: Tensor, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss, and the probability of each class within its group."""
        z = network(x)
        return mos_loss(z, y, self.groups), mos_class_scores(z.detach(), self.groups)
