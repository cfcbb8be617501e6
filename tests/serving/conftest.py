from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from .files import write

# A process in which torch cannot be imported, and whose detector waits as long as a file is there.
START = """
import os, sys, time
sys.modules["torch"] = None
from spcp.cli import main
from spcp.exported import ExportedDetector
detect = ExportedDetector.detect
def slow(self, samples):
    while os.path.exists(os.environ["GATE"]):
        time.sleep(0.01)
    return detect(self, samples)
ExportedDetector.detect = slow
main()
"""


class Reply(NamedTuple):
    status: int
    body: Any  # of JSON, else text
    headers: dict[str, str]


class Server:
    """A process that serves, and how to ask it."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str = "/detect", body: Any = None, kind: str = "", method: str = "") -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        method = method or ("GET" if body is None else "POST")
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": kind} if kind else {})
            response = connection.getresponse()
            text = response.read()
        headers = {key.lower(): value for key, value in response.getheaders()}
        is_json = headers["content-type"].startswith("application/json")
        return Reply(response.status, json.loads(text) if is_json else text.decode(), headers)

    def form(self, *files: tuple[str, bytes]) -> Reply:
        part = '--x\r\nContent-Disposition: form-data; name="file"; filename="{}"\r\n\r\n'
        body = b"".join(part.format(name).encode() + data + b"\r\n" for name, data in files) + b"--x--\r\n"
        return self.ask(body=body, kind="multipart/form-data; boundary=x")

    def arrays(self, value: Any) -> Reply:
        return self.ask(body=value if isinstance(value, str) else json.dumps(value), kind="application/json")

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.ask("/metrics").body, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def serving(path: Path, *options: object, gate: Path = Path("nowhere")) -> Iterator[Server]:
    """Run `spcp serve` on a free port, in a process of its own without torch."""
    command = [sys.executable, "-c", START, "serve", path, "--port", 0, *options]
    environment = {**os.environ, "PYTHONWARNINGS": "error", "GATE": str(gate)}
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r" at http://127.0.0.1:(\d+);", line)
        assert found, line + process.stderr.read()
        server = Server(process, int(found[1]))
        for _ in range(600):
            with contextlib.suppress(OSError):
                server.ask("/health")
                break
            assert process.poll() is None, process.stderr.read()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        yield server
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "decisions.jsonl"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[Server]:
    file = write(tmp_path_factory.mktemp("served") / "colours.onnx")
    limits = ("--max-bytes", 100_000, "--max-pixels", 200_000, "--timeout", 2, "--batch-size", 8)
    with serving(file, *limits, "--log", log) as running:
        yield running


def picture(colour: tuple[int, int, int] = (200, 100, 50), size: tuple[int, int] = (8, 8), kind: str = "PNG") -> bytes:
    """Return an image file of a colour, with some noise."""
    noise = np.random.default_rng(0).integers(-20, 20, (size[1], size[0], 3))
    return encoded(np.clip(noise + colour, 0, 255).astype(np.uint8), kind)


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
