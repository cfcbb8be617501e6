"""Loads the compiled kernels, built for the instruction set that torch uses on this processor."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

INSTRUCTION_SETS = ("default", "avx2", "avx512")  # each can run the libraries of those before it


@functools.cache
def instruction_set() -> str:
    """The best instruction set that both the kernels and torch may use.

    It follows torch, and so `ATEN_CPU_CAPABILITY`. Torch obeys that variable without a look at the processor: a set
    that the processor lacks ends the process.
    """
    name = torch.backends.cpu.get_cpu_capability().lower()
    return name if name in INSTRUCTION_SETS else "default"


def load_library(stem: Path, functions: Mapping[str, Sequence[Any]]) -> ctypes.CDLL | None:
    """Load the best compiled library of a module that can be loaded; None if there is none.

    Args:
        stem: its path, without the instruction set and the suffix: `_kernels` for `_kernels_avx2.so`.
        functions: the types of the arguments of each function.
    """
    usable = INSTRUCTION_SETS[: INSTRUCTION_SETS.index(instruction_set()) + 1]
    names = [
        stem.name + "_" + name + suffix for name in usable[::-1] for suffix in importlib.machinery.EXTENSION_SUFFIXES
    ]
    for path in filter(Path.exists, map(stem.with_name, names)):
        try:
            return _declared(path, functions)
        except (OSError, AttributeError) as error:  # it is damaged, needs a library that is missing, or is older
            warnings.warn(f"spcp runs without {path.name}, more slowly: {error}. Install it anew.", stacklevel=2)
    return None


def _declared(path: Path, functions: Mapping[str, Sequence[Any]]) -> ctypes.CDLL:
    """Load a library, and declare its functions' arguments."""
    library = ctypes.CDLL(str(path))
    for name, types in functions.items():
        getattr(library, name).argtypes = types
    return library


def instruction_set_of(library: ctypes.CDLL) -> str:
    """Return the instruction set that a library was built for, which its file name ends in."""
    return Path(library._name).name.partition(".")[0].rpartition("_")[2]
