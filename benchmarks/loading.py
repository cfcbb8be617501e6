"""How fast batches come, beside the usual DataLoader with per-image Pillow transforms, in one run.

    python benchmarks/loading.py [--check] [--root DATA] [--seconds 20]

1. Augmented CIFAR-10 batches of 128 (flip, crop with padding 4, normalised), against a DataLoader with 0 and 2 workers.
   With --root, the real CIFAR-10; else random pixels, which take as long. Aim: 20 times as many images per second.
2. What a batch costs beside a training step of the quarter-width ResNet-18. Aim: less than 2 %.
3. JPEG files (500 x 375, patches of photographs) at 224 pixels, training and test transform, against a DataLoader with
   as many workers and the usual chain in Pillow. Aim: not slower.

The contenders take turns of a second or more, after a pause in which workers fill their queues. So a turn of a
DataLoader with workers starts with what they prefetched, which favours it a little.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from timing import finish, interleaved, machine
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from spcp import data
from spcp.data.embedded import photograph_files
from spcp.data.images import random_box
from spcp.networks import resnet18

BATCH, CIFAR_AIM, STEP_AIM, FOLDER_AIM = 128, 20.0, 0.02, 1.0


class PillowCifar(Dataset[tuple[Tensor, int]]):
    """CIFAR-10 as it is usually loaded: an image at a time."""

    def __init__(self, images: data.TensorSet, transform: data.ImageTransform) -> None:
        self.x, self.y = images.x.permute(0, 2, 3, 1).contiguous().numpy(), images.y.tolist()
        self.mean, self.std = (torch.tensor(v).view(3, 1, 1) for v in (transform.mean, transform.std))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.x[i])
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        left, top = random.randint(0, 8), random.randint(0, 8)
        image = ImageOps.expand(image, 4).crop((left, top, left + 32, top + 32))
        return (to_tensor(image) - self.mean) / self.std, self.y[i]


class PillowFolder(Dataset[tuple[Tensor, int]]):
    """Files as they are usually loaded: decode, transform, to tensor and normalise, an image at a time."""

    def __init__(self, files: data.FileSet, transform: data.ImageTransform, train: bool) -> None:
        self.paths, self.y = [files.root / path for path in files.paths], files.y.tolist()
        self.transform, self.train = transform, train
        self.mean, self.std = (torch.tensor(v).view(3, 1, 1) for v in (transform.mean, transform.std))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image: Any = Image.open(self.paths[i]).convert("RGB")
        size = self.transform.crop
        if self.train:
            image = image.crop(random_box(image.width, image.height, np.random.default_rng()))
            image = image.resize((size, size), Image.Resampling.BILINEAR)
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            short = min(image.size)
            width, height = (int(self.transform.resize * side / short) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BILINEAR)
            left, top = (width - size) // 2, (height - size) // 2
            image = image.crop((left, top, left + size, top + size))
        return (to_tensor(image) - self.mean) / self.std, self.y[i]


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)


def endless(batches: Callable[[], Any]) -> Iterator[Any]:
    while True:
        yield from batches()


def rates(loaders: dict[str, Any], batch: int, seconds: float, least: float = 1.0) -> dict[str, float]:
    """Images per second of each contender: the median over turns of `least` seconds."""
    streams = {name: endless(lambda loader=loader: iter(loader)) for name, loader in loaders.items()}  # type: ignore[misc]
    turns: dict[str, list[float]] = {name: [] for name in loaders}
    for stream in streams.values():
        next(stream)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, stream in streams.items():
            time.sleep(0.3)
            count, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < least:
                x, _ = next(stream)
                x.flatten()[::1024].sum()  # of every page: shared memory that nobody looks at has not really come
                count += batch
            turns[name].append(count / passed)
    return {name: statistics.median(measured) for name, measured in turns.items()}


def table(title: str, measured: dict[str, float]) -> None:
    ours = next(iter(measured.values()))
    print(f"\n{title}")
    for name, rate in measured.items():
        print(f"  {name:<42}{rate:>12,.0f} images/s{ours / rate:>9.2f}x")


def cifar(root: str | None) -> tuple[data.TensorSet, str]:
    if root:
        return data.read_cifar(Path(root) / "cifar-10-batches-bin", "train"), "CIFAR-10"
    x = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    return data.TensorSet("random", x, torch.arange(50_000) % 10), "50 000 random images of CIFAR-10's size"


def step_of(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def write_photographs(folder: Path, count: int) -> None:
    """Write JPEGs of ImageNet's usual size, crops of the photographs that come with scikit-image and scikit-learn."""
    pictures = [Image.open(file).convert("RGB") for file in photograph_files()]
    rng = random.Random(0)
    for i in range(count):
        picture = pictures[i % len(pictures)]
        width = rng.randint(min(picture.width, 300), picture.width)
        height = min(picture.height, round(width * 3 / 4))
        left, top = rng.randint(0, picture.width - width), rng.randint(0, picture.height - height)
        patch = picture.crop((left, top, left + width, top + height)).resize((500, 375), Image.Resampling.BICUBIC)
        path = folder / f"class{i % 4}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        patch.save(path, quality=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--root", help="folder that holds cifar-10-batches-bin")
    parser.add_argument("--seconds", type=float, default=20, help="for each of the comparisons")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    missed = []
    print(machine())

    images, what = cifar(arguments.root)
    transform = data.BENCHMARKS["cifar10"].transform
    pillow = PillowCifar(images, transform)
    contenders = {"spcp.data.Loader": data.Loader(images, transform, batch_size=BATCH, train=True)}
    for workers in (0, 2):
        usual: Any = DataLoader(pillow, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
        contenders[f"DataLoader, Pillow, {workers} workers"] = usual
    measured = rates(contenders, BATCH, arguments.seconds)
    table(f"Augmented batches of {BATCH}, {what}:", measured)
    ours, *others = measured.values()
    if ours < CIFAR_AIM * max(others):
        missed.append(f"CIFAR-10: {ours / max(others):.1f}x, aim {CIFAR_AIM:g}x")

    loader = contenders["spcp.data.Loader"]
    x, y = next(iter(loader))
    batches = endless(lambda: iter(loader))
    times = interleaved([lambda: next(batches), step_of(resnet18(10, width=16).train(), x, y)], arguments.seconds)
    batch, step = (statistics.median(t) for t in times)
    print(f"\nA batch takes {batch * 1e3:.2f} ms, a training step of the quarter-width ResNet-18 {step * 1e3:.0f} ms")
    print(f"  {batch / step:.2%} of the step (float32)")
    if batch > STEP_AIM * step:
        missed.append(f"a batch is {batch / step:.2%} of a step, aim {STEP_AIM:.0%}")

    large = data.BENCHMARKS["imagenet"].transform
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(Path(folder), 640)
        files = data.read_folder(folder)
        for train in (True, False):
            usual = DataLoader(PillowFolder(files, large, train), 32, shuffle=train, num_workers=2)
            measured = rates(
                {"spcp.data.Loader, 2 workers": data.Loader(files, large, batch_size=32, train=train, workers=2)}
                | {"DataLoader, Pillow, 2 workers": usual},
                32,
                arguments.seconds,
                least=5.0,
            )
            title = "random resized crop and flip" if train else "test transform"
            table(f"JPEGs of 500 x 375 at 224 pixels, {title}:", measured)
            ours, theirs = measured.values()
            if ours < FOLDER_AIM * theirs:
                missed.append(f"folder, {title}: {ours / theirs:.2f}x, aim {FOLDER_AIM:g}x")
    finish(missed, arguments.check)


if __name__ == "__main__":
    main()
