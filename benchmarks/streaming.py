"""A million rows through `fit` of the scores that need moments or percentiles only: does memory stay flat?

    python benchmarks/streaming.py [--check] [--rows 1000000] [--size 256]

The rows are made when they are needed. Peak memory is that of fitting, on top of what there was, for a tenth of the
rows and for all. Aim: all take at most 32 MB more than a tenth, which a copy of the rows would exceed many times.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from memory import peak
from timing import finish, machine
from torch import nn

from spcp import scores
from spcp.bank import SHARD, FeatureBank, Part

K, SLACK = 100, 32.0


class Rows(Sequence[Part]):
    """Parts that are drawn again each time."""

    def __init__(self, rows: int, size: int, head: nn.Linear) -> None:
        self.rows, self.size, self.head = rows, size, head
        self.centre = torch.randn(K, size, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return -(-self.rows // SHARD)

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(i)
        n = min(SHARD, self.rows - i * SHARD)
        rng = torch.Generator().manual_seed(i + 1)
        y = torch.randint(K, (n,), generator=rng)
        h = (torch.randn(n, self.size, generator=rng) + self.centre[y]).relu_()
        with torch.no_grad():
            z = self.head(h)
        return Part(h, z, y, z.argmax(1))

    def __iter__(self) -> Iterator[Part]:
        return (self[i] for i in range(len(self)))


def fitted(kind: type[scores.Score], rows: int, size: int, head: nn.Linear) -> scores.Score:
    data = FeatureBank(Rows(rows, size, head))
    return kind().fit(data, head).fit_held_out(data, head)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when the aim is missed")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=256)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    head = nn.Linear(arguments.size, K)
    missed = []
    size = arguments.rows * arguments.size * 4 / 1e6
    print(f"{machine()}\n{arguments.rows} rows of {arguments.size} floats, {size:.0f} MB")
    print(f"{'score':<22}{'a tenth':>12}{'all':>12}{'seconds':>10}")
    kinds: list[type[scores.Score]] = [
        scores.Mahalanobis,
        scores.RelativeMahalanobis,
        scores.DICE,
        scores.ITP,
        scores.SHE,
        scores.FDBD,
        scores.NCI,
        scores.ViM,
        scores.ReAct,
        scores.VRA,
        scores.KLM,
    ]
    for kind in kinds:
        memory = []
        for rows in (arguments.rows // 10, arguments.rows):
            start = time.perf_counter()
            fit = functools.partial(fitted, kind, rows, arguments.size, head)
            memory.append(peak(fit))
            seconds = time.perf_counter() - start
        print(f"{kind.__name__:<22}{memory[0]:>9.0f} MB{memory[1]:>9.0f} MB{seconds:>8.1f} s", flush=True)
        if memory[1] > memory[0] + SLACK:
            missed.append(f"{kind.__name__}: {memory[1]:.0f} MB for all, {memory[0]:.0f} MB for a tenth")
    finish(missed, arguments.check)


if __name__ == "__main__":
    main()
