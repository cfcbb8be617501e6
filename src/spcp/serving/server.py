"""Start the service: the exported file, the port, and the processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data.errors import DataError
from ..errors import InputError, check_numbers, need
from ..exported import ExportedDetector
from .settings import Settings

EXPORTED = "detector.onnx"  # in the folder of a run
_PACKAGES = {  # by module
    "PIL": "pillow",
    "fastapi": "fastapi",
    "onnxruntime": "onnxruntime",
    "prometheus_client": "prometheus-client",
    "python_multipart": "python-multipart",
    "uvicorn": "uvicorn",
}


def serve(
    path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    model: str | None = None,
    access_log: bool = False,
    started: Callable[[str], None] = lambda url: None,
    **settings: Any,
) -> None:
    """Serve a detector until the process is told to stop (SIGTERM, Ctrl-C); requests in progress are answered first.

    Args:
        path: an exported detector, or a calibrated run, which is exported first, see `exported_file`.
        host: the address to listen at; "0.0.0.0" for all.
        port: 0 for any that is free.
        workers: processes, which share the cores.
        model: the code of the run's network, see `Run.open`.
        access_log: print a line for each request.
        started: called with the address.
        **settings: those of `Settings` that shall not be the defaults.
    """
    for module, package in _PACKAGES.items():
        need(module, package, "serve")
    import uvicorn

    from .metrics import FOLDER

    check_numbers({"port": port, "workers": workers}, {"port": (int, 0, 65535), "workers": (int, 1, 256)})
    file = exported_file(path, model=model).resolve()
    name = file.parent.name if Path(path).is_dir() else file.stem
    threads = max(1, _cores() // workers)
    chosen = Settings(**{"file": str(file), "name": name, "threads": threads, **settings})
    _try(chosen)
    host, port = _free(host, port)
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn's own while it runs; at its end that was no failure
    with tempfile.TemporaryDirectory(prefix="spcp-metrics-") as folder:
        chosen.to_environment()
        if workers > 1:
            os.environ[FOLDER] = folder
        started(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        uvicorn.run(
            "spcp.serving.app:from_environment",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            log_level="info" if access_log else "warning",
            access_log=access_log,
            server_header=False,
            timeout_graceful_shutdown=int(chosen.timeout) + 1,
        )


def _try(settings: Settings) -> None:
    """Open the files here, where an error is one sentence, and not only in the workers."""
    from .samples import Samples

    try:
        Samples(ExportedDetector.open(settings.file, threads=1))
    except DataError as error:
        raise InputError(f"{settings.file}: {error}") from error
    if settings.log:
        open(settings.log, "ab").close()


def exported_file(path: str | Path, *, model: str | None = None) -> Path:
    """Return the file of an exported detector.

    The file of a run lies in its folder. If there is none, or it is older than the detector, another process, which
    needs torch, writes it.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        return path
    detector, exported = path / "detector.safetensors", path / EXPORTED
    if not detector.exists() and not exported.exists():
        raise InputError(f"{path}: has no calibrated detector; run spcp calibrate {path} first")
    if detector.exists() and (not exported.exists() or exported.stat().st_mtime < detector.stat().st_mtime):
        command = [sys.executable, "-m", "spcp.cli", "export", str(path), "--out", str(exported)]
        command += ["--quiet", *(["--model", model] if model else [])]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            reason = done.stderr.strip().removeprefix("spcp: ") or f"exit code {done.returncode}"
            raise InputError(f"{path}: cannot be exported ({reason}); see spcp export --help")
    return exported


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free(host: str, port: int) -> tuple[str, int]:
    """Return the address if nobody listens at it; for port 0, one that is free."""
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
            return host, trial.getsockname()[1]
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{host}:{port}: nobody can listen there ({reason}); choose another --host or --port"
        ) from error
