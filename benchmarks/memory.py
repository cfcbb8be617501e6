"""Peak memory of a call, for the benchmarks (Linux)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL("libc.so.6")
LIBC.mallopt(-3, 1 << 20)  # large blocks go back to the system when they are freed: what is measured is what is in use


def peak(function: Callable[[], object]) -> float:
    """MB that a call needs on top of what there was."""
    gc.collect()
    LIBC.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    function()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))
