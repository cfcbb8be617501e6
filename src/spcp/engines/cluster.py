"""A Ray cluster for the time of one job: one on this machine, or one that is there already."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .. import __version__
from ..errors import InputError, need, reason

ANSWER = 5.0  # seconds in which the machine of an address takes a connection
JOIN = 60.0  # seconds in which a cluster takes a driver, and starts a process on each machine
WAIT = 60.0  # seconds in which other jobs give back what they use

_HERE = {  # of the processes of a cluster on this machine
    "OMP_NUM_THREADS": "1",  # a worker has one core
    "RAY_worker_niceness": "0",  # it is all that this command does; Ray would give way to every other process
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns
}
_UNSEEN = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}  # of what a cluster tells its drivers, such as that a worker died
_CHATTY = ("ray", "ray.data", "ray.tune", "ray.train")
_JOIN = "import ray, sys; ray.init(sys.argv[1], logging_level='ERROR', log_to_driver=False); ray.shutdown()"


@contextlib.contextmanager
def connect(
    address: str | None = None,
    *,
    cpus: int = 1,
    memory: int = 0,
    cores: int | None = None,
    wait: float = WAIT,
    verbose: bool = False,
) -> Iterator[ModuleType]:
    """Start a Ray cluster on this machine, or connect to that at `address`; yield the module `ray`.

    At the end, a cluster that was started is stopped, and one that was there goes on. A process that is connected
    already stays so.

    Args:
        address: "host:port" of a cluster, or "auto": that of this machine; None starts one.
        cpus: the processors that one worker needs; a cluster without a machine that has them is an error.
        memory: the bytes that one worker needs, likewise.
        cores: the processors of a cluster that is started, by default all.
        wait: seconds to wait for processors that other jobs use.
        verbose: show what Ray has to say.
    """
    try:
        with _environment({} if verbose else _UNSEEN):
            ray = need("ray", "Ray", "ray")
    except ImportError as error:
        raise InputError(f"--engine ray: {error}") from error
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here):
            raise InputError(f"--address {address}: this process is connected to another Ray cluster, {here}; end that")
        _check_room(ray, cpus, memory, wait)
        _check_versions(ray)
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}
    with _as_it_was(verbose):
        try:
            with contextlib.nullcontext() if verbose else _silent():
                if address is None:
                    with _environment(_HERE):
                        ray.init("local", num_cpus=cores, include_dashboard=False, **options)
                else:
                    _check_address(address)
                    ray.init(address, **options)
        except (ConnectionError, RuntimeError, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            what = f"--address {address}: cannot be joined" if address else "a Ray cluster cannot be started here"
            raise InputError(f"{what} ({reason(error)}); see ray status") from error
        try:
            _check_room(ray, cpus, memory, wait)
            if address is not None:
                _check_versions(ray)
            yield ray
        finally:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Raise an error if there is no cluster at an address, in bounded time: `ray.init` tries for minutes."""
    if "://" in address:
        raise InputError(
            f"--address {address}: Ray's client cannot run this; start the command on a machine of the cluster "
            "(ray job submit), with --address auto"
        )
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"--address {address}: must be host:port, such as 10.0.0.1:6379, or auto")
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "nobody answers"
            raise InputError(
                f"--address {address}: no Ray cluster answers ({why}); check it, or start one: ray start --head"
            ) from error
    try:
        tried = subprocess.run([sys.executable, "-c", _JOIN, address], capture_output=True, text=True, timeout=JOIN)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"--address {address}: no Ray cluster answers in {JOIN:g} s; check it (ray status)") from error
    if tried.returncode:
        lines = [line for line in tried.stderr.splitlines() if line and not line.startswith((" ", "["))]
        why = lines[-1].rstrip(".")[:200] if lines else f"exit code {tried.returncode}"
        raise InputError(f"--address {address}: the Ray cluster cannot be joined ({why}); check it (ray status)")


def _check_room(ray: Any, cpus: int, memory: int, wait: float) -> None:
    """Raise an error if no machine can ever hold a worker, or if others use all processors for `wait` seconds."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = max((int(machine.get("CPU", 0)) for machine in machines), default=0)
    if most < cpus:
        raise InputError(
            f"the Ray cluster has at most {most} processors a machine, and {cpus} are needed; add machines"
        )
    largest = max(machine.get("memory", 0) for machine in machines if machine.get("CPU", 0) >= cpus)
    if largest < memory:
        raise InputError(
            f"the Ray cluster has at most {largest / 2**30:.1f} GiB of memory a machine, and a worker needs "
            f"{memory / 2**30:.1f}; free some, or add machines"
        )
    end = time.monotonic() + wait
    while ray.available_resources().get("CPU", 0) < cpus:
        if time.monotonic() > end:
            raise InputError(f"other jobs use all processors of the Ray cluster for {wait:g} s; wait for them")
        time.sleep(0.2)


def _check_versions(ray: Any) -> None:
    """Raise an error if a machine of the cluster has no spcp, or another version than this one."""

    def version() -> str:  # in a function, and so sent as code: spcp may not be there
        try:
            import spcp

            return spcp.__version__
        except ImportError:
            return ""

    pin = need("ray.util.scheduling_strategies", "Ray", "ray").NodeAffinitySchedulingStrategy
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0)]
    asked = ray.remote(num_cpus=0, max_retries=0)(version)
    answers = [asked.options(scheduling_strategy=pin(node["NodeID"], soft=False)).remote() for node in nodes]
    ready, _ = ray.wait(answers, num_returns=len(answers), timeout=JOIN)
    for node, answer in zip(nodes, answers, strict=True):
        name = node["NodeManagerHostname"]
        if answer not in ready:
            raise InputError(f"{name}, a machine of the Ray cluster, does not answer in {JOIN:g} s; see ray status")
        try:
            there = ray.get(answer)
        except Exception as error:  # whatever keeps a process there from starting
            raise InputError(f"{name}, a machine of the Ray cluster, cannot work ({reason(error)})") from error
        if there != __version__:
            has = f"spcp {there}" if there else "no spcp"
            cure = f"pip install 'spcp[ray]=={__version__}' there"
            raise InputError(f"{name}, a machine of the Ray cluster, has {has}, and this is {__version__}; {cure}")


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep the part of Ray that is not Python quiet: it writes to the standard error of the process itself."""
    with _environment({"RAY_BACKEND_LOG_LEVEL": "fatal"}), open(os.devnull, "wb") as nothing:
        kept = os.dup(2)
        os.dup2(nothing.fileno(), 2)  # where it says that it will be quiet
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def _as_it_was(verbose: bool) -> Iterator[None]:
    """Put back what Ray changes of this process: how it ends, what it logs; and keep Ray quiet, unless verbose."""
    handler = signal.getsignal(signal.SIGTERM)
    levels = {name: logging.getLogger(name).level for name in _CHATTY}
    if not verbose:
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
