"""A small run, for tests that start it as a process.

python training_run.py FOLDER METHOD[+RHO_NORM] EPOCHS NETWORK [STRATEGY [UNTIL]]
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spcp import config as settings
from spcp import data, files, networks, training
from spcp.files import written
from spcp.training import loop
from spcp.training.state import TrainingState

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


def config(method: str, epochs: int, **changes: object) -> settings.Config:
    usual = {"epochs": epochs, "batch_size": 24, "network": "cnn", "width": 4, "lr": 0.02, "save_every": 0.0}
    return config_for("digits", method, **(usual | changes))


def config_for(benchmark: str, method: str = "plain", **changes: Any) -> settings.Config:
    """The library's settings, in the precision that is tested."""
    return settings.config_for(benchmark, method, **({"precision": PRECISION} | changes))


def prepare_to_die(where: str, count: int) -> None:
    left = itertools.count(1)

    def die_at(place: str) -> None:
        if place == where and next(left) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    add, replace, save = TrainingState.add, os.replace, files.write_tensors

    def dying_add(self: TrainingState, *arguments: torch.Tensor) -> None:
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

    TrainingState.add, os.replace, files.write_tensors = dying_add, dying_replace, dying_save


def main(*arguments: str, variables: Mapping[str, str] | None = None, streams: Mapping[int, str] | None = None) -> None:
    """Train; `variables` are added to the environment, and `streams` are files or terminals to write to instead."""
    folder, method, epochs, network, *rest = arguments
    os.environ.update(variables or {})
    for number, path in (streams or {}).items():
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    strategy, until = rest[0] if rest else "auto", int(rest[1]) if rest[1:] else None
    torch.set_num_threads(1)
    loop.LOOK = 0.0  # so that every step may be saved
    if "DIE" in os.environ:
        where, _, count = os.environ["DIE"].partition(":")
        prepare_to_die(where, int(count))
    torch.manual_seed(0)
    given = networks.mlp(4, inputs=144, width=32) if network == "mlp" else None
    name, _, rho_norm = method.partition("+")
    changes = {"rho_norm": float(rho_norm)} if rho_norm else {}
    training.train(
        config(name, int(epochs), **changes),
        folder,
        benchmark=benchmark(),
        network=given,
        strategy=strategy,
        until=until,
    )
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # at a usual end, torch's threads sometimes abort the process: "terminate called without ..."


if __name__ == "__main__":
    main(*sys.argv[1:])
