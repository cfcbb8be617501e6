"""Numbers that break formulas: every score is finite for each of these."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from spcp import Detector
from spcp.bank import FeatureBank
from spcp.scores import SCORES, build_score

from .test_scores import OPTIONS, D, K, fit_on, make_head

Case = tuple[nn.Linear, Tensor, Tensor]  # a head; features to fit on, and the labels of those


def features(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, D, generator=torch.Generator().manual_seed(seed)).relu() + 0.01


def labels(rows: int) -> Tensor:
    return torch.arange(rows) % K


def scaled(factor: float) -> nn.Linear:
    head = make_head(False)
    with torch.no_grad():
        head.weight.mul_(factor)
    return head


def one_class() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(D, 1).eval()


def zeros_among() -> Tensor:
    h = features(60)
    h[::3] = 0
    return h


CASES: Mapping[str, Callable[[], Case]] = {
    "ordinary": lambda: (make_head(False), features(60), labels(60)),
    "truncating": lambda: (make_head(True), features(60), labels(60)),
    "half precision": lambda: (make_head(False).half(), features(60).half(), labels(60)),
    "bfloat16": lambda: (make_head(False).bfloat16(), features(60).bfloat16(), labels(60)),
    "logits of 1e4": lambda: (scaled(1e4), features(60), labels(60)),
    "logits of 1e4, truncated": lambda: (make_head(True), features(60) * 1e4, labels(60)),
    "features of 1e4 in half precision": lambda: (scaled(1e-1).half(), (features(60) * 1e4).half(), labels(60)),
    "constant features": lambda: (make_head(False), torch.ones(60, D), labels(60)),
    "features all 0": lambda: (make_head(False), torch.zeros(60, D), labels(60)),
    "some features all 0": lambda: (make_head(False), zeros_among(), labels(60)),
    "a class without samples": lambda: (make_head(False), features(60), labels(60).clamp(max=K - 2)),
    "only one class has samples": lambda: (make_head(False), features(60), torch.zeros(60, dtype=torch.int64)),
    "one class": lambda: (one_class(), features(60), torch.zeros(60, dtype=torch.int64)),
    "one sample": lambda: (make_head(False), features(1), labels(1)),
    "one sample of each class": lambda: (make_head(False), features(K), labels(K)),
    "duplicates": lambda: (make_head(False), features(3).repeat(20, 1), labels(60)),
    "a singular covariance": lambda: (make_head(False), features(60)[:, :1] * torch.ones(D), labels(60)),
    "fewer samples than features": lambda: (make_head(False), features(8), labels(8)),
    "weights all 0": lambda: (scaled(0.0), features(60), labels(60)),
    "negative features": lambda: (make_head(False), -features(60), labels(60)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [name for name in SCORES if name != "odin"])
def test_every_score_is_finite(name: str, case: str) -> None:
    head, h, y = CASES[case]()
    options = dict(OPTIONS.get(name, {}))
    if head.out_features == 1 and name == "mos":
        options["groups"] = [[]]
    samples = torch.cat([h.float(), features(20, seed=1), torch.zeros(2, D), torch.full((2, D), 1e3)])
    with torch.no_grad():
        fit = FeatureBank.of(h, head(h), y)
        samples = samples.to(head.weight.dtype)
        data = FeatureBank.of(samples, head(samples))
    assert fit.logits.isfinite().all()
    assert data.logits.isfinite().all()
    scores = fit_on(build_score(name, **options), fit, head).scores(data, head)
    assert scores.shape == (len(data),)
    assert scores.isfinite().all(), scores


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_networks_of_other_precision(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 5)).to(dtype)
    detector = Detector(network, build_score(name, **OPTIONS.get(name, {})))
    x = torch.randn(99, 4, dtype=dtype)
    result = detector.fit([(x, torch.arange(99) % 5)]).calibrate(x).detect(torch.randn(9, 4, dtype=dtype))
    assert result.scores.isfinite().all()
    assert result.p_values.isfinite().all()


@pytest.mark.parametrize("name", SCORES)
def test_inputs_that_are_not_finite_are_flagged(name: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 5))
    detector = Detector(network, build_score(name, **OPTIONS.get(name, {})))
    x = torch.randn(99, 4)
    detector.fit([(x, torch.arange(99) % 5)]).calibrate(x)
    odd = torch.tensor([[math.nan] * 4, [math.inf] * 4, [0, math.nan, 0, 0], [0, math.inf, 0, 0], [0, 0, 0, -math.inf]])
    assert detector.detect(odd).is_ood.all()
