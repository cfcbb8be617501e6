"""`spcp detect --engine ray`: the rows of one process, whoever is killed meanwhile."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spcp import Detector, data, networks
from spcp.engines import cluster, connect
from spcp.errors import InputError
from spcp.journal import Journal

from . import Spcp

ray = pytest.importorskip("ray")
pytest.importorskip("onnxruntime")
parquet = pytest.importorskip("pyarrow.parquet")
arrow = pytest.importorskip("pyarrow")

pytestmark = [
    pytest.mark.filterwarnings("ignore:the network has random weights:UserWarning"),
    pytest.mark.filterwarnings("ignore:`use_.*deprecated:DeprecationWarning"),  # Ray's own
]

# Runs in every process of the cluster: an image whose name is in the folder WAIT is not opened while it is there, and
# who waits for it is written into that file.
WAITING = """
import os, time
from PIL import Image

open_plain = Image.open

def open_when_allowed(source, *arguments, **options):
    place = os.path.join(os.environ["WAIT"], os.path.basename(str(source)))
    if os.path.exists(place):
        with open(place, "r+") as file:
            file.write(str(os.getpid()))
    while os.path.exists(place):
        time.sleep(0.01)
    return open_plain(source, *arguments, **options)

Image.open = open_when_allowed
"""


@pytest.fixture(scope="module")
def wait(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wait")


@pytest.fixture(scope="module")
def address(wait: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of two processors, which this process is connected to."""
    code = tmp_path_factory.mktemp("code")
    (code / "sitecustomize.py").write_text(WAITING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(code))
        patch.setenv("WAIT", str(wait))
        with connect(cores=2):
            yield ray.get_runtime_context().gcs_address


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported detector."""
    inputs = data.Inputs(("a", "b", "c"), (3, 16, 16), data.ImageTransform(16, 16, (0.5,) * 3, (0.5,) * 3))
    torch.manual_seed(0)
    detector = Detector(networks.cnn(3, channels=3, width=4), "energy").calibrate(torch.randn(99, 3, 16, 16), 0.2)
    return detector.export(tmp_path_factory.mktemp("file") / "d.onnx", torch.randn(8, 3, 16, 16), inputs=inputs)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 60 images, one of them damaged; the same in tar and parquet files; and an array."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "some").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (60, 18, 18, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / "some" / f"{i:02}.png")
    (folder / "some" / "20.png").write_bytes(b"damaged")
    files = sorted((folder / "some").iterdir())
    for name, mode in (("a.tar", "w"), ("b.tar.gz", "w:gz")):
        with tarfile.open(folder / name, mode) as tar:
            for file in files:
                tar.add(file, file.name)
    table = arrow.table({"image": [file.read_bytes() for file in files]})
    parquet.write_table(table, folder / "c.parquet", row_group_size=25)
    np.save(folder / "d.npy", pixels[:9])
    return folder


# What is wrong, before there is a cluster


def test_bad_input(run: Spcp, file: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = pictures / "some"
    with_ray = ["detect", some, "--run", file, "--engine", "ray"]
    assert "add --engine ray" in run("detect", some, "--run", file, "--address", "auto").err
    assert "leave out --engine ray" in run("detect", "--follow", "--run", file, "--engine", "ray").err
    shutil.copy(file, tmp_path / "d.safetensors")
    other = run("detect", some, "--run", tmp_path / "d.safetensors", "--engine", "ray")
    assert (other.code, other.out) == (2, "")
    assert "is no exported file" in other.err
    out = tmp_path / "out.csv"
    for address, message in {
        "nonsense": "must be host:port",
        "ray://127.0.0.1:10001": "Ray's client cannot run this",
        "127.0.0.1:1": "no Ray cluster answers (Connection refused)",
    }.items():
        result = run(*with_ray, "--address", address, "--out", out)
        assert (result.code, result.out) == (2, "")
        assert message in result.err
        assert len(result.err.splitlines()) == 1
    with monkeypatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as silent:
        patch.setattr(cluster, "JOIN", 2.0)
        result = run(*with_ray, "--address", f"127.0.0.1:{silent.getsockname()[1]}", "--out", out)
        assert "no Ray cluster answers in 2 s" in result.err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(*with_ray, "--out", out) == (2, "", "spcp: --engine ray: this needs Ray: pip install 'spcp[ray]'\n")
    assert not list(tmp_path.glob("*.csv"))


def test_a_run_that_cannot_be_exported(
    run: Spcp, file: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "detector.safetensors").touch()
    failed = subprocess.CompletedProcess([], 2, "", "spcp: odin needs gradients; calibrate another score\n")
    monkeypatch.setattr("spcp.serving.server.subprocess.run", lambda *_, **__: failed)
    result = run("detect", pictures / "some", "--run", tmp_path, "--engine", "ray")
    assert result.code == 2
    assert "cannot be exported (odin needs gradients; calibrate another score)" in result.err


# A cluster


def test_a_cluster_without_room(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(at: str | None = None, **needs: Any) -> str:
        with pytest.raises(InputError) as caught, connect(at, **needs):
            pass
        return str(caught.value)

    assert "at most 2 processors a machine, and 3 are needed" in refused(cpus=3)
    assert "a worker needs 1048576.0" in refused(memory=1 << 50)
    assert "connected to another Ray cluster" in refused("10.0.0.1:6379")
    busy = ray.remote(num_cpus=2)(type("Busy", (), {"wait": lambda self: None})).remote()
    ray.get(busy.wait.remote())
    assert "other jobs use all processors of the Ray cluster for 0.1 s" in refused(wait=0.1)
    ray.kill(busy)
    monkeypatch.setattr(cluster, "__version__", "0.0.1")
    assert "and this is 0.0.1; pip install 'spcp[ray]==0.0.1' there" in refused()


def test_the_rows_of_one_process(run: Spcp, address: str, file: Path, pictures: Path, tmp_path: Path) -> None:
    """To the byte, from all kinds of inputs at once."""
    inputs = [pictures / "some", pictures / "*.tar*", pictures / "c.parquet", pictures / "d.npy", "-"]
    named = "".join(f"{pictures}/{name}\n" for name in ("some/03.png", "lost.png", "some/03.png"))
    arguments = ["detect", *inputs, "--run", file, "--batch-size", 7]
    here = run(*arguments, "--out", tmp_path / "here.csv", "--workers", 0, stdin=named)
    there = run(*arguments, "--out", tmp_path / "there.csv", "--engine", "ray", stdin=named)
    assert (here.code, there.code) == (3, 3), there.err
    assert "252 inputs in" in there.err
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
    told = [[line for line in result.err.splitlines() if "/s" not in line] for result in (here, there)]
    assert told[0] == told[1]  # Ray is quiet


def test_kills_cost_no_row_and_double_none(
    run: Spcp,
    address: str,
    file: Path,
    pictures: Path,
    wait: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First of a worker, then of the command, and then it is interrupted; each in the middle of the inputs."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    shutil.copy(file, folder / "detector.onnx")
    out, alone = tmp_path / "out.jsonl", tmp_path / "alone.jsonl"
    arguments = ["detect", str(pictures / "some"), "--run", str(folder), "--batch-size", "2"]
    command = [*arguments, "--engine", "ray", "--workers", "1", "--out", str(out)]
    assert run(*arguments[:3], file, *arguments[4:], "--workers", 0, "--out", alone).code == 3
    for name in ("24.png", "44.png"):
        (wait / name).touch()
    driver = [sys.executable, "-m", "spcp.cli", *command, "--address", address]
    with subprocess.Popen(driver, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: bool((wait / "24.png").read_text()) and rows(out) >= 20)
        os.kill(int((wait / "24.png").read_text()), signal.SIGKILL)
        (wait / "24.png").unlink()
        until(lambda: bool((wait / "44.png").read_text()) and rows(out) >= 36)
        os.kill(process.pid, signal.SIGKILL)
        assert process.stderr is not None
        lines = [line for line in process.stderr.read().splitlines() if not line.startswith("detecting: ")]
        assert lines == [f"{folder / 'detector.onnx'}: the exported file of the run, which decides"]  # Ray is quiet
    (wait / "44.png").unlink()
    written = rows(out)
    assert written < 45
    calls = itertools.count()
    append = Journal.append

    def interrupted(self: Journal, records: Any) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        append(self, records)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", interrupted)
        stopped = run(*command)
    assert stopped.code == 130
    assert f"has {written} rows already; going on from there" in stopped.err
    assert f"has {written + 4} rows; the same command goes on from there" in stopped.err
    assert run(*command).code == 3
    assert out.read_bytes() == alone.read_bytes()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def rows(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0
