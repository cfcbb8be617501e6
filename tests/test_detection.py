from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import training_run

from spcp import Detector, data, networks
from spcp.data import Listing
from spcp.detection import detect_files, find_files
from spcp.detector import Detection
from spcp.errors import InputError


def test_arrays_and_images(tmp_path: Path) -> None:
    """Arrays and images, in the order they are named; what cannot be read has a problem."""
    benchmark = training_run.benchmark()
    torch.manual_seed(0)
    detector = Detector(networks.cnn(4, width=4)).calibrate(benchmark.loader("val"), alpha=0.1)
    test = benchmark.test
    assert isinstance(test, data.TensorSet)
    np.savez(tmp_path / "a.npz", images=test.x.permute(0, 2, 3, 1).numpy())
    image = pytest.importorskip("PIL.Image")
    for i in range(3):
        image.fromarray(test.x[i, 0].numpy()).save(tmp_path / f"{i}.png")
    (tmp_path / "1.png").write_bytes(b"damaged")
    files, inputs = [str(tmp_path / "a.npz"), str(tmp_path / "*.png")], benchmark.inputs()
    results = list(detect_files(detector, inputs, find_files(files, inputs)))
    expected = detector.detect(torch.cat([x for x, _ in benchmark.loader("test")]))
    assert [result.file for result in results[:2]] == [f"{files[0]}[0]", f"{files[0]}[1]"]
    assert [result.is_ood for result in results[:40]] == expected.is_ood.tolist()
    assert [result.class_name for result in results[:40]] == [tuple("abcd")[k] for k in expected.predictions.tolist()]
    assert [bool(result.problem) for result in results[40:]] == [False, True, False]
    assert results[40].is_ood == results[0].is_ood
    assert results[42].p_value == pytest.approx(results[2].p_value)
    assert results[41].as_record()["is_ood"] is None
    assert "damaged" in results[41].as_record()["problem"] or "1.png" in results[41].as_record()["problem"]
    assert "problem" not in results[40].as_record()
    with pytest.raises(InputError, match="there is no such file or folder"):
        find_files([str(tmp_path / "nothing")], inputs)


def test_files_of_another_kind_or_shape(tmp_path: Path) -> None:
    detector = Detector(networks.mlp(3, inputs=4)).calibrate(torch.randn(40, 4), alpha=0.1)
    inputs = data.Inputs(tuple("abc"), (4,), None)
    np.save(tmp_path / "a.npy", np.zeros((2, 5), np.float32))
    (tmp_path / "b.png").write_bytes(b"")
    results = list(detect_files(detector, inputs, Listing([str(tmp_path / "a.npy"), str(tmp_path / "b.png")], inputs)))
    assert "its samples are (5,), but the network takes (4,)" in results[0].problem
    assert "the network takes floats (4,); give an npz, npy or safetensors" in results[1].problem
    with pytest.raises(ValueError, match="is too large for a sample"):
        data.Inputs.from_json(inputs.as_json() | {"shape": [10**6, 10**6]})


def test_windows_come_in_order_whichever_thread_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread works on a window, with one thread of torch; afterwards torch has as many as before."""
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    detector = Detector(networks.mlp(3, inputs=4)).calibrate(torch.randn(99, 4), alpha=0.1)
    inputs, decide = data.Inputs(tuple("abc"), (4,), None), detector.detect
    threads, seen = torch.get_num_threads(), []

    def detect(samples: torch.Tensor) -> Detection:
        seen.append((threading.current_thread(), torch.get_num_threads()))
        if samples[0, 0] == x[0, 0]:  # the first is the last to be done
            released.wait(60)
        elif samples[0, 0] == x[20, 0]:
            released.set()
        return decide(samples)

    released = threading.Event()
    monkeypatch.setattr(detector, "detect", detect)
    torch.set_num_threads(2)
    try:
        samples = find_files([str(tmp_path / "x.npy")], inputs)
        results = list(detect_files(detector, inputs, samples, batch_size=10, workers=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert [result.file for result in results] == [f"{tmp_path}/x.npy[{i}]" for i in range(50)]
    assert [result.score for result in results] == pytest.approx(decide(torch.from_numpy(x)).scores.tolist())
    assert len(dict(seen)) == 2
    assert {count for _, count in seen} == {1}
