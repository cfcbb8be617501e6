from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from formats import pixels, write_cifar10_binary, write_image, write_sound

from spcp import data


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i in range(40):
        write_image(tmp_path / "photos" / ("cat", "dog")[i % 2] / f"{i}.png", (50, 40), seed=i)
    for i in range(5):
        write_image(tmp_path / "cars" / f"{i}.jpg", (60, 60), seed=100 + i)
    write_image(tmp_path / "bats" / "some" / "0.jpg", (60, 60), seed=200)
    return tmp_path


def test_folders(photos: Path) -> None:
    b = data.make_benchmark(photos / "photos", {"cars": photos / "cars"}, size=32, ood_val="uniform")
    assert b.class_names == ("cat", "dog")
    assert set(b.sets()) == {"train", "val", "test", "ood_val/uniform noise", "far/cars"}
    parts = [set(part.paths) for part in (b.train, b.val, b.test)]  # type: ignore[union-attr]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 40
    assert len(parts[0]) > 26
    assert "80 % of each class" in b.summary()
    x = data.prepare(b.train, b.transform).x.double() / 255  # type: ignore[arg-type]
    np.testing.assert_allclose(b.transform.mean, x.mean((0, 2, 3)), atol=1e-6)  # type: ignore[union-attr]
    np.testing.assert_allclose(b.transform.std, x.std((0, 2, 3), correction=0), atol=1e-6)  # type: ignore[union-attr]
    assert b.ood_val["uniform noise"].x.shape[1:] == (3, 32, 32)  # type: ignore[union-attr]
    for role in b.sets():
        assert next(iter(b.loader(role)))[0].shape[1:] == (3, 32, 32)


def parts_of(benchmark: data.Benchmark) -> dict[str, str]:
    """Return the part that each file is in."""
    sets = {part: getattr(benchmark, part) for part in ("train", "val", "test")}
    return {path: part for part, files in sets.items() if files for path in files.paths}


def touch(folder: Path, count: int, start: int = 0) -> None:
    """Make files that are never decoded."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(start, start + count):
        (folder / f"{i}.jpg").touch()


LARGE = {"mean": (0.5,) * 3, "std": (0.5,) * 3}  # nothing to measure


def test_every_class_is_split_by_the_shares(tmp_path: Path) -> None:
    counts = {"apple": 50, "bread": 50, "cup": 50, "dish": 97, "egg": 3}
    for name, count in counts.items():
        touch(tmp_path / "id" / name, count)
    for split, shares in ((None, (0.8, 0.1, 0.1)), ((0.6, 0.2, 0.2), (0.6, 0.2, 0.2)), ((50, 30, 20), (0.5, 0.3, 0.2))):
        b = data.make_benchmark(tmp_path / "id", transform=LARGE, split=split)
        assert len(parts_of(b)) == sum(counts.values())
        for share, part in zip(shares, (b.train, b.val, b.test), strict=True):
            assert part is not None
            assert f"{100 * share:g} % of each class" in b.summary()
            for name, n in data.histogram(part).items():
                assert n == 1 if name == "egg" else abs(n - share * counts[name]) <= 1
            assert set(data.histogram(part)) == set(counts)
    assert data.make_benchmark(tmp_path / "id", transform=LARGE, split=(0.9, 0, 0.1)).val is None
    (tmp_path / "id" / "egg" / "0.jpg").unlink()
    with pytest.raises(data.DataError, match="id: class egg has 2 samples, too few to be split; add samples"):
        data.make_benchmark(tmp_path / "id", transform=LARGE)


@pytest.mark.parametrize("split", [(0.8, 0.2), (0.8, 0.1, 0.2), (1, 0, 0), (0.5, -0.1, 0.6), "0.8", ("a", "b", "c")])
def test_shares_that_are_none(photos: Path, split: object) -> None:
    with pytest.raises(data.DataError, match="must be the shares of training, validation and test data"):
        data.make_benchmark(photos / "photos", size=32, split=split)  # type: ignore[arg-type]


def test_data_that_is_divided_already_is_not_split(photos: Path) -> None:
    parts = {"train": photos / "photos", "test": photos / "photos"}
    with pytest.raises(data.DataError, match="given as train, val and test already; leave out split"):
        data.make_benchmark(parts, size=32, split=(0.6, 0.2, 0.2))
    for part in parts:
        write_image(photos / "halves" / part / "a" / f"{part}.png")
    with pytest.raises(data.DataError, match="halves: is divided into training and test data already; leave out split"):
        data.make_benchmark(photos / "halves", size=32, split=(0.6, 0.2, 0.2))


def test_files_stay_in_their_part_when_others_come(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        touch(tmp_path / "id" / name, 200)
    before = parts_of(data.make_benchmark(tmp_path / "id", transform=LARGE))
    touch(tmp_path / "id" / "cat", 100, start=200)
    after = parts_of(data.make_benchmark(tmp_path / "id", transform=LARGE))
    moved = {path: (part, after[path]) for path, part in before.items() if after[path] != part}
    assert len(moved) <= 8
    assert all(path.startswith("cat/") for path in moved)
    assert ("train", "val") not in moved.values()
    (tmp_path / "id").rename(tmp_path / "elsewhere")
    assert parts_of(data.make_benchmark(tmp_path / "elsewhere", transform=LARGE)) == after


def test_options_change_the_default_transform_and_nothing_else(photos: Path) -> None:
    plain = data.make_benchmark(photos / "photos", size=32).transform
    changed = data.make_benchmark(photos / "photos", transform={"size": 32, "flip": False}).transform
    assert changed == dataclasses.replace(plain, flip=False)  # type: ignore[type-var]
    changed = data.make_benchmark(photos / "photos", size=32, transform={"std": [0.2, 0.2, 0.2]}).transform
    assert changed == dataclasses.replace(plain, std=(0.2, 0.2, 0.2))  # type: ignore[type-var]
    grey = data.make_benchmark(photos / "photos", size=32, transform={"mean": (0.5,), "std": (0.5,)}).transform
    assert grey.channels == 1  # type: ignore[union-attr]
    large = data.make_benchmark(photos / "photos", transform={"flip": False}).transform
    assert (large.resize, large.crop, large.flip) == (256, 224, False)  # type: ignore[union-attr]
    with pytest.raises(data.DataError, match="unexpected keyword argument 'flop'; it may have size, resize, crop"):
        data.make_benchmark(photos / "photos", transform={"flop": False})
    for size in (0, -3, "32", 1.5):
        with pytest.raises(data.DataError, match="size must be a whole number of pixels"):
            data.make_benchmark(photos / "photos", size=size)  # type: ignore[arg-type]


def test_train_val_and_test_folders(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("valid", 2), ("test", 4)):
        for i in range(count):
            write_image(tmp_path / "set" / part / "ab"[i % 2] / f"{part}{i}.png", seed=i)
    b = data.make_benchmark(tmp_path / "set", size=32)
    assert b.class_names == ("a", "b")
    assert [len(part) for part in (b.train, b.val, b.test)] == [6, 2, 4]  # type: ignore[arg-type]
    (tmp_path / "set" / ".git").mkdir()
    for path in (tmp_path / "set" / "test").rglob("*.png"):
        path.unlink()
    for folder in ("test/a", "test/b", "test"):
        (tmp_path / "set" / folder).rmdir()
    b = data.make_benchmark(tmp_path / "set", size=32)  # train and val: val is for testing
    assert b.val is None
    assert [len(part) for part in (b.train, b.test)] == [6, 2]  # type: ignore[arg-type]
    assert data.read(tmp_path / "set", "train").class_names == ("a", "b")
    write_image(tmp_path / "one" / "sub" / "a.png")
    write_image(tmp_path / "one" / "sub" / "b.png")
    with pytest.raises(data.DataError, match="one: has only one class, 'sub'; name the folder that holds"):
        data.make_benchmark(tmp_path / "one")


def test_both_halves_of_official_files_and_arrays(tmp_path: Path) -> None:
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin", a_class=10)
    b = data.make_benchmark(tmp_path / "cifar-10-batches-bin")
    assert len(b.train) == 500  # type: ignore[arg-type]
    assert data.histogram(b.val) == dict.fromkeys(b.class_names, 1)  # type: ignore[arg-type]
    assert data.histogram(b.test) == dict.fromkeys(b.class_names, 9)
    x, y = pixels(30, 8, 8), np.arange(30) % 3
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    b = data.make_benchmark(tmp_path / "a.npz")
    assert len(b.train) == 30  # type: ignore[arg-type]
    assert len(b.test) + len(b.val) == 20  # type: ignore[arg-type]


def test_a_part_of_its_own(tmp_path: Path) -> None:
    x, y = pixels(30, 8, 8), np.arange(30) // 3 % 3
    arrays = {f"{part}_images": x[i::3] for i, part in enumerate(("train", "val", "test"))}
    arrays |= {f"{part}_labels": y[i::3] for i, part in enumerate(("train", "val", "test"))}
    np.savez(tmp_path / "medmnist.npz", **arrays)
    path = tmp_path / "medmnist.npz"
    for id_data in (path, {"train": path, "val": path, "test": path}):
        b = data.make_benchmark(id_data)
        assert np.array_equal(b.val.x[:, 0].numpy(), x[1::3])  # type: ignore[union-attr]
        assert np.array_equal(b.test.x[:, 0].numpy(), x[2::3])  # type: ignore[union-attr]
    np.savez(tmp_path / "two.npz", **{k: v for k, v in arrays.items() if "val" not in k})
    two = tmp_path / "two.npz"
    with pytest.raises(data.DataError, match=r"two.npz: has no arrays for val"):
        data.make_benchmark({"train": two, "val": two, "test": two})
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin")
    cifar = tmp_path / "cifar-10-batches-bin"
    with pytest.raises(data.DataError, match="cannot be both val and test"):
        data.make_benchmark({"train": cifar, "val": cifar, "test": cifar})


def test_labels_of_the_test_data(photos: Path) -> None:
    with pytest.raises(data.DataError, match="cars: its labels are -1 to -1, but training has 2 classes"):
        data.make_benchmark({"train": photos / "photos", "test": photos / "cars"}, size=32)


def test_some_classes_of_a_folder_known_and_some_odd(photos: Path) -> None:
    for i in range(30):
        write_image(photos / "photos" / "eel" / f"{i}.png", seed=i)
    every = data.read_folder(photos / "photos")
    id_data = data.take(every, (every.y < 2).nonzero()[:, 0], class_names=("cat", "dog"))
    b = data.make_benchmark(id_data, {"eels": data.take(every, (every.y == 2).nonzero()[:, 0])}, size=32)
    assert len(b.far["eels"]) == 30


def test_bad_files_can_be_left_out(photos: Path) -> None:
    whole = data.make_benchmark(photos / "photos", size=32).train
    assert isinstance(whole, data.FileSet)
    (whole.root / whole.paths[0]).write_bytes(b"")
    (photos / "cars" / "1.jpg").write_bytes(b"no")
    with pytest.raises(data.DataError, match=f"{whole.paths[0]}: not a readable image"):
        data.make_benchmark(photos / "photos", size=32)
    with pytest.warns(UserWarning, match=r"1 of \d+ files cannot be read and are left out: .*: not a readable"):
        b = data.make_benchmark(photos / "photos", {"cars": photos / "cars"}, size=32, bad="skip")
    assert sum(len(part) for part in (b.train, b.val, b.test)) == 39  # type: ignore[arg-type]
    assert len(b.far["cars"]) == 4


def test_settings_are_not_chosen_on_what_they_are_tested_on(photos: Path) -> None:
    (photos / "copies" / "deep").mkdir(parents=True)
    (photos / "copies" / "deep" / "other name.jpg").write_bytes((photos / "cars" / "3.jpg").read_bytes())
    write_image(photos / "copies" / "new.jpg", (60, 60), seed=300)
    for val in ("cars", "copies"):
        with pytest.raises(data.DataError, match=r"ood_val/v and far/cars share .*; choose settings on other OOD data"):
            data.make_benchmark(photos / "photos", {"cars": photos / "cars"}, ood_val={"v": photos / val}, size=32)
    (photos / "cars" / "copy.png").write_bytes((photos / "photos" / "cat" / "0.png").read_bytes())
    with pytest.raises(data.DataError, match=r"far/cars: .*copy.png is both ID and OOD, one of 1 files"):
        data.make_benchmark(photos / "photos", {"cars": photos / "cars"}, size=32)
    x = torch.randn(60, 4)
    with pytest.raises(data.DataError, match="ood_val/v and near/n hold the same samples; choose settings on other"):
        data.make_benchmark((x, torch.arange(60) % 2), near={"n": x[:9]}, ood_val={"v": x[:9].clone()})


def test_large_images_take_imagenets_transform(photos: Path) -> None:
    b = data.make_benchmark(photos / "photos", ood_val="gaussian")
    assert b.transform == data.ImageTransform(256, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "resized_crop")
    assert b.ood_val["gaussian noise"].x.shape == (1000, 3, 224, 224)  # type: ignore[union-attr]


def test_toml(photos: Path) -> None:
    (photos / "b.toml").write_text(
        """
        name = "pets"
        [id]
        path = "photos"
        split = [0.5, 0.25, 0.25]
        [ood]
        near = { bats = "bats" }
        far = { cars = "cars" }
        val = "uniform"
        [transform]
        size = 24
        mean = [0.5, 0.5, 0.5]
        std = [0.25, 0.25, 0.25]
        flip = false
        """
    )
    b = data.load_benchmark(str(photos / "b.toml"))
    assert b.name == "pets"
    assert set(b.sets()) == {"train", "val", "test", "ood_val/uniform noise", "near/bats", "far/cars"}
    assert [len(part) for part in (b.train, b.val, b.test)] == [20, 10, 10]  # type: ignore[arg-type]
    assert b.transform == data.ImageTransform(24, 24, (0.5,) * 3, (0.25,) * 3, flip=False)


def test_toml_of_arrays_and_halves(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, n in (("train", 30), ("test", 10), ("noise", 7)):
        np.savez(tmp_path / f"{name}.npz", embeddings=rng.normal(size=(n, 8)), labels=np.arange(n) % 3)
    (tmp_path / "b.toml").write_text(
        '[id]\ntrain = "train.npz"\ntest = "test.npz"\n[ood]\nfar = {noise = "noise.npz"}\nval = "gaussian"'
    )
    b = data.read_benchmark(tmp_path / "b.toml")
    assert b.transform is None
    assert b.class_names == ("0", "1", "2")
    assert b.val is None
    assert set(b.far["noise"].y.tolist()) == {-1}  # type: ignore[union-attr]
    assert b.ood_val["gaussian noise"].x.shape == (1000, 8)  # type: ignore[union-attr]


def test_what_cannot_be_meant_is_named(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(data.DataError, match='bad must be "raise" or "skip", not \'ignore\''):
        data.make_benchmark(photos / "photos", size=32, bad="ignore")  # type: ignore[arg-type]
    with pytest.raises(data.DataError, match='ood: a set cannot be called "mean"'):
        data.make_benchmark(photos / "photos", {"mean": photos / "photos"}, size=32)
    x, y = np.zeros((60, 8), np.float32), np.arange(60) % 3
    with pytest.raises(data.DataError, match=r"transform: floats \(8,\) are taken as they are; leave out flip"):
        data.make_benchmark((x, y), transform={"flip": False})
    (tmp_path / "b.toml").write_text("[id]\npath = 'photos'\nlabel = 3\n")
    with pytest.raises(data.DataError, match=r"label in \[id\] must be a regular expression in quotes, not 3"):
        data.read_benchmark(tmp_path / "b.toml")


def test_toml_of_sounds(tmp_path: Path) -> None:
    for i in range(24):
        write_sound(tmp_path / "digits" / f"{i % 2}_anna_{i}.wav", hertz=200 + 100 * i)
    write_sound(tmp_path / "rain" / "0.wav", hertz=3000)
    write_sound(tmp_path / "other.flac" / "0.flac", rate=44100)
    text = "[id]\npath = 'digits'\nlabel = '(\\d)_'\n[ood]\nfar = {rain = 'rain', other = 'other.flac'}\n"
    (tmp_path / "b.toml").write_text(text + "[audio]\nsample_rate = 8000\nseconds = 0.5\nmels = 20")
    b = data.read_benchmark(tmp_path / "b.toml")
    assert b.class_names == ("0", "1")
    ((x, _),) = data.Loader(b.far["other"], b.transform)
    assert x.shape == (1, 1, 20, 51)
    (tmp_path / "b.toml").write_text(text)
    fitted = data.read_benchmark(tmp_path / "b.toml")
    x, _ = next(iter(data.Loader(fitted.train, fitted.transform, batch_size=100)))  # type: ignore[arg-type]
    assert abs(x.mean()) < 1e-4
    assert abs(x.std() - 1) < 1e-3


def test_official_folders_by_halves(tmp_path: Path) -> None:
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin")
    folder = tmp_path / "cifar-10-batches-bin"
    b = data.make_benchmark({"train": folder, "test": folder})
    assert (len(b.train), len(b.test)) == (100, 20)  # type: ignore[arg-type]


def test_validation_folders_are_numbered_as_in_training(photos: Path) -> None:
    write_image(photos / "val" / "dog" / "0.png")
    halves = {"train": photos / "photos", "test": photos / "val"}
    assert data.make_benchmark(halves, size=32).test.y.tolist() == [1]  # type: ignore[union-attr]
    write_image(photos / "val" / "eel" / "0.png")
    with pytest.raises(data.DataError, match="the class 'eel' is not in the training data"):
        data.make_benchmark(halves, size=32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[id", "not valid TOML"),
        ("name = 'x'", r"has no section \[id\]"),
        ("[id]\npth = 'photos'", r"\[id\] cannot have 'pth'; it may have label, path"),
        ("[id]\npath = 'photos'\ntrain = 'photos'", "needs either path, or train and test"),
        ("[id]\ntrain = 'photos'", "in-distribution data needs train and test"),
        ("[id]\npath = 'nowhere'", "nowhere: there is no such file or folder"),
        ("[id]\npath = 'cars'", "in-distribution data must have classes"),
        ("[id]\npath = 'photos'\n[ood]\nfar = 'cars'", "must be a table of names and paths"),
        ("[id]\npath = 'photos'\n[ood]\nval = 'pink'", 'must be "gaussian", "uniform" or'),
        ("[id]\npath = 'photos'\n[transform]\nsides = 3", "unexpected keyword argument 'sides'"),
        ("[id]\npath = 'bats'", "bats: has only one class, 'some'"),
        ("[id]\npath = 3", r"path in \[id\] must be a path in quotes, not 3"),
        ("[id]\npath = 'photos'\n[ood]\nfar = {a = 3}", r"a in \[ood\] must be a path in quotes"),
        ("[id]\npath = 'photos'\n[transform]\nsize = 'x'", "size must be a whole number of pixels"),
        ("[id]\npath = 'photos'\n[audio]\nmels = 20", "unexpected keyword argument 'mels'; it may have size, resize"),
        (
            "[id]\npath = 'photos'\n[transform]\nsize = 32\n[ood]\nfar = {p = 'photos'}",
            "far/p: .* is both ID and OOD, one of 40 files",
        ),
        ("[id]\npath = 'photos'\n[transform]\nsize = 32\n[ood]\nfar = {noise = 'a.npz'}", "far/noise holds floats"),
    ],
)
def test_what_can_be_wrong_in_a_toml(photos: Path, text: str, message: str) -> None:
    np.savez(photos / "a.npz", x=np.zeros((3, 4)))
    (photos / "b.toml").write_text(text)
    with pytest.raises(data.DataError, match=message):
        data.read_benchmark(photos / "b.toml")


def test_data_sets_of_any_kind() -> None:
    x = torch.from_numpy(pixels(60, 20, 20))
    b = data.make_benchmark((x, torch.arange(60) % 3), {"blank": [torch.zeros(1, 20, 20, dtype=torch.uint8)]})
    assert b.transform.crop == 20  # type: ignore[union-attr]
    assert b.transform.channels == 1  # type: ignore[union-attr]
    assert data.histogram(b.test) == {"0": 2, "1": 2, "2": 2}

    class Floats(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            return torch.full((3, 8, 8), float(i)), i % 2

    b = data.make_benchmark(Floats(), {"noise": torch.randn(4, 3, 8, 8)}, ood_val="gaussian")
    assert b.transform is None
    assert b.ood_val["gaussian noise"].x.shape == (1000, 3, 8, 8)  # type: ignore[union-attr]
    assert next(iter(b.loader("train", train=True, batch_size=4, workers=0)))[0].shape == (4, 3, 8, 8)


@pytest.mark.parametrize(
    ("id_data", "ood", "message"),
    [
        ((torch.zeros(9, 4), torch.arange(9) % 3 + 1), {}, "data|id: class 0 has no training samples"),
        (torch.zeros(9, 4), {}, "in-distribution data must have classes; give labels, counted from 0"),
        (
            (torch.zeros(90, 4), torch.arange(90) % 3),
            "folder",
            'ood: must be a dictionary of names and data, such as {"cars"',
        ),
        ((torch.zeros(9, 4), torch.nn.functional.one_hot(torch.arange(9))), {}, r"look one-hot; give class numbers"),
        ([(torch.zeros(3), "cat")], {}, "item 0: its label 'cat' is not a class number"),
        ((torch.zeros(9, 3, 8, 8).long(), torch.arange(9)), {}, "torch.int64 are neither bytes nor floats"),
        (None, {}, "is missing"),
    ],
)
def test_what_can_be_wrong_with_a_users_data(id_data: object, ood: object, message: str) -> None:
    with pytest.raises(data.DataError, match=message):
        data.make_benchmark(id_data, ood)  # type: ignore[arg-type]
