"""Timing for the benchmarks: everything that is compared is interleaved in one run, and compared as ratios."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

from spcp import environment


def interleaved(functions: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Seconds of each call of each function, called in turn until the time is up, after one call to warm up."""
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not times[0]:
        for function, own in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            own.append(time.perf_counter() - start)
    return times


def ratio(times: Sequence[float], baseline: Sequence[float]) -> float:
    """How many times as long: the ratio of the medians."""
    return statistics.median(times) / statistics.median(baseline)


def machine() -> str:
    """One line that says where and when this was measured."""
    own = environment.environment()
    versions = f"spcp {own['spcp']}, torch {own['torch']}"
    return f"{environment.described(own)}, kernels {own['kernels']}, {versions}, {time.strftime('%Y-%m-%d')}"


def finish(missed: Sequence[str], check: bool) -> None:
    """Say which aims were missed; with --check, exit 1 if any was."""
    print("\nall aims met" if not missed else "\naims missed:\n  " + "\n  ".join(missed))
    if check and missed:
        sys.exit(1)
