from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from formats import pixels, write_image, write_sound
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from spcp import data
from spcp.data import native
from spcp.data.memory import scale_and_shift

CIFAR = data.BENCHMARKS["cifar10"].transform
LARGE = data.ImageTransform(80, 72, CIFAR.mean, CIFAR.std, augment="resized_crop")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path / "cache"))


def small(count: int = 50, side: int = 32, channels: int = 3) -> data.TensorSet:
    """Images whose first pixels of every row give away which they are."""
    x = torch.from_numpy(pixels(count, channels, side, side))
    return data.TensorSet("small", x, torch.arange(count))


@pytest.fixture(params=["compiled", "torch"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of cutting and normalising images in memory."""
    if request.param == "torch":
        monkeypatch.setattr(native, "available", lambda: False)
    elif not native.available():
        pytest.skip("the kernel was not compiled: there was no C compiler")
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> data.FileSet:
    for i in range(30):
        write_image(tmp_path / "photos" / "ab"[i % 2] / f"{i:02d}.png", (100 + i, 90), seed=i)
    return data.read_folder(tmp_path / "photos")


def collect(batches: Any) -> tuple[Tensor, Tensor]:
    parts = list(batches)
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def normalised(x: np.ndarray, transform: data.ImageTransform = CIFAR) -> np.ndarray:
    mean, std = (np.array(v).reshape(-1, 1, 1) for v in (transform.mean, transform.std))
    return ((x / 255 - mean) / std).astype(np.float32)


def test_evaluation_is_the_data_in_order(kernel: str) -> None:
    samples = small()
    x, y = collect(data.Loader(samples, CIFAR, batch_size=16))
    assert x.dtype == torch.float32
    np.testing.assert_allclose(x.numpy(), normalised(samples.x.numpy()), atol=1e-6)
    assert y.tolist() == list(range(50))
    assert len(data.Loader(samples, CIFAR, batch_size=16)) == 4


@pytest.mark.parametrize(("border", "mode"), [("black", "constant"), ("reflect", "reflect")])
def test_augmentation_is_a_window_of_the_padded_image(border: Any, mode: Any, kernel: str) -> None:
    """Against the slow way: take every window out of every padded image, and look for what came."""
    samples = small(20)
    transform = dataclasses.replace(CIFAR, padding=2, border=border)
    padded = np.pad(samples.x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode)
    windows = {}
    for i in range(20):
        for top in range(5):
            for left in range(5):
                crop = padded[i, :, top : top + 32, left : left + 32]
                windows[crop.tobytes()] = (i, top, left, False)
                windows[crop[:, :, ::-1].tobytes()] = (i, top, left, True)
    loader = data.Loader(samples, transform, batch_size=8, train=True)
    seen = []
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (CIFAR.mean, CIFAR.std))
    for epoch in range(100):
        for x, y in loader.epoch(epoch):
            for image, label in zip((x * std + mean) * 255, y.tolist(), strict=True):
                window = windows[image.round().to(torch.uint8).numpy().tobytes()]
                assert window[0] == label
                seen.append(window[1:])
    counts = np.unique(np.array(seen), axis=0, return_counts=True)[1]
    assert len(counts) == 50  # 25 places, mirrored and not
    assert counts.min() > 15  # 40 expected of each
    assert counts.max() < 75


@pytest.mark.skipif(not native.available(), reason="the kernel was not compiled: there was no C compiler")
@pytest.mark.parametrize("side", [5, 28, 32, 33])
@pytest.mark.parametrize("padding", [0, 1, 4, 7])
@pytest.mark.parametrize(("channels", "border"), [(1, "black"), (3, "black"), (3, "reflect")])
def test_both_kernels_agree_to_the_bit(
    side: int, padding: int, channels: int, border: Literal["black", "reflect"], monkeypatch: pytest.MonkeyPatch
) -> None:
    if border == "reflect":
        padding = min(padding, (side - 1) // 2)
    mean, std = CIFAR.mean[:channels], CIFAR.std[:channels]
    transform = data.ImageTransform(side, side, mean, std, padding=padding, border=border)
    loaders = [data.Loader(small(30, side, channels), transform, batch_size=7, train=train) for train in (True, False)]
    compiled = [collect(loader.epoch(1))[0] for loader in loaders]
    monkeypatch.setattr(native, "available", lambda: False)
    loaders = [data.Loader(small(30, side, channels), transform, batch_size=7, train=train) for train in (True, False)]
    for loader, x in zip(loaders, compiled, strict=True):
        assert torch.equal(collect(loader.epoch(1))[0], x)


@pytest.mark.parametrize("large", [False, True])
def test_views_are_the_same_samples_cut_differently(large: bool, kernel: str) -> None:
    samples, transform = (small(12, 80), dataclasses.replace(LARGE, resize=80)) if large else (small(12), CIFAR)
    loader = data.Loader(samples, transform, batch_size=5, train=True, views=2, workers=0)
    single = data.Loader(samples, transform, batch_size=5, train=True, workers=0)
    for (x, y), (x1, y1) in zip(loader.epoch(1), single.epoch(1), strict=True):
        assert torch.equal(y, y1)
        assert x.shape[0] == 2 * len(y)
        if large:
            assert torch.equal(x[: len(y)], x1)
        assert not torch.equal(x[: len(y)], x[len(y) :])
    order = loader.order(1)
    assert torch.equal(torch.cat([y for _, y in loader.epoch(1)]), samples.y[order])


def test_every_image_of_a_batch_is_cut_at_its_own_place() -> None:
    one = data.TensorSet("same", small(1).x.expand(64, -1, -1, -1), torch.zeros(64, dtype=torch.int64))
    x, _ = next(iter(data.Loader(one, CIFAR, batch_size=64, train=True)))
    assert len({image.numpy().tobytes() for image in x}) > 40


@given(
    count=st.integers(1, 60),
    batch=st.sampled_from([4, 12, 36]),
    world=st.sampled_from([1, 2, 4]),
    start=st.integers(0, 1),
    epoch=st.integers(0, 3),
    train=st.booleans(),
)
def test_shares_and_resuming(count: int, batch: int, world: int, start: int, epoch: int, train: bool) -> None:
    """However many processes, wherever it resumes: the same samples, in the same batches, cropped in the same way."""
    samples = data.TensorSet("some", torch.from_numpy(pixels(count, 1, 6, 6)), torch.arange(count))
    transform = data.ImageTransform(6, 6, (0.5,), (0.5,), padding=1)

    def batches(rank: int, world: int, start: int) -> list[tuple[Tensor, Tensor]]:
        loader = data.Loader(samples, transform, batch_size=batch, train=train, seed=7, rank=rank, world_size=world)
        seen = torch.cat([torch.arange(0), *(y for _, y in loader.epoch(epoch))])
        assert torch.equal(loader.order(epoch), seen)
        return list(loader.epoch(epoch, min(start, len(loader))))

    whole = batches(0, 1, 0)
    shares = [batches(rank, world, start) for rank in range(world)]
    if train:
        assert len({len(share) for share in shares}) == 1  # no process waits for another
    for i, parts in enumerate(itertools.zip_longest(*shares, fillvalue=(torch.empty(0, 1, 6, 6), torch.arange(0)))):
        x, y = (torch.cat([part[k] for part in parts]) for k in (0, 1))
        if train:
            assert len({len(part[1]) for part in parts}) == 1
            assert len(y) > len(whole[start + i][1]) - world
        else:
            assert len(y) == len(whole[start + i][1])
        assert torch.equal(x, whole[start + i][0][: len(x)])
        assert torch.equal(y, whole[start + i][1][: len(y)])


def test_batch_size_does_not_change_what_is_seen() -> None:
    a, b = (collect(data.Loader(small(), CIFAR, batch_size=n, train=True).epoch(3)) for n in (7, 50))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])


def test_epochs_and_seeds_differ_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    loader = data.Loader(small(), CIFAR, train=True)
    first, second = collect(loader), collect(loader)  # iterating goes on to the next epoch
    assert torch.equal(first[0], collect(loader.epoch(0))[0])
    assert torch.equal(second[0], collect(loader.epoch(1))[0])
    assert not torch.equal(first[1], second[1])
    assert not torch.equal(first[1], collect(data.Loader(small(), CIFAR, train=True, seed=1))[1])
    assert sorted(first[1].tolist()) == list(range(50))
    assert torch.equal(state, torch.get_rng_state())
    evaluation = data.Loader(small(), CIFAR)
    assert torch.equal(collect(evaluation)[1], collect(evaluation)[1])


def test_sizes_and_channels_are_brought_to_the_benchmarks() -> None:
    grey = data.TensorSet("grey", torch.from_numpy(pixels(3, 1, 28, 28)), torch.zeros(3, dtype=torch.int64))
    (x, _) = next(iter(data.Loader(grey, CIFAR)))
    assert x.shape == (3, 3, 32, 32)
    same_size = data.TensorSet("grey", torch.from_numpy(pixels(3, 1, 32, 32)), torch.zeros(3, dtype=torch.int64))
    assert torch.equal(data.prepare(same_size, CIFAR).x, same_size.x.expand(-1, 3, -1, -1))
    colour = data.prepare(small(2), data.ImageTransform(16, 16, (0.5,), (0.5,)))
    assert colour.x.shape == (2, 1, 16, 16)


def test_floats_pass_as_they_are() -> None:
    embeddings = data.TensorSet("e", torch.randn(10, 16), torch.arange(10))
    x, _ = next(iter(data.Loader(embeddings, batch_size=10)))
    assert torch.equal(x, embeddings.x)
    shuffled = collect(data.Loader(embeddings, batch_size=3, train=True))
    assert torch.equal(shuffled[0], embeddings.x[shuffled[1]])
    with pytest.raises(data.DataError, match=r"small: images need a transform, such as the benchmark's"):
        data.Loader(small())
    images = torch.rand(40, 3, 32, 32)
    loader = data.Loader(images, CIFAR, batch_size=40, train=True)  # floats are not augmented, whatever the transform
    assert torch.equal(next(iter(loader))[0], images[loader.order(0)])
    doubles = data.as_set(torch.rand(3, 4, dtype=torch.float64))
    assert doubles[0][0].dtype == torch.float32


@pytest.mark.parametrize("workers", [0, 2])
def test_large_images_come_from_workers(folder: data.FileSet, workers: int) -> None:
    from spcp.data.images import eval_pixels, train_pixels

    loader = data.Loader(folder, LARGE, batch_size=8, workers=workers)
    x, y = collect(loader)
    expected = np.stack([eval_pixels(folder[i][0], LARGE).transpose(2, 0, 1) for i in range(30)])
    np.testing.assert_allclose(x.numpy(), normalised(expected, LARGE), atol=1e-5)
    assert torch.equal(y, folder.y)

    training = data.Loader(folder, LARGE, batch_size=8, train=True, seed=5, workers=workers)
    x, y = collect(training.epoch(2))
    order = training.order(2)
    assert torch.equal(y, folder.y[order])
    augmented = [train_pixels(folder[int(i)][0], LARGE, np.random.default_rng((5, 2, k))) for k, i in enumerate(order)]
    np.testing.assert_allclose(x.numpy(), normalised(np.stack(augmented).transpose(0, 3, 1, 2), LARGE), atol=1e-5)
    assert torch.equal(collect(training.epoch(2, start=2))[0], x[16:])
    halves = [
        data.Loader(folder, LARGE, batch_size=8, train=True, seed=5, workers=workers, rank=r, world_size=2)
        for r in (0, 1)
    ]
    first = [next(iter(half.epoch(2)))[0] for half in halves]
    assert torch.equal(torch.cat(first), x[:8])


def test_stopping_early_and_starting_again(folder: data.FileSet) -> None:
    loader = data.Loader(folder, LARGE, batch_size=4, train=True, workers=2)
    for _ in range(3):
        x, _ = next(iter(loader.epoch(0)))
    assert torch.equal(x, collect(loader.epoch(0))[0][:4])


def test_small_files_are_prepared_once(folder: data.FileSet, tmp_path: Path) -> None:
    transform = data.ImageTransform(32, 32, CIFAR.mean, CIFAR.std)
    first = data.prepare(folder, transform)
    assert first.x.shape == (30, 3, 32, 32)
    (kept,) = (tmp_path / "cache").iterdir()
    assert torch.equal(collect(data.Loader(folder, transform))[0], collect(data.Loader(first, transform))[0])
    time = kept.stat().st_mtime_ns
    assert torch.equal(data.prepare(folder, transform).x, first.x)
    assert kept.stat().st_mtime_ns == time  # it is read from there
    content = kept.read_bytes()
    for damaged in (
        content[:1000],
        content[:-1],
        content[:-1000] + bytes(996) + content[-4:],
        content.replace(b"u1", b"b1"),
    ):
        kept.write_bytes(damaged)  # built again
        prepared = data.prepare(folder, transform).x
        assert prepared.dtype == torch.uint8
        assert torch.equal(prepared, first.x)
    path = folder.root / folder.paths[0]
    write_image(path, (100, 90), seed=99)
    os.utime(path, (1, 1))
    changed = data.prepare(folder, transform)  # a file has changed: built again
    assert not torch.equal(changed.x[0], first.x[0])
    assert torch.equal(changed.x[1:], first.x[1:])
    assert torch.equal(data.prepare(folder, transform, cache=False).x, changed.x)
    for other in (
        dataclasses.replace(transform, resize=40),
        dataclasses.replace(transform, crop=28),
        data.ImageTransform(32, 32, (0.5,), (0.5,)),
    ):
        kept_, fresh = data.prepare(folder, other), data.prepare(folder, other, cache=False)
        assert torch.equal(kept_.x, fresh.x)
    one, two = (folder.root / folder.paths[i] for i in (4, 6))
    info = os.stat(one)
    content = one.read_bytes()
    two.write_bytes(content)
    os.utime(two, ns=(info.st_atime_ns, info.st_mtime_ns))  # same size, same time
    assert torch.equal(data.prepare(folder, transform).x[6], data.prepare(folder, transform).x[4])
    for damaged in (
        b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (9" + b"9" * 60,
        b"PK\x03\x04",
        b"",
    ):
        for file in (tmp_path / "cache").iterdir():
            file.write_bytes(damaged)
        assert torch.equal(data.prepare(folder, transform).x[1], first.x[1])


def test_without_a_home_there_is_no_cache(folder: data.FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    for name in ("SPCP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert len(data.prepare(folder, CIFAR)) == 30


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [LARGE, CIFAR])
def test_bad_files_stop_or_are_counted(folder: data.FileSet, workers: int, transform: data.ImageTransform) -> None:
    bad = [folder.root / folder.paths[i] for i in (3, 17)]
    bad[0].write_bytes(bad[0].read_bytes()[:-30])
    bad[1].write_bytes(b"no image")
    with pytest.raises(data.DataError, match=f"^{bad[0]}: not a readable image .*; repair or remove it, or skip"):
        list(data.Loader(folder, transform, batch_size=8, workers=workers))
    loader = data.Loader(folder, transform, batch_size=8, workers=workers, bad="skip")
    x, y = collect(loader)
    good = torch.tensor([i for i in range(30) if i not in (3, 17)])
    assert torch.equal(y, folder.y[good])
    assert sorted(loader.skipped) == sorted(map(str, bad))
    whole = collect(data.Loader(data.take(folder, good), transform))
    assert torch.equal(x, whole[0])
    halves = [
        data.Loader(folder, transform, batch_size=8, workers=workers, bad="skip", train=True, rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    assert [len(y) for _, y in halves[0]] == [len(y) for _, y in halves[1]]  # what is left is shared alike
    with pytest.raises(data.DataError, match='bad must be "raise" or "skip"'):
        data.Loader(folder, transform, bad="skp")  # type: ignore[arg-type]
    for path in folder.paths:
        (folder.root / path).write_bytes(b"")
    with pytest.raises(data.DataError, match="none of its 30 files can be read; the first: "):
        data.Loader(folder, transform, bad="skip")


def test_only_files_are_skipped() -> None:
    with pytest.raises(data.DataError, match="its label 'cat' is not a class number"):
        list(data.Loader(Pairs(lambda i: (pixels(8, 8, 3), "cat")), CIFAR, workers=0, bad="skip"))


class Pairs(Dataset[Any]):
    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


def test_other_peoples_data_sets() -> None:
    from PIL import Image

    image = lambda i: Image.fromarray(pixels(40, 36, 3, seed=i))  # noqa: E731
    expected = collect(data.Loader([image(i) for i in range(5)], CIFAR))[0]
    assert expected.shape == (5, 3, 32, 32)
    for item in (
        lambda i: (image(i), i),
        lambda i: {"img": image(i), "label": i},
        lambda i: {"image": image(i), "fine_label": i, "id": "x"},
        lambda i: (torch.from_numpy(pixels(40, 36, 3, seed=i)).permute(2, 0, 1), i, "extra"),
        lambda i: [np.asarray(image(i)), torch.tensor(i)],
    ):
        x, y = collect(data.Loader(Pairs(item), CIFAR, workers=0))
        assert torch.equal(x, expected)
        assert y.tolist() == [0, 1, 2, 3, 4]
    floats = torch.randn(5, 7)
    for whole in (
        floats,
        floats.numpy(),
        list(floats),
        (floats, torch.arange(5)),
        [(x, i) for i, x in enumerate(floats)],
        TensorDataset(floats, torch.arange(5)),
        TensorDataset(floats),
        Pairs(lambda i: floats[i]),
        Pairs(lambda i: (floats[i].numpy(), i)),
    ):
        x, y = collect(data.Loader(whole, workers=0))
        assert torch.equal(x, floats)
        assert y.tolist() in ([0, 1, 2, 3, 4], [-1] * 5)
    ragged = [torch.randn(3), torch.randn(4)]
    with pytest.raises(data.DataError, match=r"data, item 1: \(4,\) is not the shape \(3,\) of others"):
        list(data.Loader(ragged, workers=0))
    with pytest.raises(data.DataError, match="an image or bytes, which need a transform"):
        list(data.Loader(Pairs(image), workers=0))
    with pytest.raises(data.DataError, match="none of its keys"):
        list(data.Loader(Pairs(lambda i: {"picture": 1}), CIFAR, workers=0))
    with pytest.raises(data.DataError, match="no length or no index"):
        data.Loader(iter([1, 2]))
    with pytest.raises(data.DataError, match="is empty"):
        data.Loader(torch.empty(0, 3))


def test_an_exception_of_somebody_elses_is_theirs() -> None:
    def broken(i: int) -> Any:
        raise RuntimeError("a mistake of the user")

    with pytest.raises(RuntimeError, match="a mistake of the user"):
        list(data.Loader(Pairs(broken), CIFAR, workers=2))


def test_impossible_shares() -> None:
    for options in (
        {"batch_size": 3, "world_size": 2},
        {"batch_size": 0},
        {"rank": 2, "world_size": 2},
        {"workers": -1},
        {"world_size": 0},
        {"seed": -1},
    ):
        with pytest.raises(
            data.DataError, match=r"must be a positive multiple|must be from 0 to 1|(must be|seed) 0 or more"
        ):
            data.Loader(small(), CIFAR, **options)  # type: ignore[arg-type]
    for epoch, start in ((-1, 0), (0, -1), (0, 99)):
        with pytest.raises(data.DataError, match="epochs count from 0, and have batches 0 to"):
            next(iter(data.Loader(small(), CIFAR).epoch(epoch, start)))


def test_a_transform_for_other_data(tmp_path: Path) -> None:
    with pytest.raises(
        data.DataError, match="transform must be an ImageTransform or an AudioTransform, not a function"
    ):
        data.Loader(small(), lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(data.DataError, match="images do not go with an AudioTransform; use the other transform"):
        data.Loader(small(), data.AudioTransform())


def test_sounds_of_other_libraries() -> None:
    transform = data.AudioTransform(sample_rate=8000, seconds=0.1)
    wave = torch.sin(torch.arange(800) / 3)
    hugging_face = [({"array": wave.tolist(), "sampling_rate": 8000}, 0)]
    ((x, _),), ((expected, _),) = (list(data.Loader(items, transform)) for items in (hugging_face, [((wave, 8000), 0)]))
    torch.testing.assert_close(x, expected)
    with pytest.raises(data.DataError, match=r"a sound must be a waveform and its sample rate, \(tensor, int\)"):
        list(data.Loader([(b"wave", 0)], transform, workers=0))


def test_arrays_are_augmented_by_boxes_too() -> None:
    samples = small(8, side=80)
    transform = dataclasses.replace(LARGE, resize=80)
    loader = data.Loader(samples, transform, train=True, batch_size=8, workers=0)
    first, second = (next(iter(loader.epoch(e))) for e in (0, 1))
    assert first[0].shape == (8, 3, 72, 72)
    assert not torch.equal(first[0][first[1].argsort()], second[0][second[1].argsort()])


def test_boxes_are_mirrored_half_of_the_time() -> None:
    from PIL import Image

    from spcp.data.images import train_pixels

    ramp = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (200, 1)))
    transform = data.ImageTransform(64, 64, (0.5,), (0.5,), augment="resized_crop")
    rising = [train_pixels(ramp, transform, np.random.default_rng(i))[0, :, 0] for i in range(200)]
    mirrored = sum(int(row[0]) > int(row[-1]) for row in rising)
    assert 70 < mirrored < 130
    never = dataclasses.replace(transform, flip=False)
    assert all((row := train_pixels(ramp, never, np.random.default_rng(i))[0, :, 0])[0] < row[-1] for i in range(20))


def test_large_arrays(kernel: str) -> None:
    """No buffer of the kernel lies on the stack."""
    side = 3000 if kernel == "compiled" else 300
    samples = data.TensorSet(
        "large", torch.zeros(1, 1, side, side, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    )
    transform = data.ImageTransform(side, side, (0.5,), (0.5,))
    x, _ = next(iter(data.Loader(samples, transform, train=True)))
    assert x.shape == (1, 1, side, side)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torchs_default_type_is_not_ours(dtype: torch.dtype, kernel: str) -> None:
    expected = collect(data.Loader(small(), CIFAR))[0]
    scale_and_shift.cache_clear()
    torch.set_default_dtype(dtype)
    try:
        x, _ = collect(data.Loader(small(), CIFAR))
    finally:
        torch.set_default_dtype(torch.float32)
        scale_and_shift.cache_clear()
    assert torch.equal(x, expected)


def test_torchs_default_device_is_not_ours(folder: data.FileSet) -> None:
    expected = collect(data.Loader(folder, CIFAR, train=True, cache=False))[0]
    torch.set_default_device("meta")
    try:
        again = data.read_folder(folder.root)
        x, _ = collect(data.Loader(again, CIFAR, train=True, cache=False))
        large, _ = collect(data.Loader(again, LARGE, train=True, workers=0))
    finally:
        torch.set_default_device(None)
    assert torch.equal(x, expected)
    assert large.device.type == "cpu"


def test_sounds_are_prepared_once(tmp_path: Path) -> None:
    for i in range(6):
        write_sound(tmp_path / "s" / "ab"[i % 2] / f"{i}.wav", hertz=200 * (i + 1))
    transform = data.AudioTransform(sample_rate=8000, seconds=0.5, mels=20)
    sounds = data.read_folder(tmp_path / "s")
    x, y = collect(data.Loader(sounds, transform, batch_size=4))
    assert x.shape == (6, 1, 20, 51)
    assert torch.equal(y, sounds.y)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert torch.equal(collect(data.Loader(sounds, transform))[0], x)
    (tmp_path / "s" / "a" / "0.wav").write_bytes(b"RIFF")
    with pytest.raises(data.DataError, match=r"0.wav: not a readable sound"):
        data.Loader(sounds, transform)
