"""Samples of many requests in one batch: whatever has come while the detector was busy is the next batch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ..exported import ExportedDetection

Detect = Callable[[np.ndarray], ExportedDetection]
Read = Callable[[], np.ndarray]  # samples (n, ...) of a request; an exception is the request's


class _Waiting(NamedTuple):
    samples: np.ndarray  # (n, ...)
    future: asyncio.Future[ExportedDetection]
    since: float


class Batcher:
    """Read and decide about the samples of requests, in threads.

    A thread that has read samples puts them into a queue. If nobody runs the detector, it does so itself, until the
    queue is empty; else it is free for the next request. So a sample never waits while the detector is idle, a single
    client has no thread to wait for, and many clients make full batches.

    Args:
        detect: decides about a batch.
        batch_size: the samples of a batch, at most.
        max_wait: seconds that samples which came while the detector was busy wait for a fuller batch.
        threads: how many read, and run the detector.
        observe: called with the size of each batch and the seconds it took.
    """

    def __init__(
        self,
        detect: Detect,
        *,
        batch_size: int = 32,
        max_wait: float = 0.0,
        threads: int = 2,
        observe: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self.detect, self.batch_size, self.max_wait, self.observe = detect, batch_size, max_wait, observe
        self.waiting = 0  # samples in the queue
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._pool = ThreadPoolExecutor(threads, "spcp")

    def submit(self, read: Read) -> asyncio.Future[ExportedDetection]:
        """Read samples in a thread, and return the future of what is decided about them."""
        future: asyncio.Future[ExportedDetection] = asyncio.get_running_loop().create_future()
        self._pool.submit(self._read, read, future)
        return future

    def close(self) -> None:
        """Wait until all that was submitted is decided."""
        self._pool.shutdown()

    def _read(self, read: Read, future: asyncio.Future[ExportedDetection]) -> None:
        if future.cancelled():  # the client has gone, or its time is up
            return
        try:
            samples = read()
        except Exception as error:
            _settle([(future, error)])
            return
        with self._changed:
            self._queue.append(_Waiting(samples, future, time.monotonic()))
            self.waiting += len(samples)
            self._changed.notify()
            if self._busy:
                return
            self._busy = True
        batch = self._next()
        while batch:
            self._run(batch)
            batch = self._next(wait=True)

    def _next(self, wait: bool = False) -> list[_Waiting]:
        """Take a batch from the queue: samples of one shape, in the order they came; nothing: the detector is idle."""
        with self._changed:
            while wait and self._queue and self.waiting < self.batch_size:
                left = self._queue[0].since + self.max_wait - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            batch: list[_Waiting] = []
            size = 0
            while self._queue:
                samples = self._queue[0].samples
                if batch and (size + len(samples) > self.batch_size or samples.shape[1:] != batch[0].samples.shape[1:]):
                    break
                size += len(samples)
                batch.append(self._queue.popleft())
            self.waiting -= size
            self._busy = bool(batch)
            return batch

    def _run(self, batch: list[_Waiting]) -> None:
        batch = [waiting for waiting in batch if not waiting.future.cancelled()]
        if not batch:
            return
        try:
            samples = np.concatenate([waiting.samples for waiting in batch]) if len(batch) > 1 else batch[0].samples
            parts = []
            for start in range(0, len(samples), self.batch_size):  # one request may hold more than a batch
                begin = time.monotonic()
                part = samples[start : start + self.batch_size]
                parts.append(self.detect(part))
                self.observe(len(part), time.monotonic() - begin)
            whole = parts[0] if len(parts) == 1 else ExportedDetection(*map(np.concatenate, zip(*parts, strict=True)))
        except Exception as error:
            _settle([(waiting.future, error) for waiting in batch])
            return
        ends = np.cumsum([len(waiting.samples) for waiting in batch]).tolist()
        shares = (slice(end - len(waiting.samples), end) for waiting, end in zip(batch, ends, strict=True))
        rows = [ExportedDetection(*(column[share] for column in whole)) for share in shares]
        _settle([(waiting.future, row) for waiting, row in zip(batch, rows, strict=True)])


def _settle(results: list[tuple[asyncio.Future[ExportedDetection], ExportedDetection | Exception]]) -> None:
    """Hand results over to the event loop, which is woken up once for all of them."""

    def settle() -> None:
        for future, result in results:
            if future.done():  # cancelled
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    results[0][0].get_loop().call_soon_threadsafe(settle)
