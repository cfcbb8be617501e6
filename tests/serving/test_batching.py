"""Which samples share a batch; a gate holds the detector up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from spcp.exported import ExportedDetection
from spcp.serving.batching import Batcher


class Detector:
    """Note the batches; the first waits until the gate opens."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.gate, self.entered = threading.Event(), threading.Event()

    def __call__(self, samples: np.ndarray) -> ExportedDetection:
        self.batches.append(samples.reshape(len(samples), -1)[:, 0].tolist())
        self.entered.set()
        assert self.gate.wait(60)
        if (samples < 0).any():
            raise ValueError("negative")
        scores = samples.reshape(len(samples), -1).sum(1)
        return ExportedDetection(scores.astype(int), scores[:, None], scores, scores / 100, scores < 1)


def run(play: Callable[[Batcher, Detector], Awaitable[None]], **options: Any) -> list[list[float]]:
    """Let a coroutine play with a batcher, and return the batches."""
    detector = Detector()

    async def whole() -> None:
        batcher = Batcher(detector, **options)
        await asyncio.wait_for(play(batcher, detector), 60)
        batcher.close()

    asyncio.run(whole())
    return detector.batches


def sample(*values: float, size: int = 1) -> np.ndarray:
    return np.array(values, np.float32)[:, None].repeat(size, 1)


async def busy(batcher: Batcher, detector: Detector) -> asyncio.Future[ExportedDetection]:
    """Hand in a sample, and return when the detector is at it."""
    first = batcher.submit(sample(0))
    await asyncio.to_thread(detector.entered.wait)
    return first


def test_an_idle_detector_starts_at_once_and_what_comes_meanwhile_is_the_next_batch() -> None:
    async def play(batcher: Batcher, detector: Detector) -> None:
        results = [await busy(batcher, detector)]  # however long the others might wait
        results += [batcher.submit(sample(*values)) for values in ((1,), (2, 3), (4,))]
        detector.gate.set()
        decided = await asyncio.gather(*results)
        assert [result.scores.tolist() for result in decided] == [[0], [1], [2, 3], [4]]
        assert [result.is_ood.tolist() for result in decided] == [[True], [False], [False, False], [False]]

    assert run(play, batch_size=4, max_wait=0.0) == [[0], [1, 2, 3, 4]]


def test_what_arrives_together_is_one_batch() -> None:
    async def play(batcher: Batcher, detector: Detector) -> None:
        detector.gate.set()
        await asyncio.gather(*(batcher.submit(sample(k)) for k in range(3)))

    assert run(play) == [[0, 1, 2]]


def test_batches_are_not_too_large() -> None:
    async def play(batcher: Batcher, detector: Detector) -> None:
        results = [await busy(batcher, detector), *(batcher.submit(sample(k, k)) for k in range(1, 4))]
        results.append(batcher.submit(sample(*range(5, 13))))  # more than a batch, of one request
        detector.gate.set()
        decided = await asyncio.gather(*results)
        assert decided[-1].scores.tolist() == list(range(5, 13))

    assert run(play, batch_size=5) == [[0], [1, 1, 2, 2], [3, 3], [5, 6, 7, 8, 9], [10, 11, 12]]


def test_samples_of_another_shape_are_another_batch() -> None:
    async def play(batcher: Batcher, detector: Detector) -> None:
        results = [await busy(batcher, detector), *(batcher.submit(sample(1, size=size)) for size in (2, 2, 3))]
        detector.gate.set()
        assert [result.scores.tolist() for result in await asyncio.gather(*results)] == [[0], [2], [2], [3]]

    assert run(play) == [[0], [1, 1], [1]]


def test_nobody_waits_for_a_fuller_batch_than_there_can_be() -> None:
    async def play(batcher: Batcher, detector: Detector) -> None:
        results = [await busy(batcher, detector), batcher.submit(sample(1))]
        detector.gate.set()
        await results[0]
        for k in (2, 3):  # the third makes it full
            await asyncio.sleep(0.01)
            assert not results[1].done()
            results.append(batcher.submit(sample(k)))
        await asyncio.gather(*results)

    assert run(play, batch_size=3, max_wait=1000) == [[0], [1, 2, 3]]


def test_the_wait_for_a_fuller_batch_ends() -> None:
    async def play(batcher: Batcher, detector: Detector) -> None:
        results = [await busy(batcher, detector), batcher.submit(sample(1))]
        detector.gate.set()
        await asyncio.gather(*results)
        await batcher.submit(sample(2))

    assert run(play, batch_size=3, max_wait=0.05) == [[0], [1], [2]]


def test_what_nobody_waits_for_is_left_out() -> None:
    async def play(batcher: Batcher, detector: Detector) -> None:
        results = [await busy(batcher, detector), *(batcher.submit(sample(k)) for k in (1, 2))]
        results[0].cancel()
        results[1].cancel()
        detector.gate.set()
        assert (await results[2]).scores.tolist() == [2]

    assert run(play) == [[0], [2]]


def test_an_error_is_that_of_its_batch() -> None:
    async def play(batcher: Batcher, detector: Detector) -> None:
        results = [await busy(batcher, detector), *(batcher.submit(sample(k)) for k in (-1, 2, 3))]
        detector.gate.set()
        for result in results[1:3]:
            with pytest.raises(ValueError, match="negative"):
                await result
        assert (await results[3]).scores.tolist() == [3]

    assert run(play, batch_size=2) == [[0], [-1, 2], [3]]
