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

from spcp import apply_spcp, data, features, methods
from spcp.errors import InputError
from spcp.features import Features, build_bank, extract, model_key, outputs_of
from spcp.networks.base import evaluating

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
    monkeypatch.setattr(features, "SHARD", 32)
    Counting.seen[0] = 0


def bank(model: nn.Module, folder: Path, own: Any = None, **options: Any) -> Features:
    return build_bank(model, images() if own is None else own, TRANSFORM, folder=folder, batch_size=16, **options)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("banks/*/*.safetensors"), key=lambda path: path.stat().st_mtime_ns)  # as they were made


def test_one_pass_gives_features_logits_labels_and_classes(tmp_path: Path) -> None:
    model = Counting()
    found = bank(model, tmp_path)
    assert model.seen == [100]
    assert len(shards(tmp_path)) == 4
    x = torch.cat([x for x, _ in data.Loader(images(), TRANSFORM)])
    model.eval()
    with torch.no_grad():
        h = model.body(x)
        torch.testing.assert_close(found.h, h)
        torch.testing.assert_close(found.z, model.fc(h))
    assert torch.equal(found.y, torch.arange(100) % 3)
    assert torch.equal(found.k, found.z.argmax(1))
    assert found.accuracy() == pytest.approx(float((found.k == found.y).float().mean()))
    assert (len(found), found.size, found.num_classes) == (100, 16, 3)
    again = bank(model, tmp_path)
    assert model.seen == [100]
    assert torch.equal(again.h, found.h)


def test_the_network_is_left_as_it_was(tmp_path: Path) -> None:
    model = Counting().train()
    model.body[1].eval()  # a mixture of modes
    apply_spcp(model, rho_norm=1.0, total_steps=10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(UserWarning, match="still its initial"):
        found = bank(model, tmp_path)
    assert model.training
    assert model.dropout.training
    assert not model.body[1].training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not found.h.requires_grad
    assert not model.fc._forward_hooks
    assert not model.fc._forward_pre_hooks
    with pytest.raises(ZeroDivisionError), evaluating(model):
        raise ZeroDivisionError
    assert model.dropout.training


def test_whatever_changes_the_numbers_changes_the_bank(tmp_path: Path) -> None:
    model = Counting()
    bank(model, tmp_path)
    built = model.seen[0]

    def rebuilt(**options: Any) -> bool:
        nonlocal built
        bank(model, tmp_path, **options)
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
    assert rebuilt(own=changed)
    relabelled = images()
    relabelled.y[7] = 0
    assert rebuilt(own=relabelled)
    assert rebuilt(dtype=torch.float16)
    model.body[1].eps = 1e-3  # no part of the state dict
    assert rebuilt()
    other = data.ImageTransform(8, 8, (0.4,), (0.25,), augment="none", flip=False)
    build_bank(model, images(), other, folder=tmp_path, batch_size=16)
    assert model.seen[0] > built


def test_whatever_a_model_depends_on_is_in_its_key() -> None:
    keys = [model_key(Counting())]
    assert model_key(Counting()) == keys[0]

    def changed(change: Any) -> None:
        model = Counting()
        change(model)
        keys.append(model_key(model))

    changed(lambda model: setattr(model, "scales", (1, 2)))
    changed(lambda model: setattr(model, "scales", (1, 3)))
    changed(lambda model: setattr(model, "_offset", 3))
    changed(lambda model: setattr(model, "rule", lambda x: x + 1))
    changed(lambda model: setattr(model, "rule", lambda x: x + 2))
    changed(lambda model: setattr(model, "forward", lambda x: x))
    changed(lambda model: model.register_buffer("hidden", torch.ones(1), persistent=False))
    changed(lambda model: model.fc.register_forward_hook(lambda module, inputs, output: output * 2))
    changed(lambda model: model.fc.register_forward_hook(lambda module, inputs, output: output * 3))
    changed(lambda model: setattr(model, "__class__", type("Child", (Counting,), {"forward": lambda self, x: x})))
    with torch.autocast("cpu"):
        keys.append(model_key(Counting()))
    mos = [methods.MOS(groups=groups) for groups in ([[0, 1], [2]], [[0], [1, 2]])]
    keys += [model_key(Counting(), method) for method in (methods.T2FNorm(), *mos)]
    assert len(set(keys)) == len(keys)


def test_data_that_grows_only_adds_shards(tmp_path: Path) -> None:
    model = Counting()
    bank(model, tmp_path, data.take(images(), range(70)))  # 32, 32, 6
    model.seen[0] = 0
    grown = bank(model, tmp_path)
    assert model.seen == [36]
    assert torch.equal(grown.h, bank(Counting(), tmp_path / "elsewhere").h)


def test_a_bank_that_was_cut_short_is_continued(tmp_path: Path) -> None:
    model = Counting()
    whole = bank(model, tmp_path)
    model.seen[0] = 0
    for path in shards(tmp_path)[2:]:
        path.unlink()
    again = bank(model, tmp_path)
    assert model.seen == [36]  # 100 less two shards of 32
    assert torch.equal(again.h, whole.h)
    shards(tmp_path)[1].unlink()  # a hole in the middle
    assert torch.equal(bank(model, tmp_path).z, whole.z)
    assert model.seen == [36 + 32]


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "noise"])
def test_a_damaged_bank_is_found_out(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Counting()
    whole = bank(model, tmp_path)
    path = shards(tmp_path)[1]
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    damaged = {"flip": bytes(content), "truncate": bytes(content[:-9]), "empty": b"", "noise": b"x" * 99}[how]
    expected = whole.h.clone()
    del whole
    path.unlink()  # the old file stays mapped
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING, "spcp"):
        again = bank(model, tmp_path)
    assert "damaged; made again" in caplog.text
    assert torch.equal(again.h, expected)
    caplog.clear()
    bank(model, tmp_path)
    assert not caplog.records


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "spcp"):
        found = bank(Counting(), tmp_path / "file")
    assert "kept in memory" in caplog.text
    assert torch.equal(found.h, bank(Counting(), tmp_path).h)


def test_numbers_too_large_for_half_precision(tmp_path: Path) -> None:
    model = Counting()
    with torch.no_grad():
        model.body[1].weight *= 1e6
    with pytest.raises(InputError, match=r"too large for torch.float16; store them in float32 or bfloat16"):
        bank(model, tmp_path, dtype=torch.float16)


def test_threads_may_share_a_model() -> None:
    model, x = Counting().eval(), torch.randn(64, 1, 8, 8)
    expected, wrong = extract(model, x).z, []

    def work() -> None:
        for _ in range(50):
            if not torch.equal(extract(model, x).z, expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_builders_at_once(tmp_path: Path) -> None:
    found: list[Features] = []
    models = [Counting(), Counting()]
    threads = [threading.Thread(target=lambda own=own: found.append(bank(own, tmp_path))) for own in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert torch.equal(found[0].h, found[1].h)
    assert len(shards(tmp_path)) == 4


def test_killed_while_building(tmp_path: Path) -> None:
    """A process that dies in the middle leaves whole shards; the next one goes on from there."""
    code = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parent)]!r}
import test_features as t
from pathlib import Path
t.features.SHARD = 32
write, done = t.features._write_shard, []
def dying(path, part):
    if len(done) == 2:
        os.kill(os.getpid(), 9)
    done.append(write(path, part))
t.features._write_shard = dying
t.bank(t.Counting(), Path({str(tmp_path)!r}))
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert len(shards(tmp_path)) == 2
    model = Counting()
    bank(model, tmp_path)
    assert model.seen == [36]


def test_half_precision_on_disk(tmp_path: Path) -> None:
    found, half = bank(Counting(), tmp_path), bank(Counting(), tmp_path, dtype=torch.float16)
    assert half.h.dtype == torch.float32  # as they are used
    torch.testing.assert_close(half.h, found.h, rtol=1e-3, atol=1e-3)
    sizes = sorted(sum(path.stat().st_size for path in own.iterdir()) for own in (tmp_path / "banks").iterdir())
    assert sizes[0] < 0.75 * sizes[1]


def test_items_of_somebody_elses(tmp_path: Path) -> None:
    """They may change, so they are passed through each time; with a key of the user's they are kept."""
    items = [(torch.full((1, 8, 8), i / 10), i % 3) for i in range(10)]
    model = Counting()
    for _ in range(2):
        build_bank(model, data.ItemSet("items", items), None, folder=tmp_path)
    assert model.seen == [20]
    for _ in range(2):
        build_bank(model, data.ItemSet("items", items), None, folder=tmp_path, key="mine, version 1")
    assert model.seen == [30]


def test_any_model_and_what_cannot_be_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x))

    with pytest.raises(InputError, match=r"the classifier of Twice saw \(2, 4\), \(2, 4\) in one pass"):
        outputs_of(Twice(), classifier="fc")(torch.randn(2, 4))
    with pytest.raises(InputError, match="there are no samples"):
        extract(Counting(), [])
    with pytest.raises(InputError, match="a batch holds a str, not a tensor"):
        extract(Counting(), ["x.png"])
    with pytest.raises(InputError, match="2 inputs and 3 labels"):
        extract(Counting(), (torch.randn(2, 1, 8, 8), torch.zeros(3)))
    pair = extract(Counting(), (torch.randn(2, 1, 8, 8), torch.tensor([[1.0], [2.0]])))
    assert pair.y.tolist() == [1, 2]
    assert len(extract(Counting(), torch.randn(2, 1, 8, 8).numpy())) == 2
    assert len(extract(Counting(), [[torch.randn(2, 1, 8, 8)]])) == 2  # a TensorDataset of inputs alone
    found = extract(Counting(), [torch.randn(3, 1, 8, 8), torch.randn(2, 1, 8, 8)])
    assert found.y.tolist() == [-1] * 5
    plain = extract(Counting(), [torch.randn(3, 1, 8, 8)]).with_head(nn.Linear(16, 2))
    assert plain.num_classes == 2
