"""Read every data set below a folder through the public interface, and check counts and labels.

    python benchmarks/sets.py ROOT [--check]

ROOT holds official files as they unpack; what is not there is left out. Sets that are often distributed in part
(SVHN's test set, Textures) are checked for what holds of any part.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from timing import finish

from spcp import data

MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def even(each: int, num_classes: int) -> Callable[[dict[str, int]], bool]:
    """Return a check for so many of each class."""
    return lambda counts: len(counts) == num_classes and set(counts.values()) == {each}


# Folder: how it is read, how many there are at most, and what the labels must look like.
SETS: dict[str, tuple[Callable[[Path], data.DataSet], int, Callable[[dict[str, int]], bool]]] = {
    "cifar-10-batches-bin train": (lambda p: data.read_cifar(p, "train"), 50_000, even(5000, 10)),
    "cifar-10-batches-bin test": (lambda p: data.read_cifar(p, "test"), 10_000, even(1000, 10)),
    "cifar-100-binary train": (lambda p: data.read_cifar(p, "train"), 50_000, even(500, 100)),
    "cifar-100-binary test": (lambda p: data.read_cifar(p, "test"), 10_000, even(100, 100)),
    "tiny-imagenet-200 test": (lambda p: data.read_tin(p, "test"), 10_000, even(50, 200)),
    "MNIST/raw test": (
        lambda p: data.read_mnist(p, "test"),
        10_000,
        lambda counts: list(counts.values()) == MNIST_TEST,
    ),
    "svhn/test_32x32.mat": (
        data.read_svhn,
        26_032,
        lambda counts: len(counts) == 10 and max(counts, key=counts.__getitem__) == "1",
    ),
    "dtd": (data.read_texture, 5640, lambda counts: set(counts.values()) == {120}),
    "places365": (data.read_places365, 36_500, lambda counts: len(counts) in (1, 365)),
    "free-spoken-digits/recordings": (lambda p: data.read_folder(p, label=r"^(\d)_"), 3000, even(300, 10)),
    "esc-50/audio": (lambda p: data.read_folder(p, label=r"-(\d+)\.wav$"), 2000, lambda counts: len(counts) == 50),
}


def spoken_digits(root: Path) -> data.Benchmark:
    """Spoken digits against the sounds of ESC-50, as log-mel spectrograms."""
    digits = data.read_folder(root / "free-spoken-digits/recordings", label=r"^(\d)_")
    transform = data.AudioTransform(sample_rate=8000, seconds=1.0, mels=40)
    return data.make_benchmark(digits, {"esc-50": root / "esc-50/audio"}, transform=transform, name="spoken digits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--check", action="store_true", help="exit 1 when something is not as it should be")
    arguments = parser.parse_args()
    missed = []
    print(f"{'set':<32}{'samples':>9}{'of':>8}{'classes':>9}{'a class':>16}{'seconds':>9}")
    for name, (read, count, right) in SETS.items():
        path = arguments.root / name.split()[0]
        if not path.exists():
            continue
        start = time.perf_counter()
        try:
            samples = read(path)
        except data.DataError as error:
            print(f"{name:<32}left out: {error}")
            continue
        counts = data.histogram(samples)
        each = f"{min(counts.values())} - {max(counts.values())}"
        seconds = time.perf_counter() - start
        print(f"{name:<32}{len(samples):>9}{count:>8}{len(counts):>9}{each:>16}{seconds:>9.2f}")
        if len(samples) > count or not right(counts):
            missed.append(f"{name}: {len(samples)} samples, {counts}")

    loaders: dict[str, Callable[[], data.Benchmark]] = {
        "cifar10": lambda: data.load_benchmark("cifar10", arguments.root),
        "cifar100": lambda: data.load_benchmark("cifar100", arguments.root),
        "spoken digits": lambda: spoken_digits(arguments.root),
    }
    for name, load in loaders.items():
        try:
            benchmark = load()
        except data.DataError as error:
            print(f"\n{name} left out: {error}")
            continue
        print(f"\n{benchmark.summary()}")
        for role, samples in benchmark.sets().items():
            loader = data.Loader(samples, benchmark.transform_of(role), batch_size=512)
            seen = [(len(y), float(x.mean()), float(x.std())) for x, y in loader]
            if sum(n for n, *_ in seen) != len(samples):
                missed.append(f"{name} {role}: {sum(n for n, *_ in seen)} of {len(samples)} samples loaded")
            if (
                role == "train"
                and name.startswith("cifar")
                and abs(statistics.mean(mean for _, mean, _ in seen)) > 0.02
            ):
                missed.append(f"{name} {role}: normalised images should have mean 0")
    finish(missed, arguments.check)


if __name__ == "__main__":
    main()
