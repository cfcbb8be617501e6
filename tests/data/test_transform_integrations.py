"""The transforms against torchvision's, and data sets of torchvision and Hugging Face as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formats import pixels, write_cifar10_python, write_image
from others import imported
from PIL import Image

from spcp import data
from spcp.data.images import eval_pixels

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("transform", [data.BENCHMARKS[name].transform for name in ("cifar10", "imagenet")])
@pytest.mark.parametrize("size", [(28, 28), (64, 64), (500, 375), (333, 500), (257, 256), (31, 90)])
def test_the_test_transform_is_torchvisions(
    library: Any, transform: data.ImageTransform, size: tuple[int, int]
) -> None:
    transforms = imported("torchvision.transforms")
    image = Image.fromarray(pixels(7, 9, 3)).resize(size, Image.Resampling.BICUBIC)
    mode = transforms.InterpolationMode.BILINEAR
    chain = [transforms.Resize(transform.resize, interpolation=mode), transforms.CenterCrop(transform.crop)]
    theirs = transforms.Compose(chain)(image)
    assert np.array_equal(eval_pixels(image, transform), np.asarray(theirs))
    normalise = [transforms.ToTensor(), transforms.Normalize(transform.mean, transform.std)]
    ((x, _),) = data.Loader([image], transform, workers=0)
    torch.testing.assert_close(x[0], transforms.Compose(normalise)(theirs), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_other_interpolations_and_squashed_images(library: Any, interpolation: Any) -> None:
    transforms = imported("torchvision.transforms")
    mode = transforms.InterpolationMode(interpolation)
    for size in ((500, 375), (31, 90)):
        image = Image.fromarray(pixels(7, 9, 3)).resize(size, Image.Resampling.BICUBIC)
        for squash, resize in ((False, 48), (True, (48, 48))):
            transform = data.ImageTransform(48, 40, (0.5,) * 3, (0.5,) * 3, interpolation=interpolation, squash=squash)
            chain = [transforms.Resize(resize, interpolation=mode), transforms.CenterCrop(40)]
            assert np.array_equal(eval_pixels(image, transform), np.asarray(transforms.Compose(chain)(image)))
    with pytest.raises(data.DataError, match="interpolation must be"):
        data.ImageTransform(48, 40, (0.5,) * 3, (0.5,) * 3, interpolation="cubic")  # type: ignore[arg-type]


def test_torchvisions_data_sets(library: Any, tmp_path: Path) -> None:
    datasets = imported("torchvision.datasets")
    for i in range(6):
        write_image(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", (40, 50), seed=i)
    theirs = datasets.ImageFolder(str(tmp_path / "photos"))
    cifar = data.BENCHMARKS["cifar10"].transform
    assert data.as_set(theirs).class_names == ("a", "b")
    ((x, y),) = data.Loader(theirs, cifar, workers=0)
    ((own_x, own_y),) = data.Loader(data.read_folder(tmp_path / "photos"), cifar, cache=False)
    assert torch.equal(x, own_x)
    assert torch.equal(y, own_y)
    write_cifar10_python(tmp_path / "cifar-10-batches-py")
    numbers = datasets.CIFAR10.__new__(datasets.CIFAR10)  # its constructor wants the official checksums
    batch = data.read_cifar(tmp_path / "cifar-10-batches-py", "test")
    numbers.data, numbers.targets = batch.x.permute(0, 2, 3, 1).numpy(), batch.y.tolist()
    numbers.transform = numbers.target_transform = None
    numbers.classes = list(batch.class_names)
    ((x, y),) = data.Loader(numbers, cifar, workers=0)
    ((own_x, own_y),) = data.Loader(batch, cifar)
    assert torch.equal(x, own_x)
    assert torch.equal(y, own_y)


def test_hugging_faces_data_sets() -> None:
    datasets = imported("datasets")
    images = [Image.fromarray(pixels(40, 36, 3, seed=i)) for i in range(5)]
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    theirs = datasets.Dataset.from_dict({"img": images, "label": [0, 1, 1, 0, 1]}, features=features)
    cifar = data.BENCHMARKS["cifar10"].transform
    pets = data.as_set(theirs, "pets")
    assert pets.class_names == ("cat", "dog")
    assert data.histogram(pets) == {"cat": 2, "dog": 3}
    expected = data.prepare(images, cifar)
    for workers in (0, 2):
        ((x, y),) = data.Loader(pets, cifar, workers=workers)
        assert torch.equal(x, next(iter(data.Loader(expected, cifar)))[0])
        assert y.tolist() == [0, 1, 1, 0, 1]
    vectors = datasets.Dataset.from_dict({"x": torch.randn(4, 3).tolist(), "label": [0, 1, 0, 1]}).with_format("torch")
    ((x, y),) = data.Loader(vectors, workers=0)
    assert x.shape == (4, 3)
    split = data.make_benchmark(datasets.concatenate_datasets([theirs] * 6), size=32, name="pets")
    assert len(split.test) == 3
