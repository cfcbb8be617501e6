"""The feature pass by two processes and by one, each with one thread.

    python benchmarks/distributed.py [--check] [--images 4096] [--times 5] [--out docs/scale/processes.md]

The script starts itself under torchrun. In turn, the first process makes a bank alone while the second waits, and then
both make the same bank together, each time in a new folder; what is timed begins and ends with a barrier. Starting
processes takes seconds and does not count. The features must be the same to the bit. Aim: two are at least 1.7 times as
fast as one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from timing import finish, machine, ratio

from spcp import bank, data, processes
from spcp.files import written
from spcp.model import ScoredModel
from spcp.networks import resnet18
from spcp.tables import to_markdown

AIM = 1.7
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
TRANSFORM = data.ImageTransform(32, 32, (0.5,) * 3, (0.25,) * 3, augment="none", flip=False)


def timed(model: ScoredModel, images: data.TensorSet) -> tuple[float, torch.Tensor]:
    """Seconds of a pass, by all processes that are joined, and the features."""
    with tempfile.TemporaryDirectory() as folder:
        folder = processes.gathered(folder)[0]
        processes.wait()
        start = time.perf_counter()
        made = bank.build_bank(model, images, TRANSFORM, folder=folder, batch_size=64)
        processes.wait()
        seconds = time.perf_counter() - start
        features = made.features
        processes.wait()
    return seconds, features


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when the aim is missed")
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "scale" / "processes.md")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        command = [sys.executable, *TORCHRUN, *sys.argv]
        sys.exit(subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bank.SHARD = 512  # rows: as many shards to share as 65 536 images have
    model = ScoredModel(resnet18(10, width=16).eval())
    x = torch.randint(0, 256, (arguments.images, 3, 32, 32), dtype=torch.uint8)
    images = data.TensorSet("images", x, torch.zeros(arguments.images, dtype=torch.int64))
    one, two = [], []
    for i in range(arguments.times + 1):  # the first to warm up
        if os.environ["RANK"] == "0":
            seconds, expected = timed(model, images)
            one.append(seconds)
        with processes.joined():
            seconds, features = timed(model, images)
            two.append(seconds)
        if os.environ["RANK"] == "0":
            assert torch.equal(features, expected)
            print(f"{i or 'warm-up':>8}{one[-1]:>8.2f} s{two[-1]:>8.2f} s", flush=True)
    if os.environ["RANK"] == "0":
        report(arguments, one[1:], two[1:])
    sys.stdout.flush()
    os._exit(0)  # at a usual end, torch's threads may abort the process


def report(arguments: argparse.Namespace, one: list[float], two: list[float]) -> None:
    """Print and write the table; exit 1 if the aim is missed and that matters."""
    faster = ratio(one, two)
    lines = [
        [
            name,
            f"{statistics.median(times):.2f}",
            f"{arguments.images / statistics.median(times):,.0f}",
            f"{factor:.2f}",
        ]
        for name, times, factor in (("one", one, 1.0), ("two", two, faster))
    ]
    note = (
        f"{machine()}; ResNet-18 of a quarter of the width, {arguments.images:,} images of 32 pixels, one thread a "
        f"process, medians of {arguments.times} passes in turn. Written by `benchmarks/distributed.py`.\n"
    )
    with written(arguments.out) as file:
        file.write(
            f"{to_markdown(['processes', 'seconds', 'images a second', 'times as fast'], lines)}\n{note}".encode()
        )
    print(f"two processes are {faster:.2f} times as fast as one")
    try:
        finish([f"{faster:.2f} times as fast, not {AIM}"] if faster < AIM else [], arguments.check)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))


if __name__ == "__main__":
    main()
