"""What a number was computed with: recorded with every run and every published result."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import __version__
from .compiled import instruction_set
from .contributions import native


def environment() -> dict[str, str | int]:
    """Describe this process: versions, device, threads, and the instruction sets of torch and of the kernels.

    >>> sorted(environment())
    ['device', 'instruction_set', 'kernels', 'numpy', 'python', 'spcp', 'threads', 'torch']
    """
    return {
        "spcp": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability().lower(),
        "kernels": instruction_set() if native.available() else "not compiled",
    }


def processor() -> str:
    """Name the processor, as well as the system can."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def described(record: Mapping[str, Any]) -> str:
    """Put the device, threads and instruction set of a record into words."""
    plural = "" if record["threads"] == 1 else "s"
    return f"{record['device']}, {record['threads']} thread{plural}, {record['instruction_set']}"


def machine() -> str:
    """Put this process's device, threads and instruction set into words."""
    return described(environment())
