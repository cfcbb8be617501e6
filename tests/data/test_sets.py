import math

import numpy as np
import pytest
import torch
from formats import pixels

from spcp import data


def test_noise_has_the_statistics_of_the_data() -> None:
    x = np.clip(np.random.default_rng(0).normal([[[100.0]], [[60.0]], [[150.0]]], 20, (500, 3, 8, 8)), 0, 255)
    samples = data.TensorSet("some", torch.from_numpy(x.round().astype(np.uint8)), torch.zeros(500, dtype=torch.int64))
    gaussian = data.noise("gaussian", samples, count=2000, seed=1)
    assert gaussian.x.shape == (2000, 3, 8, 8)
    assert gaussian.x.dtype == torch.uint8
    assert set(gaussian.y.tolist()) == {-1}
    for channel, mean in enumerate((100, 60, 150)):
        assert abs(gaussian.x[:, channel].double().mean() - mean) < 0.5
        assert abs(gaussian.x[:, channel].double().std() - 20) < 0.5
    uniform = data.noise("uniform", samples, count=2000)
    assert abs(uniform.x.double().mean() - 127.5) < 1
    assert {int(uniform.x.min()), int(uniform.x.max())} == {0, 255}
    assert torch.equal(data.noise("uniform", samples, 10).x, uniform.x[:10])
    assert not torch.equal(data.noise("uniform", samples, 10, seed=3).x, uniform.x[:10])


def test_noise_like_a_transform_and_like_embeddings() -> None:
    transform = data.ImageTransform(64, 56, (0.4, 0.5, 0.6), (0.1, 0.1, 0.05))
    images = data.noise("gaussian", transform, count=20)
    assert images.x.shape == (20, 3, 56, 56)
    assert abs(images.x[:, 2].double().mean() / 255 - 0.6) < 0.01
    assert abs(images.x[:, 2].double().std() / 255 - 0.05) < 0.01
    x = torch.randn(1000, 4) * torch.tensor([1.0, 2.0, 3.0, 0.0]) + torch.arange(4)
    samples = data.TensorSet("some", x, torch.zeros(1000, dtype=torch.int64))
    gaussian = data.noise("gaussian", samples, 5000).x
    torch.testing.assert_close(gaussian.mean(0), x.mean(0), atol=0.2, rtol=0)
    torch.testing.assert_close(gaussian.std(0), x.std(0), atol=0.1, rtol=0.05)
    uniform = data.noise("uniform", samples, 5000).x
    assert (uniform >= x.amin(0)).all()
    assert (uniform <= x.amax(0)).all()
    torch.testing.assert_close(uniform.std(0), (x.amax(0) - x.amin(0)) / math.sqrt(12), atol=0.01, rtol=0.05)
    with pytest.raises(data.DataError, match='noise is "gaussian" or "uniform"'):
        data.noise("pink", samples)  # type: ignore[arg-type]


def test_sets_that_cannot_be() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(data.DataError, match="empty: is empty, so noise cannot be made like it"):
        data.noise("gaussian", data.TensorSet("empty", torch.zeros(0, 4), none))
    with pytest.raises(data.DataError, match=r"images must be \(N, C, H, W\) bytes, not \(2, 3\)"):
        data.TensorSet("flat", torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(data.DataError, match="a label is -2; classes count from 0, and -1 is for what has none"):
        data.TensorSet("x", torch.zeros(2, 3), torch.tensor([0, -2]))


def test_taking_and_relabelling() -> None:
    samples = data.TensorSet("some", torch.arange(5.0)[:, None], torch.tensor([0, 1, 0, 1, 0]), ("a", "b"))
    some = data.take(samples, [3, 0], split="two")
    assert some[0][0].item() == 3
    assert data.histogram(some) == {"a": 1, "b": 1}
    assert some.split == "two"
    ood = data.as_ood(samples)
    assert data.histogram(ood) == {"ood": 5}
    theirs = data.as_set([(np.zeros(2), 1), (np.zeros(3), 0)])
    assert isinstance(theirs, data.ItemSet)
    assert data.histogram(theirs) == {"0": 1, "1": 1}
    assert data.histogram(data.as_ood(data.take(theirs, [1]))) == {"ood": 1}


def test_labels_are_checked() -> None:
    x = torch.from_numpy(pixels(3, 1, 4, 4))
    with pytest.raises(data.DataError, match="some: 3 samples but 2 labels"):
        data.TensorSet("some", x, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(data.DataError, match="a label is 2, but there are only 2 classes"):
        data.TensorSet("some", x, torch.arange(3), ("a", "b"))
    with pytest.raises(data.DataError, match="one int64 for each sample"):
        data.TensorSet("some", x, torch.zeros(3))


def test_class_names_of_others() -> None:
    class Theirs(torch.utils.data.Dataset[int]):
        classes = ("x", "y")

        def __len__(self) -> int:
            return 1

        def __getitem__(self, i: int) -> int:
            return i

    assert data.as_set(Theirs()).class_names == ("x", "y")
