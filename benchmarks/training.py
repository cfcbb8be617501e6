"""The training loop against a plain, conventional one: the same network, data and number of epochs.

    python benchmarks/training.py --root DATA [--epochs 2] [--check]

The conventional loop is as released code trains: float32, a DataLoader with per-image Pillow transforms and 2 workers,
images in planes. Ours is `spcp.training`: channels_last, the loader of `spcp.data`; in float32, and in bfloat16 too
where the processor computes in it. They take turns, an epoch each. Quarter-width ResNet-18 on CIFAR-10. Aim: an epoch
at least 2.5 times as fast in the faster precision, and an accuracy within a point and a half in each.

The floor says what float32 leaves room for: the time that the arithmetic of an epoch takes at the speed of a large
matrix product.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from loading import PillowCifar
from timing import finish, machine
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from spcp import Run, config_for, data, train
from spcp.networks import resnet18

AIM, WIDTH, BATCH, SLACK = 2.5, 16, 128, 1.5


class Conventional:
    """A loop as in a tutorial, an epoch at a time."""

    def __init__(self, benchmark: data.Benchmark, epochs: int) -> None:
        assert isinstance(benchmark.train, data.TensorSet)
        assert isinstance(benchmark.transform, data.ImageTransform)
        torch.manual_seed(0)
        self.network = resnet18(10, width=WIDTH)
        usual: Any = DataLoader(PillowCifar(benchmark.train, benchmark.transform), BATCH, shuffle=True, num_workers=2)
        self.loader = usual
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs * len(usual))

    def epoch(self) -> None:
        self.network.train()
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.network(x), y)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            loss.item()


@torch.no_grad()
def accuracy(network: nn.Module, benchmark: data.Benchmark) -> float:
    network.eval()
    correct = sum(int((network(x).argmax(1) == y).sum()) for x, y in benchmark.loader("test", batch_size=500))
    return correct / len(benchmark.test) * 100


def precisions() -> list[str]:
    """Float32, and bfloat16 where the processor has instructions for it; elsewhere it is emulated, slowly."""
    flags = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else set()
    return ["32-true", *(["bf16-mixed"] if flags & {"avx512_bf16", "amx_bf16"} else [])]


def floor(images: int) -> tuple[float, float]:
    """Operations (1e12) of an epoch's forward and backward passes, and seconds at the speed of a matrix product."""
    network, x = resnet18(10, width=WIDTH), torch.randn(BATCH, 3, 32, 32)
    with FlopCounterMode(display=False) as counter:
        network(x).sum().backward()
    operations = counter.get_total_flops() * images / BATCH
    a = torch.randn(2048, 2048)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return operations / 1e12, operations / (2 * 2048**3) * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--root", required=True, help="folder that holds CIFAR-10")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    benchmark = data.load_benchmark("cifar10", arguments.root)
    usual = Conventional(benchmark, arguments.epochs)
    print(f"{machine()}\n{'epoch':<8}{'precision':<12}{'conventional':>14}{'spcp':>10}{'ratio':>8}")
    settings: dict[str, Any] = {"width": WIDTH, "epochs": arguments.epochs, "save_every": 1e9, "root": arguments.root}
    folders = {precision: Path(tempfile.mkdtemp()) for precision in precisions()}
    ratios: dict[str, list[float]] = {precision: [] for precision in folders}
    for epoch in range(arguments.epochs):
        start = time.perf_counter()
        usual.epoch()
        theirs = time.perf_counter() - start
        for precision, folder in folders.items():
            config = config_for("cifar10", "plain", precision=precision, **settings)
            run = train(config, folder, benchmark=benchmark, until=epoch + 1)
            ours = run.history[-1]["seconds"]
            ratios[precision].append(theirs / ours)
            print(f"{epoch + 1:<8}{precision:<12}{theirs:>12.1f} s{ours:>8.1f} s{theirs / ours:>7.2f}x", flush=True)
    operations, seconds = floor(len(usual.loader) * BATCH)
    print(f"floor in float32: {operations:.1f}e12 operations, {seconds:.0f} s")
    other, fastest = accuracy(usual.network, benchmark), max(map(min, ratios.values()))
    missed = [f"{fastest:.2f}x as fast, aim {AIM}x"] if fastest < AIM else []
    for precision, folder in folders.items():
        mine = accuracy(Run.open(folder).load().network, benchmark)
        print(f"test accuracy: conventional {other:.2f} %, spcp in {precision} {mine:.2f} %")
        if mine < other - SLACK:
            missed.append(f"accuracy {mine:.2f} % in {precision} against {other:.2f} %")
    finish(missed, arguments.check)


if __name__ == "__main__":
    main()
