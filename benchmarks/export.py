"""What a truncating head costs in an exported file, and what int8 does to a detector.

    python benchmarks/export.py [--check]
    python benchmarks/export.py --run RUN [--samples 1000]

The first exports a ResNet-50 with 1000 classes (D = 2048, random weights) twice, with a plain head and with one that
truncates, and runs both files in onnxruntime, in turn, with one thread. The images have 64 x 64 pixels: the smaller the
network's share, the stricter the test. The threshold is where a quarter of a sample's features have a contribution
that is truncated. The head and score alone are timed as well. The aim is at most 1.1 times the latency.

The second exports the detector of a run in float32 and in int8, each calibrated as it is shipped, and shows accuracy,
the share of predictions that are those of float32, false alarm rate, detection rate and latency of each file, on so
many samples of each test set.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from timing import finish, interleaved, machine, ratio
from torch import Tensor, nn

from spcp import Detector, Run, apply_spcp
from spcp.data import Benchmark, DataSet, take
from spcp.exported import ExportedDetector
from spcp.shipping import export_run, flagged_by_file

K, D, AIM = 1000, 2048, 1.1
TRUNCATED = 0.25  # share of features


class Bottleneck(nn.Module):
    """The block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


def resnet50() -> nn.Sequential:
    blocks, inputs = [], 64
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            blocks.append(Bottleneck(inputs, width, first if i == 0 else 1))
            inputs = 4 * width
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(D, K))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--seconds", type=float, default=40, help="for each row")
    parser.add_argument("--run", type=Path, help="a calibrated run, to compare float32 and int8")
    parser.add_argument("--samples", type=int, help="of each test set, with --run; default: all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}, one thread\n")
    if arguments.run:
        compare_int8(Run.open(arguments.run), arguments.seconds, arguments.samples)
    else:
        finish(compare_heads(arguments.seconds), arguments.check)


def compare_heads(seconds: float) -> list[str]:
    torch.manual_seed(0)
    network, x = resnet50(), torch.randn(64, 3, 64, 64)
    with torch.no_grad():
        for _ in range(2):
            network(x[:16])  # in training mode: normalisation layers see something
        h = network.eval()[:-1](x[:32])
    head: Any = apply_spcp(nn.Sequential(network[-1]), rho_norm=1.0)[0]
    with torch.no_grad():
        head.threshold.fill_((h * head.weight.amax(0)).quantile(1 - TRUNCATED, 1).mean())  # features are not below 0
    head.updates.fill_(1)
    network[-1] = head
    missed = []
    print("| | batch | plain head, ms | truncating head, ms | ratio | passes |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for what, model, data in (("network", network, x), ("head and score alone", nn.Sequential(head), features(h))):
            files = [exported(model, data, truncate, Path(folder)) for truncate in (False, True)]
            for batch in (1, 64):
                samples = data[:batch].numpy()
                times = interleaved([calls(file, samples) for file in files], seconds)
                plain, truncating = (1000 * statistics.median(t) for t in times)
                factor = ratio(times[1], times[0])
                print(f"| {what} | {batch} | {plain:.2f} | {truncating:.2f} | {factor:.3f} | {len(times[0])} |")
                if what == "network" and factor > AIM:
                    missed.append(f"batch {batch}: {factor:.3f} times as long as with a plain head, aim {AIM}")
    return missed


def features(h: Tensor) -> Tensor:
    return torch.cat([h, h.flip(0)])


def exported(model: nn.Module, data: Tensor, truncate: bool, folder: Path) -> ExportedDetector:
    detector = Detector(model, "energy", truncate=truncate).calibrate(data)
    path = detector.export(folder / f"{truncate}.onnx", data[:2])
    return ExportedDetector.open(path, threads=1)


def calls(file: ExportedDetector, samples: np.ndarray) -> Callable[[], object]:
    return lambda: file.detect(samples)


def smaller(benchmark: Benchmark, samples: int | None) -> Benchmark:
    """The benchmark with so many samples of each set that is tested, spread over it."""

    def some(images: DataSet) -> DataSet:
        if samples is None or len(images) <= samples:
            return images
        return take(images, torch.linspace(0, len(images) - 1, samples).round().long())

    groups = {
        group: {name: some(images) for name, images in getattr(benchmark, group).items()}
        for group in ("near", "far", "shifted")
    }
    return dataclasses.replace(benchmark, test=some(benchmark.test), **groups)  # type: ignore[arg-type]


def compare_int8(run: Run, seconds: float, samples: int | None) -> None:
    benchmark = smaller(run.benchmark(), samples)
    with tempfile.TemporaryDirectory() as folder:
        kinds: Any = {"float32": None, "int8, dynamic": "dynamic", "int8, static": "static"}
        paths = {
            name: export_run(run, Path(folder) / f"{kind}.onnx", int8=kind, benchmark=benchmark)
            for name, kind in kinds.items()
        }
        files = {name: ExportedDetector.open(path, threads=1) for name, path in paths.items()}
        batches = [x.numpy() for x, _ in benchmark.loader("test", batch_size=64)]
        x, predictions = batches[0], {}
        latency = {b: interleaved([calls(file, x[:b]) for file in files.values()], seconds) for b in (1, 64)}
        print("| file | MB | accuracy | as float32 | flagged: test | near-OOD | far-OOD | batch 1, ms | batch 64, ms |")
        print("|---|---|---|---|---|---|---|---|---|")
        for i, (name, file) in enumerate(files.items()):
            rows = flagged_by_file(file, benchmark)
            of = {
                kind: [r["flagged"] for r in rows if r["dataset"].startswith(kind)]
                for kind in ("test", "near/", "far/")
            }
            shares = " | ".join(f"{100 * statistics.mean(values):.1f} %" if values else "-" for values in of.values())
            times = " | ".join(f"{1000 * statistics.median(latency[b][i]):.3f}" for b in (1, 64))
            predictions[name] = np.concatenate([file.detect(batch).predictions for batch in batches])
            same = f"{100 * (predictions[name] == predictions['float32']).mean():.1f} %"
            size = paths[name].stat().st_size / 1e6
            print(f"| {name} | {size:.2f} | {100 * rows[0]['accuracy']:.1f} % | {same} | {shares} | {times} |")


if __name__ == "__main__":
    main()
