from __future__ import annotations

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
    b = data.own_benchmark(photos / "photos", {"cars": photos / "cars"}, size=32, ood_val="uniform")
    assert b.classes == ("cat", "dog")
    assert {role: len(own) for role, own in b.sets().items()} == {
        "train": 32,
        "val": 4,
        "test": 4,
        "ood_val/uniform noise": 1000,
        "far/cars": 5,
    }
    parts = [set(own.paths) for own in (b.train, b.val, b.test)]  # type: ignore[union-attr]
    assert len(set.union(*parts)) == 40
    assert data.histogram(b.val) == {"cat": 2, "dog": 2}  # type: ignore[arg-type]
    assert "by a hash of the path" in b.summary()
    x = data.prepare(b.train, b.transform).x.double() / 255  # type: ignore[arg-type]
    np.testing.assert_allclose(b.transform.mean, x.mean((0, 2, 3)), atol=1e-6)  # type: ignore[union-attr]
    np.testing.assert_allclose(b.transform.std, x.std((0, 2, 3), correction=0), atol=1e-6)  # type: ignore[union-attr]
    assert b.ood_val["uniform noise"].x.shape[1:] == (3, 32, 32)  # type: ignore[union-attr]
    for own in b.sets().values():
        assert next(iter(data.Loader(own, b.transform)))[0].shape[1:] == (3, 32, 32)


def test_a_file_stays_in_its_part_when_others_come(photos: Path) -> None:
    before = data.own_benchmark(photos / "photos", size=32)
    for i in range(100, 104):
        write_image(photos / "photos" / "cat" / f"{i}.png", (50, 40), seed=i)
    after = data.own_benchmark(photos / "photos", size=32)
    kept = set(before.train.paths) & set(after.train.paths)  # type: ignore[union-attr]
    assert len(kept) >= 30


def test_large_images_take_imagenets_transform(photos: Path) -> None:
    b = data.own_benchmark(photos / "photos", ood_val="gaussian")
    assert b.transform == data.ImageTransform(256, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "resized_crop")
    assert b.ood_val["gaussian noise"].x.shape == (1000, 3, 224, 224)  # type: ignore[union-attr]


def test_toml(photos: Path) -> None:
    (photos / "b.toml").write_text(
        """
        name = "pets"
        [id]
        path = "photos"
        [ood]
        near = { bats = "bats" }
        far = { cars = "cars" }
        val = { more = "cars" }
        [transform]
        size = 24
        mean = [0.5, 0.5, 0.5]
        std = [0.25, 0.25, 0.25]
        flip = false
        """
    )
    b = data.load_benchmark(str(photos / "b.toml"))
    assert b.name == "pets"
    assert set(b.sets()) == {"train", "val", "test", "ood_val/more", "near/bats", "far/cars"}
    assert b.transform == data.ImageTransform(24, 24, (0.5,) * 3, (0.25,) * 3, flip=False)


def test_toml_of_arrays_and_halves(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, n in (("train", 30), ("test", 10), ("odd", 7)):
        np.savez(tmp_path / f"{name}.npz", embeddings=rng.normal(size=(n, 8)), labels=np.arange(n) % 3)
    (tmp_path / "b.toml").write_text(
        '[id]\ntrain = "train.npz"\ntest = "test.npz"\n[ood]\nfar = {odd = "odd.npz"}\nval = "gaussian"'
    )
    b = data.read_benchmark(tmp_path / "b.toml")
    assert b.transform is None
    assert b.classes == ("0", "1", "2")
    assert b.val is None
    assert set(b.far["odd"].y.tolist()) == {-1}  # type: ignore[union-attr]
    assert b.ood_val["gaussian noise"].x.shape == (1000, 8)  # type: ignore[union-attr]


def test_toml_of_sounds(tmp_path: Path) -> None:
    for i in range(24):
        write_sound(tmp_path / "digits" / f"{i % 2}_anna_{i}.wav", hertz=200 + 100 * i)
    write_sound(tmp_path / "rain" / "0.wav", hertz=3000)
    write_sound(tmp_path / "other.flac" / "0.flac", rate=44100)
    text = "[id]\npath = 'digits'\nlabel = '(\\d)_'\n[ood]\nfar = {rain = 'rain', other = 'other.flac'}\n"
    (tmp_path / "b.toml").write_text(text + "[audio]\nsample_rate = 8000\nseconds = 0.5\nmels = 20")
    b = data.read_benchmark(tmp_path / "b.toml")
    assert b.classes == ("0", "1")
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
    b = data.own_benchmark({"train": folder, "test": folder})
    assert (len(b.train), len(b.test)) == (100, 20)  # type: ignore[arg-type]


def test_validation_folders_are_numbered_as_in_training(photos: Path) -> None:
    write_image(photos / "val" / "dog" / "0.png")
    halves = {"train": photos / "photos", "test": photos / "val"}
    assert data.own_benchmark(halves, size=32).test.y.tolist() == [1]  # type: ignore[union-attr]
    write_image(photos / "val" / "eel" / "0.png")
    with pytest.raises(data.DataError, match="the class 'eel' is not in the training data"):
        data.own_benchmark(halves, size=32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[id", "not valid TOML"),
        ("name = 'x'", r"has no section \[id\]"),
        ("[id]\npth = 'photos'", r"\[id\] does not know 'pth'; it may have label, path"),
        ("[id]\npath = 'photos'\ntrain = 'photos'", "needs either path, or train and test"),
        ("[id]\ntrain = 'photos'", "known data needs train and test"),
        ("[id]\npath = 'nowhere'", "nowhere: there is no such file or folder"),
        ("[id]\npath = 'cars'", "known data must have classes"),
        ("[id]\npath = 'photos'\n[ood]\nfar = 'cars'", "must be a table of names and paths"),
        ("[id]\npath = 'photos'\n[ood]\nval = 'pink'", 'must be "gaussian", "uniform" or'),
        ("[id]\npath = 'photos'\n[transform]\nsides = 3", "unexpected keyword argument 'sides'"),
        ("[id]\npath = 'bats'", "class some has 1 samples, too few to split"),
        ("[id]\npath = 'photos'\n[transform]\nsize = 32\n[ood]\nfar = {noise = 'a.npz'}", "far/noise holds floats"),
    ],
)
def test_what_can_be_wrong_in_a_toml(photos: Path, text: str, message: str) -> None:
    np.savez(photos / "a.npz", x=np.zeros((3, 4)))
    (photos / "b.toml").write_text(text)
    with pytest.raises(data.DataError, match=message):
        data.read_benchmark(photos / "b.toml")


def test_data_sets_of_any_kind() -> None:
    x = torch.from_numpy(pixels(60, 1, 20, 20))
    known = data.TensorSet("known", x, torch.arange(60) % 3)
    b = data.own_benchmark(known, {"odd": [torch.zeros(1, 20, 20, dtype=torch.uint8)]})
    assert b.transform.crop == 20  # type: ignore[union-attr]
    assert b.transform.channels == 1  # type: ignore[union-attr]
    assert len(b.test) == 6
