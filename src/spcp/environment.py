"""What a number was computed with: recorded with every run and every published result."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import __version__
from .contributions import native

# What every record holds.
KINDS: Mapping[str, type] = {
    **dict.fromkeys(("spcp", "torch", "numpy", "python", "device"), str),
    "threads": int,
    **dict.fromkeys(("instruction_set", "kernels"), str),
}


def environment() -> dict[str, str | int]:
    """Describe this process: versions, device, threads, and the instruction sets of torch and of the kernels.

    Also the number of processes that work together, and the limit of oneDNN, where there are such.

    >>> environment().keys() >= KINDS.keys()
    True
    """
    record: dict[str, str | int] = {
        "spcp": version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability().lower(),
        "kernels": native.built_for(),
    }
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        record["processes"] = torch.distributed.get_world_size()
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        record["onednn_limit"] = os.environ["ONEDNN_MAX_CPU_ISA"].lower()
    return record


@functools.cache
def version() -> str:
    """Name the version of this code, with the commit where it is a clone."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return __version__
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # there is no git
        return __version__
    return f"{__version__} at {commit}"


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
