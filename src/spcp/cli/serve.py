"""`spcp serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from .app import command, verbosity
from .options import Model, latest_run, option
from .output import note


@command("serve", panel="Ship")
def serve_command(
    path: Annotated[
        Path | None,
        Argument(help="An exported detector (.onnx), or a calibrated run; default: the latest.", show_default=False),
    ] = None,
    host: Annotated[str, option("The address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, option("0 for any that is free.")] = 8000,
    workers: Annotated[int, option("Processes, which share the cores.")] = 1,
    batch_size: Annotated[int, option("Samples that are decided about at once, at most.")] = 32,
    max_wait_ms: Annotated[
        float, option("Milliseconds that samples wait for a fuller batch while others are decided about.")
    ] = 0.0,
    max_bytes: Annotated[int, option("Largest body of a request.")] = 16 << 20,
    max_pixels: Annotated[int, option("Largest image.")] = 25_000_000,
    timeout: Annotated[float, option("Seconds until a request is answered.")] = 30.0,
    log: Annotated[Path | None, option("Append every decision to this file, as a line of JSON.")] = None,
    model: Model = None,
) -> None:
    """Serve a detector over HTTP, until SIGTERM or Ctrl-C.

    Image files, forms with files and JSON arrays go to /detect; a browser shows a page to drop pictures on. /health,
    /metrics (Prometheus) and /docs (OpenAPI) say more. There is no password: put a proxy in front if others can reach
    it. A run is exported to its folder first; the service itself does not import torch.

    [dim]spcp serve runs/digits-spcp-0 --port 8080
    curl --data-binary @photo.jpg http://127.0.0.1:8080/detect[/dim]
    """
    from ..serving.server import serve

    path = latest_run(None, "detector.safetensors") if path is None else path
    serve(
        path,
        host=host,
        port=port,
        workers=workers,
        model=model,
        access_log=verbosity.verbose,
        started=lambda url: note(f"serving {path} at {url}; Ctrl-C stops it"),
        batch_size=batch_size,
        max_wait_ms=max_wait_ms,
        max_bytes=max_bytes,
        max_pixels=max_pixels,
        timeout=timeout,
        log=None if log is None else str(log.resolve()),
    )
