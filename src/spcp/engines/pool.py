"""Processes of this machine, each of which does one job at a time; one that was killed is replaced."""

from __future__ import annotations

import _thread
import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ..errors import InputError
from .job import RESTARTS, STOP, Ended, Job, done_apart

_FORKS = "forkserver" in multiprocessing.get_all_start_methods()
_IMPORTED = ["spcp.experiments", "lightning_fabric", "safetensors.torch"]


def begin() -> None:
    """Start the process that others are forked from; it imports what they need, while this one goes on."""
    if _FORKS:
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(_IMPORTED)
        forkserver.ensure_running()


@dataclass(eq=False)
class _Worker:
    process: Any
    connection: Connection
    job: Job | None = None
    restarts: int = 0


class Pool:
    """Do jobs in processes of this machine.

    Processes are forked from one that has imported what training needs and has no threads, or are new ones where the
    system cannot fork. As everywhere, a script that uses them must be importable: what it does stands under
    `if __name__ == "__main__"`.

    Args:
        count: of processes.
        threads: of each.
        shared: what every job gets.
        tell: called with a line about a process that was killed.
    """

    def __init__(self, count: int, threads: int, shared: Any, tell: Callable[[str], None]) -> None:
        begin()
        self._context: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
        self._count, self._threads, self._tell = count, threads, tell
        try:
            self._shared = pickle.dumps(shared)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise InputError(f"the data cannot be sent to other processes ({error}); take --jobs 1") from error
        self._workers: list[_Worker] = []

    def free(self) -> bool:
        """Tell whether a process is idle, or another can be started."""
        return sum(worker.job is not None for worker in self._workers) < self._count

    def start(self, job: Job) -> None:
        """Give a job to a process."""
        worker = next((worker for worker in self._workers if worker.job is None), None) or self._started()
        worker.job, worker.restarts = job, 0
        self._send(worker)

    def _started(self) -> _Worker:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there, self._threads))
        process.start()
        there.close()  # so that the end of the process ends the connection
        worker = _Worker(process, here)
        self._workers.append(worker)
        with contextlib.suppress(OSError):  # it is gone already, which `ended` notices
            here.send_bytes(self._shared)
        return worker

    def _send(self, worker: _Worker) -> None:
        with contextlib.suppress(OSError):
            worker.connection.send_bytes(pickle.dumps(worker.job))

    def ended(self, seconds: float) -> list[Ended]:
        """Return the jobs that ended; those of processes that were killed start again."""
        ends = []
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        for connection in wait(list(busy), seconds):
            worker = busy[connection]  # type: ignore[index]
            try:
                ends.append(pickle.loads(worker.connection.recv_bytes()))  # by our own process
                worker.job = None
            except (EOFError, OSError):
                ends += self._again(worker)
        return ends

    def _again(self, dead: _Worker) -> list[Ended]:
        """Replace a process that is gone; a job that has lost too many fails."""
        self._workers.remove(dead)
        dead.connection.close()
        dead.process.join()
        assert dead.job is not None
        code, name = dead.process.exitcode, dead.job.name
        how = f"was killed ({signal.Signals(-code).name})" if code and code < 0 else f"ended (exit code {code})"
        if dead.restarts == RESTARTS:
            problem = f"its process {how}, {RESTARTS + 1} times; the memory may not be enough: take fewer --jobs"
            return [Ended(dead.job, None, problem, 1)]
        self._tell(f"{name}: its process {how}; another one goes on from its last state")
        worker = self._started()
        worker.job, worker.restarts = dead.job, dead.restarts + 1
        self._send(worker)
        return []

    def stop(self) -> None:
        """Let jobs save their state, and end all processes; a second Ctrl-C kills them."""
        for worker in self._workers:
            worker.connection.close()  # which interrupts a job
        try:
            for worker in self._workers:
                worker.process.join(STOP)
        finally:
            for worker in self._workers:
                if worker.process.is_alive():
                    worker.process.kill()
                worker.process.join()


def _work(connection: Connection, threads: int) -> None:
    """Do the jobs that come through a connection; when it ends, in the middle of one too, end."""
    if hasattr(os, "setsid"):
        os.setsid()  # a terminal's Ctrl-C is for the process that gives the jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = sys.stderr  # what a user's model prints is no result
    jobs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    busy = threading.Event()

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                jobs.put(connection.recv_bytes())
        jobs.put(None)
        if busy.is_set():
            _thread.interrupt_main()  # as Ctrl-C does: training saves its state first

    threading.Thread(target=read, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt, OSError):
        first = jobs.get()
        if first is None:
            return
        busy.set()
        shared = pickle.loads(first)  # by our own process
        while True:
            busy.clear()
            text = jobs.get()
            if text is None:
                return
            busy.set()
            connection.send_bytes(pickle.dumps(done_apart(pickle.loads(text), shared, threads)))
