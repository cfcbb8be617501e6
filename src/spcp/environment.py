"""What a number was computed with: recorded with every run and every published result."""

from __future__ import annotations

import platform
from pathlib import Path

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


def machine() -> str:
    """Name the device, the number of threads and the instruction set, in a line."""
    here = environment()
    return f"{here['device']}, {here['threads']} thread{'s' * (here['threads'] != 1)}, {here['instruction_set']}"
