"""How fast `spcp serve` answers, beside a minimal FastAPI app around the bare network.

    python benchmarks/serving.py [--check] [--seconds 4] [--rounds 3]

Both have as many threads, for onnxruntime and for the rest, decode the same PNG by the same function, and answer the
class and all probabilities; the bare app has no detector, no batching and no limits. They are loaded in turn by 1, 8
and 64 clients that each wait for an answer before they ask again. The clients are one process of raw sockets on this
machine, so they take a part of its cores. "CPU" is what the server's process takes for a request: where others use the
machine, that is what the two can be compared by. Aim: at least 0.9 times the requests per second of the bare app,
whatever the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread
import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from PIL import Image
from starlette.concurrency import run_in_threadpool

CLIENTS = (1, 8, 64)
AIM = 0.9
SIDE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when the aim is missed")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bare", metavar="FILE", help="serve this network, and nothing else")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.bare:
        bare(options.bare, options.port)
        return

    from timing import finish, machine

    print(machine(), flush=True)
    columns = ("1/s", "p50", "p99", "CPU")
    head = ("network", "clients", *(f"{who}: {what}" for who in ("bare", "spcp") for what in columns), "times the bare")
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (network, detector) in write_networks(Path(folder)).items():
            script = [__file__, "--bare", str(network)]
            served = ["-m", "spcp.cli", "serve", str(detector), "--quiet"]
            with started(script) as first, started(served) as second:
                for clients in CLIENTS:
                    loads: list[list[Load]] = [[], []]
                    for _ in range(options.rounds):
                        for server, own in zip((first, second), loads, strict=True):
                            own.append(measured(server, clients, options.seconds))
                    ratios = [s.rate / b.rate for b, s in zip(*loads, strict=True)]
                    ratio = statistics.median(ratios)
                    cells = [name, str(clients), *(cell for own in loads for cell in shown(own)), f"{ratio:.2f}"]
                    print(f"| {' | '.join(cells)} |", flush=True)
                    if ratio < AIM:
                        missed.append(f"{name}, {clients} clients: {ratio:.2f} times the bare app, aim {AIM}")
    finish(missed, options.check)


def write_networks(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Write networks, each bare and as a detector by its energy; their weights are random."""
    import torch

    from spcp import Detector
    from spcp.data import ImageTransform, Inputs
    from spcp.networks import cnn, resnet18

    inputs = Inputs(tuple(map(str, range(10))), (3, SIDE, SIDE), ImageTransform(SIDE, SIDE, (0.5,) * 3, (0.25,) * 3))
    files: dict[str, tuple[Path, Path]] = {}
    torch.manual_seed(0)
    x = torch.randn(100, *inputs.shape)
    networks = {"small CNN": cnn(10, channels=3), "ResNet-18, 16 wide": resnet18(10, width=16)}
    for name, network in networks.items():
        detector = Detector(network.eval(), "energy").calibrate(x)
        files[name] = folder / f"{len(files)}-network.onnx", folder / f"{len(files)}.onnx"
        detector.export(files[name][1], x[:4], inputs=inputs)
        program = torch.onnx.export(
            network,
            (x[:2],),
            input_names=["input"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(str(files[name][0]))
    return files


def bare(file: str, port: int) -> None:
    """Serve a network as one would at first: blocking work goes to a thread, as FastAPI's documentation advises."""
    from spcp.data.images import ImageTransform, eval_pixels, normalisation, open_image

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = len(os.sched_getaffinity(0))
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # else it takes the cores from the rest
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    transform = ImageTransform(SIDE, SIDE, (0.5,) * 3, (0.25,) * 3)
    scale, shift = normalisation(transform.mean, transform.std)
    app = FastAPI()

    def classify(body: bytes) -> dict[str, Any]:
        pixels = eval_pixels(open_image(io.BytesIO(body), name="the image"), transform)[None]
        (logits,) = session.run(["logits"], {"input": pixels.transpose(0, 3, 1, 2) * scale - shift})
        p = np.exp(logits[0] - logits[0].max())
        p /= p.sum()
        return {"class": str(p.argmax()), "probabilities": {str(k): v for k, v in enumerate(p.tolist())}}

    @app.post("/detect")
    async def detect(request: Request) -> JSONResponse:
        anyio.to_thread.current_default_thread_limiter().total_tokens = len(os.sched_getaffinity(0)) + 1
        return JSONResponse(await run_in_threadpool(classify, await request.body()))

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


class Server(NamedTuple):
    process: int
    port: int

    def cpu(self) -> float:
        """Seconds of processor time that it has taken."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[Server]:
    """Start a server on a free port, and stop it in the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, *command, "--port", str(port)])
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                asyncio.run(load(port, 8, 0.5))
                break
            time.sleep(0.1)
        yield Server(server.pid, port)
    finally:
        server.terminate()
        server.wait()


class Load(NamedTuple):
    """What clients saw: requests per second, the seconds that each took, and what the server took for it."""

    rate: float
    seconds: list[float]
    cpu: float


def measured(server: Server, clients: int, seconds: float) -> Load:
    begin, cpu = time.perf_counter(), server.cpu()
    times = asyncio.run(load(server.port, clients, seconds))
    return Load(len(times) / (time.perf_counter() - begin), times, (server.cpu() - cpu) / len(times))


def shown(loads: list[Load]) -> list[str]:
    """The medians of a number of loads, as text."""
    columns = [(own.rate, *(1000 * statistics.quantiles(own.seconds, n=100)[i] for i in (49, 98))) for own in loads]
    rate, p50, p99 = map(statistics.median, zip(*columns, strict=True))
    cpu = 1000 * statistics.median(own.cpu for own in loads)
    return [f"{rate:.0f}", f"{p50:.1f} ms", f"{p99:.1f} ms", f"{cpu:.2f} ms"]


async def load(port: int, clients: int, seconds: float) -> list[float]:
    """Ask for some seconds, with so many clients at once; return the seconds that each request took."""
    request = b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
    body = picture()
    end = time.perf_counter() + seconds
    times = await asyncio.gather(*(ask(port, request % len(body) + body, end) for _ in range(clients)))
    return [seconds for own in times for seconds in own]


async def ask(port: int, request: bytes, end: float) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = []
    while time.perf_counter() < end:
        start = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        times.append(time.perf_counter() - start)
    writer.close()
    return times


def picture() -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    main()
