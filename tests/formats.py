"""Tiny files in the official formats, written from their descriptions alone."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from spcp.data.embedded import photograph_files


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_cifar10_binary(folder: Path, a_class: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Five training batches and a test batch of `10 * a_class` images; returns the test images and labels."""
    folder.mkdir(parents=True)
    y = np.tile(np.arange(10, dtype=np.uint8), a_class)
    for i, name in enumerate(["test_batch", *(f"data_batch_{k}" for k in range(1, 6))]):
        x = pixels(len(y), 3, 32, 32, seed=i)
        records = b"".join(bytes([label]) + image.tobytes() for image, label in zip(x, y, strict=True))
        (folder / f"{name}.bin").write_bytes(records)
    return pixels(len(y), 3, 32, 32, seed=0), y.astype(np.int64)


def write_cifar100_binary(folder: Path, a_class: int = 2, names: int = 100) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    y = np.tile(np.arange(100, dtype=np.uint8), a_class)
    for i, name in enumerate(["test", "train"]):
        x = pixels(len(y), 3, 32, 32, seed=10 + i)
        records = b"".join(bytes([label // 5, label]) + image.tobytes() for image, label in zip(x, y, strict=True))
        (folder / f"{name}.bin").write_bytes(records)
    (folder / "fine_label_names.txt").write_text("".join(f"class{k:02d}\n" for k in range(names)))
    return pixels(len(y), 3, 32, 32, seed=10), y.astype(np.int64)


def write_cifar10_python(folder: Path, protocol: int = 2) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    y = list(range(10))
    for i, name in enumerate(["test_batch", *(f"data_batch_{k}" for k in range(1, 6))]):
        batch = {
            b"batch_label": b"batch",
            b"labels": y,
            b"data": pixels(10, 3072, seed=i),
            b"filenames": [b"a.png"] * 10,
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    return pixels(10, 3072, seed=0).reshape(10, 3, 32, 32), np.array(y)


def write_cifar100_python(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    y = list(range(99, -1, -1))
    for i, name in enumerate(["test", "train"]):
        batch = {b"fine_labels": y, b"coarse_labels": [0] * 100, b"data": pixels(100, 3072, seed=20 + i)}
        (folder / name).write_bytes(pickle.dumps(batch, 2))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"n%d" % k for k in range(100)]}, 2))
    return pixels(100, 3072, seed=20).reshape(100, 3, 32, 32), np.array(y)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(
    folder: Path, count: int = 20, compressed: bool = True, halves: tuple[str, ...] = ("train", "t10k")
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, stem in enumerate(halves):
        for name, array in (
            (f"{stem}-images-idx3-ubyte", pixels(count, 28, 28, seed=30 + i)),
            (f"{stem}-labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8)),
        ):
            if compressed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))


def write_svhn(path: Path, count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import savemat

    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = pixels(count, 32, 32, 3, seed=40), np.arange(count) % 10
    savemat(
        path,
        {"X": x.transpose(1, 2, 3, 0), "y": np.where(y == 0, 10, y).astype(np.uint8)[:, None]},
        do_compression=True,
    )
    return x, y


def write_image(path: Path, size: tuple[int, int] = (40, 30), seed: int = 0, mode: str = "RGB") -> np.ndarray:
    """A picture with large shapes, so that JPEG and resizing have something to keep."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = Image.fromarray(pixels(4, 5, 3, seed=seed)).convert(mode)
    image = small.resize(size, Image.Resampling.BICUBIC)
    image.save(path)
    return np.asarray(image)


def write_tin(folder: Path, wnids: list[str], a_class: int = 2) -> None:
    rows = []
    for i in range(len(wnids) * a_class):
        write_image(folder / "val" / "images" / f"val_{i}.JPEG", (64, 64), seed=i)
        rows.append(f"val_{i}.JPEG\t{wnids[i % len(wnids)]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "wnids.txt").write_text("\n".join(reversed(wnids)) + "\n")
    write_image(folder / "train" / wnids[0] / "images" / f"{wnids[0]}_0.JPEG", (64, 64))


def write_sound(
    path: Path, rate: int = 8000, seconds: float = 0.5, hertz: float = 440.0, channels: int = 1
) -> np.ndarray:
    import soundfile

    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(round(rate * seconds)) / rate
    wave = (0.5 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)
    soundfile.write(path, np.stack([wave] * channels, 1), rate)
    return wave


def equal(x: torch.Tensor, array: np.ndarray) -> bool:
    return np.array_equal(x.numpy(), array)


def write_photographs(folder: Path, name: str, count: int, seed: int = 0) -> None:
    """Write squares from random places of an embedded photograph (chelsea, coffee, flower, ...) as JPEG files."""
    picture = Image.open(next(path for path in photograph_files() if path.stem == name)).convert("RGB")
    rng = np.random.default_rng((seed, len(name)))
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        side = int(rng.integers(200, 300))
        left, top = (int(rng.integers(0, extent - side + 1)) for extent in picture.size)
        picture.crop((left, top, left + side, top + side)).save(folder / f"{i:03d}.jpg", quality=90)
