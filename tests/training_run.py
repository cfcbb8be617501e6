"""A small run, for tests that start it as a process.

python training_run.py FOLDER METHOD EPOCHS NETWORK [STRATEGY [UNTIL]]
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from spcp import data, networks, training
from spcp.files import written
from spcp.training import loop, run

PRECISION = os.environ.get("SPCP_TEST_PRECISION", "32-true")  # the test matrix asks for bf16-mixed too


def benchmark(count: int = 240) -> data.Benchmark:
    """Blobs of light in one of four corners, 12 x 12 pixels."""
    rng = torch.Generator().manual_seed(0)

    def part(n: int) -> data.TensorSet:
        y = torch.arange(n) % 4
        x = torch.randint(0, 120, (n, 1, 12, 12), generator=rng, dtype=torch.uint8)
        for i, k in enumerate(y.tolist()):
            x[i, 0, 6 * (k // 2) : 6 * (k // 2) + 6, 6 * (k % 2) : 6 * (k % 2) + 6] += 100
        return data.TensorSet("corners", x, y, tuple("abcd"))

    transform = data.ImageTransform(12, 12, (0.3,), (0.25,), padding=1, flip=False)
    return data.Benchmark("corners", transform, tuple("abcd"), part(count), part(40), part(40))


def config(method: str, epochs: int, **changes: object) -> training.Config:
    settings = {"epochs": epochs, "batch_size": 24, "network": "cnn", "width": 4, "lr": 0.02, "save_every": 0.0}
    return config_for("digits", method, **(settings | changes))


def config_for(benchmark: str, method: str = "plain", **changes: Any) -> training.Config:
    """The library's settings, in the precision that is tested."""
    return training.config_for(benchmark, method, **({"precision": PRECISION} | changes))


def prepare_to_die(where: str, count: int) -> None:
    left = itertools.count(1)

    def die_at(place: str) -> None:
        if place == where and next(left) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    add, replace, save = run.Run.add, os.replace, run.save

    def dying_add(self: run.Run, *arguments: torch.Tensor) -> None:
        die_at("step")
        add(self, *arguments)

    def dying_replace(old: str, new: Path) -> None:
        die_at("replace")
        replace(old, new)
        die_at("replaced")

    def dying_save(path: Path, *arguments: object) -> None:
        if where == "write" and next(left) == count:
            with written(path) as file:
                file.write(b"half of it")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        save(path, *arguments)

    run.Run.add, os.replace, run.save = dying_add, dying_replace, dying_save


def main() -> None:
    folder, method, epochs, network, *rest = sys.argv[1:]
    strategy, until = rest[0] if rest else "auto", int(rest[1]) if rest[1:] else None
    torch.set_num_threads(1)
    loop.LOOK = 0.0  # so that every step may be saved
    if "DIE" in os.environ:
        where, _, count = os.environ["DIE"].partition(":")
        prepare_to_die(where, int(count))
    torch.manual_seed(0)
    own = networks.mlp(4, inputs=144, width=32) if network == "mlp" else None
    settings = config(method, int(epochs))
    training.train(settings, Path(folder), benchmark=benchmark(), network=own, strategy=strategy, until=until)


if __name__ == "__main__":
    main()
