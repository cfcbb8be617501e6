from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from spcp import bank, data
from spcp.bank import FeatureBank, build_bank, extract
from spcp.detector import Detector
from spcp.errors import InputError
from spcp.model import ScoredModel

TRANSFORM = data.ImageTransform(8, 8, (0.5,), (0.25,), augment="none", flip=False)


class Counting(nn.Module):
    """Counts the images that go through it, in its class: an instance's attributes are what outputs may depend on."""

    seen: ClassVar[list[int]] = [0]

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.seen[0] += len(x)
        return self.fc(self.dropout(self.body(x)))


def images(n: int = 100, seed: int = 0) -> data.TensorSet:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (n, 1, 8, 8), generator=rng, dtype=torch.uint8)
    return data.TensorSet("images", x, torch.arange(n) % 3, ("a", "b", "c"))


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank, "SHARD", 32)
    Counting.seen[0] = 0


def build(model: nn.Module, folder: Path, samples: Any = None, **options: Any) -> FeatureBank:
    samples = images() if samples is None else samples
    return build_bank(ScoredModel(model), samples, TRANSFORM, folder=folder, batch_size=16, **options)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("banks/*/*.safetensors"), key=lambda path: path.stat().st_mtime_ns)  # as they were made


def test_one_pass_gives_features_logits_labels_and_classes(tmp_path: Path) -> None:
    model = Counting()
    result = build(model, tmp_path)
    assert model.seen == [100]
    assert len(shards(tmp_path)) == 4
    x = torch.cat([x for x, _ in data.Loader(images(), TRANSFORM)])
    model.eval()
    with torch.no_grad():
        h = model.body(x)
        torch.testing.assert_close(result.features, h)
        torch.testing.assert_close(result.logits, model.fc(h))
    assert torch.equal(result.labels, torch.arange(100) % 3)
    assert torch.equal(result.predictions, result.logits.argmax(1))
    assert result.accuracy() == pytest.approx(float((result.predictions == result.labels).float().mean()))
    assert (len(result), result.num_features, result.num_classes) == (100, 16, 3)
    again = build(model, tmp_path)
    assert model.seen == [100]
    assert torch.equal(again.features, result.features)


def test_whatever_changes_the_numbers_changes_the_bank(tmp_path: Path) -> None:
    model = Counting()
    build(model, tmp_path)
    built = model.seen[0]

    def rebuilt(**options: Any) -> bool:
        nonlocal built
        build(model, tmp_path, **options)
        fresh = model.seen[0] > built
        built = model.seen[0]
        return fresh

    assert not rebuilt()
    with torch.no_grad():
        model.fc.weight[0, 0] += 1e-3
    assert rebuilt()
    model.body[1].running_mean += 1e-3
    assert rebuilt()
    changed = images()
    changed.x[7, 0, 0, 0] ^= 1
    assert rebuilt(samples=changed)
    relabelled = images()
    relabelled.y[7] = 0
    assert rebuilt(samples=relabelled)
    assert rebuilt(dtype=torch.float16)
    model.body[1].eps = 1e-3  # no part of the state dict
    assert rebuilt()
    other = data.ImageTransform(8, 8, (0.4,), (0.25,), augment="none", flip=False)
    build_bank(ScoredModel(model), images(), other, folder=tmp_path, batch_size=16)
    assert model.seen[0] > built


def test_data_that_grows_only_adds_shards(tmp_path: Path) -> None:
    model = Counting()
    build(model, tmp_path, data.take(images(), range(70)))  # 32, 32, 6
    model.seen[0] = 0
    grown = build(model, tmp_path)
    assert model.seen == [36]
    assert torch.equal(grown.features, build(Counting(), tmp_path / "elsewhere").features)


def test_a_bank_that_was_interrupted_is_continued(tmp_path: Path) -> None:
    model = Counting()
    whole = build(model, tmp_path)
    model.seen[0] = 0
    for path in shards(tmp_path)[2:]:
        path.unlink()
    again = build(model, tmp_path)
    assert model.seen == [36]  # 100 less two shards of 32
    assert torch.equal(again.features, whole.features)
    shards(tmp_path)[1].unlink()  # a hole in the middle
    assert torch.equal(build(model, tmp_path).logits, whole.logits)
    assert model.seen == [36 + 32]


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "noise"])
def test_a_damaged_bank_is_detected(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Counting()
    whole = build(model, tmp_path)
    path = shards(tmp_path)[1]
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    damaged = {"flip": bytes(content), "truncate": bytes(content[:-9]), "empty": b"", "noise": b"x" * 99}[how]
    expected = whole.features.clone()
    del whole
    path.unlink()  # the old file stays mapped
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING, "spcp"):
        again = build(model, tmp_path)
    assert "damaged; made again" in caplog.text
    assert torch.equal(again.features, expected)
    caplog.clear()
    build(model, tmp_path)
    assert not caplog.records


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "spcp"):
        result = build(Counting(), tmp_path / "file")
    assert "kept in memory" in caplog.text
    assert torch.equal(result.features, build(Counting(), tmp_path).features)


def test_numbers_too_large_for_half_precision(tmp_path: Path) -> None:
    model = Counting()
    with torch.no_grad():
        model.body[1].weight *= 1e6
    with pytest.raises(InputError, match=r"too large for torch.float16; store them in float32 or bfloat16"):
        build(model, tmp_path, dtype=torch.float16)


def test_two_builders_at_once(tmp_path: Path) -> None:
    result: list[FeatureBank] = []
    models = [Counting(), Counting()]
    threads = [threading.Thread(target=lambda model=model: result.append(build(model, tmp_path))) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(result) == 2
    assert torch.equal(result[0].features, result[1].features)
    assert len(shards(tmp_path)) == 4


def test_killed_while_building(tmp_path: Path) -> None:
    """A process that dies in the middle leaves whole shards; the next one goes on from there."""
    code = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parent)]!r}
import test_bank as t
from pathlib import Path
t.bank.SHARD = 32
write, done = t.bank.write_tensors, []
def dying(path, part):
    if len(done) == 2:
        os.kill(os.getpid(), 9)
    done.append(write(path, part))
t.bank.write_tensors = dying
t.build(t.Counting(), Path({str(tmp_path)!r}))
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert len(shards(tmp_path)) == 2
    model = Counting()
    build(model, tmp_path)
    assert model.seen == [36]


def test_half_precision_on_disk(tmp_path: Path) -> None:
    result, half = build(Counting(), tmp_path), build(Counting(), tmp_path, dtype=torch.float16)
    assert half.features.dtype == torch.float32  # as they are used
    torch.testing.assert_close(half.features, result.features, rtol=1e-3, atol=1e-3)
    sizes = sorted(sum(path.stat().st_size for path in folder.iterdir()) for folder in (tmp_path / "banks").iterdir())
    assert sizes[0] < 0.75 * sizes[1]


def test_items_of_unreadable_sources(tmp_path: Path) -> None:
    """They may change, so they are passed through each time; with a key of the user's they are kept."""
    items = [(torch.full((1, 8, 8), i / 10), i % 3) for i in range(10)]
    model = Counting()
    for _ in range(2):
        build_bank(ScoredModel(model), data.ItemSet("items", items), None, folder=tmp_path)
    assert model.seen == [20]
    for _ in range(2):
        build_bank(ScoredModel(model), data.ItemSet("items", items), None, folder=tmp_path, key="mine, version 1")
    assert model.seen == [30]


def test_what_data_may_be() -> None:
    with pytest.raises(InputError, match="there are no samples to score"):
        extract(ScoredModel(Counting()), [])
    with pytest.raises(InputError, match="a batch holds a str, not a tensor"):
        extract(ScoredModel(Counting()), ["x.png"])
    with pytest.raises(InputError, match="2 inputs and 3 labels"):
        extract(ScoredModel(Counting()), (torch.randn(2, 1, 8, 8), torch.zeros(3)))
    pair = extract(ScoredModel(Counting()), (torch.randn(2, 1, 8, 8), torch.tensor([[1.0], [2.0]])))
    assert pair.labels.tolist() == [1, 2]
    listed = extract(ScoredModel(Counting()), [torch.randn(2, 1, 8, 8), torch.tensor([1, 2])])  # a DataLoader's batch
    assert listed.labels.tolist() == [1, 2]
    two = (torch.randn(2, 1, 8, 8), torch.randn(3, 1, 8, 8))
    model = ScoredModel(Counting())
    torch.testing.assert_close(extract(model, two).logits, extract(model, torch.cat(two)).logits)  # batches
    assert extract(model, two).labels.tolist() == [-1] * 5
    wrong = r"tensors of shapes \(2, 1, 8, 8\), \(2, 3\) are neither inputs and labels nor batches"
    with pytest.raises(InputError, match=wrong):
        extract(model, (two[0], torch.zeros(2, 3)))
    with pytest.raises(InputError, match="neither inputs and labels nor batches; give inputs"):
        extract(model, (two[0], torch.zeros(2), torch.zeros(2)))
    with pytest.raises(InputError, match="labels that are not whole numbers; give class numbers"):
        extract(model, (two[0], torch.rand(2)))
    assert len(extract(ScoredModel(Counting()), torch.randn(2, 1, 8, 8).numpy())) == 2
    assert len(extract(ScoredModel(Counting()), [[torch.randn(2, 1, 8, 8)]])) == 2  # a TensorDataset of inputs alone
    result = extract(ScoredModel(Counting()), [torch.randn(3, 1, 8, 8), torch.randn(2, 1, 8, 8)])
    assert result.labels.tolist() == [-1] * 5
    plain = extract(ScoredModel(Counting()), [torch.randn(3, 1, 8, 8)]).with_head(nn.Linear(16, 2))
    assert plain.num_classes == 2


def test_large_inputs_come_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    class Largest(Counting):
        largest: ClassVar[list[int]] = [0]

        def forward(self, x: Tensor) -> Tensor:
            self.largest[0] = max(self.largest[0], len(x))
            return super().forward(x)

    detector = Detector(Largest(), "knn")
    x = torch.randn(300, 1, 8, 8)
    expected = detector.fit(x).calibrate(x).detect(x)
    assert Largest.largest == [256]
    monkeypatch.setattr(bank, "PIECE", 7 * 64)
    for given in (x, (x, torch.zeros(300)), x.numpy()):
        Largest.largest[0] = 0
        found = detector.fit(given).calibrate(given).detect(given)
        assert Largest.largest == [7]
        assert len(detector.detect(x[:30]).scores) == 30  # few enough for one pass, were they small
        assert Largest.largest == [7]
        torch.testing.assert_close(found.scores, expected.scores)
    detector.bank([x])
    assert Largest.largest == [256]  # a caller's batches are as large as he wants them
