"""The training loop against a plain, conventional one: the same network, data and number of epochs.

    python benchmarks/training.py --root DATA [--epochs 2] [--check]

The conventional loop is as released code trains: float32, a DataLoader with per-image Pillow transforms and 2 workers,
images in planes. Ours is `spcp.training`: channels_last, the loader of `spcp.data`; in float32, and in bfloat16 too
where the processor computes in it. They take turns, an epoch each. Quarter-width ResNet-18 on CIFAR-10. Aim: an epoch
at least 2.5 times as fast in the faster precision, and an accuracy within a point and a half in each.

The floor says what float32 leaves room for: the time that the arithmetic of an epoch takes at the speed of a large
matrix product.

    python benchmarks/training.py --root DATA --accuracy

compares something else: how long `spcp reproduce --budget cpu` trains until the network knows 92 % and 94 % of the test
images, and how long a conventional loop with a whole ResNet-18 would. Both epochs are extrapolated, ours from a tenth
of the images, the other from a few steps. The epochs it takes us are those of the trained networks whose records are in
docs/results. The other loop is not trained: its time is given for as many epochs, and for the paper's 100 (95.1 %).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from loading import PillowCifar
from timing import finish, machine
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from spcp import Run, config_for, data, train
from spcp.experiments import BUDGETS, Record
from spcp.networks import resnet18

AIM, WIDTH, BATCH, SLACK = 2.5, 16, 128, 1.5


class Conventional:
    """A loop as in a tutorial, an epoch at a time."""

    def __init__(self, benchmark: data.Benchmark, epochs: int, width: int = WIDTH) -> None:
        assert isinstance(benchmark.train, data.TensorSet)
        assert isinstance(benchmark.transform, data.ImageTransform)
        torch.manual_seed(0)
        self.network = resnet18(10, width=width)
        usual: Any = DataLoader(PillowCifar(benchmark.train, benchmark.transform), BATCH, shuffle=True, num_workers=2)
        self.loader = usual
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs * len(usual))

    def epoch(self) -> None:
        for _ in self.steps(len(self.loader)):
            pass

    def steps(self, count: int) -> Iterator[None]:
        """Take the first steps of an epoch."""
        self.network.train()
        for x, y in islice(self.loader, count):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.network(x), y)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            loss.item()
            yield


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


def epochs_by_accuracy(aims: tuple[float, ...]) -> dict[float, int | None]:
    """The fewest epochs after which plain networks of the budget cpu know so many test images, by their records."""
    accuracies: dict[int, list[float]] = {}
    for path in (Path(__file__).parents[1] / "docs/results/cpu/runs/cifar10").glob("plain*/seed-*/record.json"):
        record = Record.read(path)
        if record.config.augment != "none" and "energy trained" in record.measured:
            accuracy = record.measured["energy trained"]["values"]["accuracy"]
            accuracies.setdefault(record.config.epochs, []).append(100 * accuracy)
    means = {epochs: sum(values) / len(values) for epochs, values in sorted(accuracies.items())}
    return {aim: next((epochs for epochs, mean in means.items() if mean >= aim), None) for aim in aims}


def compare_to_accuracy(benchmark: data.Benchmark, root: str, share: int = 10, steps: int = 6) -> None:
    """Print seconds an epoch, ours and the conventional, and what follows for 92 % and 94 %."""
    assert benchmark.train is not None
    images = len(benchmark.train)
    settings = {**BUDGETS["cpu"].settings["cifar10"], "epochs": 3, "warmup": 1, "images": images // share}
    config = config_for("cifar10", "plain", **settings, save_every=1e9, root=root)
    run = train(config, tempfile.mkdtemp(), benchmark=benchmark)
    ours = statistics.median(record["seconds"] for record in run.history[1:]) * share
    usual, times = Conventional(benchmark, 100, width=64), []
    for _ in usual.steps(steps + 2):
        times.append(time.perf_counter())
    theirs = statistics.median(b - a for a, b in pairwise(times[1:])) * images / BATCH
    print(f"{machine()}\nwhitened_cnn in {config.precision}: {ours:.0f} s an epoch, extrapolated from 1/{share} of it")
    print(f"ResNet-18, conventional, float32: {theirs:.0f} s an epoch, extrapolated from {steps} steps")
    print(f"its 100 epochs, as in the paper: {100 * theirs / 3600:.1f} h")
    for aim, epochs in epochs_by_accuracy((92.0, 94.0)).items():
        if epochs is None:
            print(f"{aim:g} %: no network that is recorded knows as much")
        else:
            told = f"{epochs * ours / 60:.0f} minutes; the other loop needs {epochs * theirs / 3600:.1f} h for as many"
            print(f"{aim:g} %: {epochs} epochs, {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--root", required=True, help="folder that holds CIFAR-10")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accuracy", action="store_true", help="time to 92 and 94 percent instead")
    arguments = parser.parse_args()
    benchmark = data.load_benchmark("cifar10", arguments.root)
    if arguments.accuracy:
        compare_to_accuracy(benchmark, arguments.root)
        return
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
