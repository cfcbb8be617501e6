"""How fast `spcp serve` answers, beside a minimal FastAPI app around the bare network.

    python benchmarks/serving.py [--check] [--seconds 4] [--rounds 3]

Both run onnxruntime with as many threads, decode the same PNG by the same function, and answer the class and all
probabilities; the bare app has no detector, no batching and no limits. They are loaded in turn by 1, 8 and 64 clients
that each wait for an answer before they ask again. The clients are one process of raw sockets on the same machine, so
they take a part of its cores. Aim: at least 0.9 times the requests per second of the bare app, whatever the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    head = ("network", "clients", "bare: 1/s", "p50", "p99", "spcp: 1/s", "p50", "p99", "times the bare")
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (network, detector) in write_networks(Path(folder)).items():
            script = [__file__, "--bare", str(network)]
            served = ["-m", "spcp.cli", "serve", str(detector), "--quiet"]
            with started(script, 8701) as first, started(served, 8702) as second:
                for clients in CLIENTS:
                    loads: list[list[Load]] = [[], []]
                    for _ in range(options.rounds):
                        for port, own in zip((first, second), loads, strict=True):
                            own.append(asyncio.run(load(port, clients, options.seconds)))
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
    """Serve a network as one would at first."""
    import numpy as np
    import onnxruntime
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse
    from starlette.concurrency import run_in_threadpool

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

    mode = os.environ.get("MODE", "pool")

    async def detect(request: Request) -> JSONResponse:
        if mode == "inline":
            return JSONResponse(classify(await request.body()))
        return JSONResponse(await run_in_threadpool(classify, await request.body()))

    detect.__annotations__ = {"request": Request}
    app.post("/detect", response_model=None)(detect)

    @app.get("/health")
    def health() -> str:
        return "ok"

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


@contextlib.contextmanager
def started(command: list[str], port: int) -> Iterator[int]:
    """Start a server, and stop it in the end."""
    server = subprocess.Popen([sys.executable, *command, "--port", str(port)])
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                asyncio.run(load(port, 1, 0.5))
                break
            time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait()


class Load:
    """What clients saw: requests per second, and the seconds that each took."""

    def __init__(self, seconds: list[float], duration: float) -> None:
        self.seconds, self.rate = seconds, len(seconds) / duration

    def percentile(self, percent: int) -> float:
        return statistics.quantiles(self.seconds, n=100)[percent - 1]


def shown(loads: list[Load]) -> list[str]:
    percentiles = [statistics.median(load.percentile(p) for load in loads) for p in (50, 99)]
    rate = statistics.median(load.rate for load in loads)
    return [f"{rate:.0f}", *(f"{1000 * value:.1f} ms" for value in percentiles)]


async def load(port: int, clients: int, seconds: float) -> Load:
    """Ask for some seconds, with so many clients at once."""
    request = b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
    body = picture()
    begin = time.perf_counter()
    times = await asyncio.gather(*(ask(port, request % len(body) + body, begin + seconds) for _ in range(clients)))
    return Load([t for own in times for t in own], time.perf_counter() - begin)


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
    import numpy as np
    from PIL import Image

    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    main()
