"""Batches of Hugging Face, dictionaries with `pixel_values` and `labels`, are taken wherever data is."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping

import pytest
import torch
from others import imported
from torch import Tensor, nn

from spcp import Detector, apply_spcp, contribution_pattern, data, explain, fit_threshold
from spcp.errors import InputError

X, Y = torch.randn(60, 3, 8, 8), torch.arange(60) % 4

Make = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]


def feature(batch: dict[str, Tensor]) -> Mapping[str, Tensor]:
    made: Mapping[str, Tensor] = imported("transformers").BatchFeature(batch)  # what image processors return
    return made


def encoding(batch: dict[str, Tensor]) -> Mapping[str, Tensor]:
    made: Mapping[str, Tensor] = imported("transformers").BatchEncoding(batch)
    return made


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 4))


def theirs() -> nn.Module:
    torch.manual_seed(0)
    transformers = imported("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**small, image_size=8, patch_size=4, num_labels=4)
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model


def batches(make: Make, labels: bool = True) -> list[Mapping[str, Tensor]]:
    parts = [X.split(20), Y.split(20)] if labels else [X.split(20)]
    return [make(dict(zip(("pixel_values", "labels"), part, strict=False))) for part in zip(*parts, strict=True)]


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("build", [plain, theirs])
@pytest.mark.parametrize("make", [dict, UserDict, feature, encoding])
def test_batches_are_taken_wherever_data_is(make: Make, build: Callable[[], nn.Module]) -> None:
    pairs = list(zip(X.split(20), Y.split(20), strict=True))
    model = build()
    detectors = [Detector(model, "mds").fit(given).calibrate(given, alpha=0.1) for given in (pairs, batches(make))]
    new = torch.randn(30, 3, 8, 8)
    expected = detectors[0].detect(new)
    for given in (make({"pixel_values": new}), [make({"pixel_values": half}) for half in new.split(15)]):
        got = detectors[1].detect(given)
        torch.testing.assert_close(got.scores, expected.scores)
        assert torch.equal(got.is_ood, expected.is_ood)
    assert torch.equal(detectors[1].bank(batches(make)).labels, Y)
    assert (detectors[1].bank(batches(make, labels=False)).labels == -1).all()
    apply_spcp(model, rho_norm=0.5, stages="infer")
    assert fit_threshold(model, batches(make)) == fit_threshold(model, pairs)
    patterns = [contribution_pattern(model, given).contributions for given in (batches(make), pairs)]
    assert torch.equal(*patterns)
    explained = explain(model, make({"pixel_values": X[:2], "labels": torch.tensor([-1, -1])}))
    assert [each.prediction for each in explained] == [each.prediction for each in explain(model, X[:2])]


@pytest.mark.parametrize("make", [dict, UserDict, feature])
def test_sets_are_made_of_them(make: Make) -> None:
    whole = data.as_set(make({"pixel_values": X, "labels": Y}))
    assert isinstance(whole, data.TensorSet)
    assert torch.equal(whole.x, X)
    assert torch.equal(whole.y, Y)
    items = data.as_set([make({"pixel_values": x, "labels": y}) for x, y in zip(X, Y, strict=True)])
    x, y = next(iter(data.Loader(items, batch_size=60, workers=0)))
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    benchmark = data.make_benchmark(make({"pixel_values": X, "labels": Y}))
    assert len(benchmark.class_names) == 4


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(InputError, match=r"none of its keys \['attention_mask', 'input_ids'\] is one of image, "):
        Detector(plain()).calibrate([{"input_ids": X, "attention_mask": X}])
    with pytest.raises(ValueError, match="Sequential does not take pixel_values, mask"):
        contribution_pattern(plain(), [{"pixel_values": X, "mask": X}])
