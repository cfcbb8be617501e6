from __future__ import annotations

import pytest
import torch

from spcp.data import TensorSet, proxies


def images(floats: bool = False, side: int = 17, labels: bool = True) -> TensorSet:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (90, 3, side, side + 2), generator=rng, dtype=torch.uint8)
    y = torch.arange(90) % 3 if labels else torch.full((90,), -1)
    return TensorSet("images", x.float() / 255 if floats else x, y)


@pytest.mark.parametrize("floats", [False, True])
def test_of_images(floats: bool) -> None:
    like = images(floats)
    made = proxies(like, count=70)
    assert list(made) == ["noise", "blended", "shuffled", "inverted", "scrambled"]
    for name, outliers in made.items():
        assert (len(outliers), outliers.x.dtype, outliers.x.shape[1:]) == (70, like.x.dtype, like.x.shape[1:]), name
        assert (outliers.y == -1).all()
        assert outliers.x.float().isfinite().all()
        assert torch.equal(proxies(like, count=70)[name].x, outliers.x)  # the same again
        assert not torch.equal(proxies(like, count=70, seed=1)[name].x, outliers.x)
    rows = torch.randperm(90, generator=torch.Generator().manual_seed(0))[:70]
    x = like.x[rows]
    expected = 2 * x.mean(0) - x if floats else 255 - x
    torch.testing.assert_close(made["inverted"].x, expected)
    inner = made["shuffled"].x[:, :, :16, :16]  # cells of 4 x 4 pixels; what is left over stays
    torch.testing.assert_close(made["shuffled"].x[:, :, 16:], x[:, :, 16:])
    assert torch.equal(inner.flatten(2).sort(2).values, x[:, :, :16, :16].flatten(2).sort(2).values)
    assert not torch.equal(inner, x[:, :, :16, :16])
    cell = inner[0, :, 4:8, 8:12]
    assert any(torch.equal(cell, x[0, :, a : a + 4, b : b + 4]) for a in range(0, 16, 4) for b in range(0, 16, 4))
    if floats:  # bytes are rounded and limited
        spectra = [torch.fft.rfft2(samples).abs() for samples in (made["scrambled"].x, x)]
        torch.testing.assert_close(*spectra, rtol=1e-2, atol=1e-2)


def test_blends_are_of_two_classes() -> None:
    x = torch.eye(3)[torch.arange(90) % 3].view(90, 3, 1, 1).expand(-1, -1, 8, 8)
    blended = proxies(TensorSet("classes", x.contiguous(), torch.arange(90) % 3))["blended"].x
    assert ((blended == 0.5).sum(1) == 2).all()
    assert "blended" not in proxies(images(labels=False))
    assert "blended" not in proxies(TensorSet("one", x.contiguous(), torch.zeros(90, dtype=torch.int64)))


def test_of_vectors() -> None:
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    x[:, 1] = x[:, 0]
    made = proxies(TensorSet("vectors", x, torch.arange(50) % 2))
    assert list(made) == ["noise", "blended", "permuted", "extrapolated"]
    permuted = made["permuted"].x
    assert torch.equal(permuted.sort(0).values, x.sort(0).values)  # each feature as before,
    assert not torch.allclose(permuted[:, 0], permuted[:, 1])  # but not together
    assert made["extrapolated"].x.norm(dim=1).mean() > 1.5 * x.norm(dim=1).mean()


@pytest.mark.parametrize("side", [1, 3, 32])
def test_small_images(side: int) -> None:
    for outliers in proxies(images(side=side)).values():
        assert outliers.x.shape[2:] == (side, side + 2)
