"""KNN (Sun et al., 2022): the distance to the k-th nearest training sample, on the sphere."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from .. import processes
from ..bank import FeatureBank
from ..files import let_go
from .base import Score, unit

ROWS, COLUMNS, BLOCK = 2048, 1024, 16  # a tile of similarities, and how many are looked at together


@torch.no_grad()
def top_similarities(f: Tensor, bank: Tensor, k: int) -> Tensor:
    """Return the k largest of `f . bank_i` for each row of f, (B, k), in any order.

    The product is made in tiles, which pack well and take little memory. Of a tile, only what exceeds the smallest of a
    row's k best so far can change them: after the first few that is next to nothing; the maxima of blocks show where.
    """
    if torch.compiler.is_compiling() or not len(f) or not len(bank):
        return (f @ bank.t()).topk(k, 1, sorted=False).values
    buffer = f.new_empty(min(ROWS, len(f)) * min(COLUMNS, len(bank)))
    tops = []
    for rows in f.split(ROWS):
        best = f.new_empty(len(rows), 0)
        for part in bank.split(COLUMNS):
            tile = buffer[: len(rows) * len(part)].view(len(rows), len(part))
            best = _better(best, torch.mm(rows, part.t(), out=tile), k)
            let_go(part)
        tops.append(best)
    return torch.cat(tops)


def _better(best: Tensor, tile: Tensor, k: int) -> Tensor:
    """Return the k largest of each row of both, or all if there are fewer."""
    if best.shape[1] < k or tile.shape[1] % BLOCK:
        both = torch.cat([best, tile], 1) if best.shape[1] else tile
        return both.topk(min(k, both.shape[1]), 1, sorted=False).values
    floor = best.amin(1)
    grid = tile.view(len(tile), BLOCK, -1)
    row, block = (grid.amax(1) > floor[:, None]).nonzero(as_tuple=True)
    values = grid[row, :, block]  # (blocks that hold something, BLOCK)
    which, place = (values > floor[row, None]).nonzero(as_tuple=True)
    row = row[which]  # still in order
    count = torch.bincount(row, minlength=len(tile))
    start = count.cumsum(0) - count
    better = best.new_full((len(tile), int(count.max())), -torch.inf)
    better[row, torch.arange(len(row), device=row.device) - start[row]] = values[which, place]
    return torch.cat([best, better], 1).topk(k, 1, sorted=False).values


class KNN(Score):
    """Minus the squared distance; on the sphere that is `2 f . f_(k) - 2`."""

    paper = "Out-of-Distribution Detection with Deep Nearest Neighbors (KNN), ICML 2022"
    formula = "-||f - f_(k)||^2, f = h / ||h||"
    cost = "one pass; a matrix product of B x N x D, in tiles; keeps all N training features"
    ranges = {"k": (1, math.inf)}
    sweep = {"k": (50, 100, 200, 500, 1000)}
    fitted_on = ("train",)
    state = ("bank",)
    rows = ROWS
    bank: Tensor

    def __init__(self, *, k: int = 50) -> None:
        super().__init__()
        self.k = k

    def fit(self, data: FeatureBank, head: nn.Linear) -> Self:
        """Keep the training features, scaled to length 1."""
        self.bank, self.spread = data.rows(lambda part: unit(part.features)).to(head.weight.device), data.is_spread
        return self

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Return minus the squared distance to the k-th nearest training sample, (B,)."""
        f = unit(h)  # of length 1, or 0 for a sample without any features on
        near = top_similarities(f, self.bank, min(self.k, len(self.bank)))  # (B, k)
        if self.spread:  # what each process has found; of that, the k largest
            near = torch.cat(processes.gathered(near.cpu()), 1).to(f.device)
            near = near.topk(min(self.k, near.shape[1]), 1, sorted=False).values
        return 2 * near.amin(1) - 1 - f.square().sum(1)
