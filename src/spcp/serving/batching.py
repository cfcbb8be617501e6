"""Samples of many requests in one batch: whatever has come while the detector was busy is the next batch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from ..exported import ExportedDetection

Detect = Callable[[np.ndarray], ExportedDetection]


class _Waiting(NamedTuple):
    samples: np.ndarray  # (n, ...)
    result: asyncio.Future[ExportedDetection]
    since: float


class Batcher:
    """Decide about the samples of many requests at once, in a thread beside the event loop.

    Samples wait in a queue while the detector is busy. When it is done, all of them that fit are the next batch. So
    nothing waits while the detector is idle, and the more clients there are, the fuller are the batches.

    Args:
        detect: decides about a batch.
        batch_size: the samples of a batch, at most.
        max_wait: seconds that samples which came while the detector was busy wait for a fuller batch.
        observe: called with the size of each batch and the seconds it took.
    """

    def __init__(
        self,
        detect: Detect,
        *,
        batch_size: int = 32,
        max_wait: float = 0.0,
        observe: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self.detect, self.batch_size, self.max_wait, self.observe = detect, batch_size, max_wait, observe
        self._queue: deque[_Waiting] = deque()
        self._waiting = 0  # samples in the queue
        self._busy = False
        self._later: asyncio.TimerHandle | None = None
        self._batches: SimpleQueue[list[_Waiting]] = SimpleQueue()  # for the thread; an empty one is the last
        self._thread = threading.Thread(target=self._work, name="spcp-detect", daemon=True)
        self._thread.start()

    def submit(self, samples: np.ndarray) -> asyncio.Future[ExportedDetection]:
        """Return the future of what is decided about samples (n, ...)."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[ExportedDetection] = loop.create_future()
        self._queue.append(_Waiting(samples, result, loop.time()))
        self._waiting += len(samples)
        if not self._busy:
            self._busy = True
            loop.call_soon(self._start)  # with all that arrived in this turn of the loop
        elif self._later is not None and self._waiting >= self.batch_size:
            self._later.cancel()
            self._start()
        return result

    def close(self) -> None:
        """Wait until the last batch is decided."""
        self._batches.put([])
        self._thread.join()

    def _start(self) -> None:
        """Start a batch, of the samples that came first; without any, the detector is idle."""
        self._later = None
        batch = self._take()
        self._busy = bool(batch)
        if batch:
            self._batches.put(batch)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue:
            samples, result, _ = self._queue[0]
            if batch and (size + len(samples) > self.batch_size or samples.shape[1:] != batch[0].samples.shape[1:]):
                break
            self._queue.popleft()
            self._waiting -= len(samples)
            if not result.done():  # else its client was told that time is up
                batch.append(_Waiting(samples, result, 0.0))
                size += len(samples)
        return batch

    def _work(self) -> None:
        """Decide about batches, in the thread; the event loop is woken up once for each, and does the rest."""
        while batch := self._batches.get():
            try:
                decided: ExportedDetection | Exception = self._decide([waiting.samples for waiting in batch])
            except Exception as error:
                decided = error
            batch[0].result.get_loop().call_soon_threadsafe(self._finish, batch, decided)

    def _decide(self, parts: list[np.ndarray]) -> ExportedDetection:
        samples = parts[0] if len(parts) == 1 else np.concatenate(parts)
        decided = []
        for start in range(0, len(samples), self.batch_size):  # one request may hold more than a batch
            begin = time.perf_counter()
            part = samples[start : start + self.batch_size]
            decided.append(self.detect(part))
            self.observe(len(part), time.perf_counter() - begin)
        return decided[0] if len(decided) == 1 else ExportedDetection(*map(np.concatenate, zip(*decided, strict=True)))

    def _finish(self, batch: list[_Waiting], decided: ExportedDetection | Exception) -> None:
        """Start the next batch, and hand out the results of this one."""
        wait = self._queue[0].since + self.max_wait - asyncio.get_running_loop().time() if self._queue else 0.0
        if wait > 0 and self._waiting < self.batch_size:
            self._later = asyncio.get_running_loop().call_later(wait, self._start)
        else:
            self._start()
        end = 0
        for samples, result, _ in batch:
            begin, end = end, end + len(samples)
            if result.done():
                continue
            if isinstance(decided, Exception):
                result.set_exception(decided)
            else:
                result.set_result(ExportedDetection(*(column[begin:end] for column in decided)))
