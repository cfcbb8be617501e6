"""Read arrays of numbers from a MATLAB file (version 5), where everything declared is checked before it is used."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Set
from pathlib import Path

import numpy as np

from .errors import DataError, read_bytes

# The types of elements and the classes of arrays by their numbers, from "MAT-File Format" (The MathWorks).
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_COMPLEX = 1 << 11  # of an array's flags
_LARGEST = 1 << 31  # bytes that a compressed element may unpack to


def read_mat(path: Path, names: Set[str]) -> dict[str, np.ndarray]:
    """Return the arrays of these names, as far as the file has them; a damaged file is one sentence.

    An array is its flags and class, its sizes, its name and its numbers, each an element of its own: the number of a
    type, a count of bytes, and the bytes, padded to a multiple of eight. Sparse, complex and other arrays are refused.
    """
    raw = read_bytes(path)
    order = {b"IM": "<", b"MI": ">"}.get(raw[126:128])
    if order is None or raw[124:126] != np.array(0x0100, order + "u2").tobytes():
        raise DataError(f"{path}: not a MATLAB file of version 5; save it with -v7")
    arrays: dict[str, np.ndarray] = {}
    try:
        for kind, content in _elements(memoryview(raw)[128:], order):
            if kind == _COMPRESSED:
                kind, content = next(_elements(_unpacked(content), order))
            if kind == _MATRIX:
                parts = _elements(content, order)
                flags, sizes = _numbers(next(parts), order), _numbers(next(parts), order)
                name = _numbers(next(parts), order).astype(np.uint8).tobytes().decode("ascii")
                if name in names:
                    arrays[name] = _array(int(flags[0]), sizes.tolist(), _numbers(next(parts), order))
    except (ValueError, TypeError, LookupError, StopIteration, MemoryError, zlib.error) as error:
        reason = str(error) or "it ends too early"
        raise DataError(f"{path}: cannot be read as a MATLAB file ({reason}); download it again") from error
    return arrays


def _elements(raw: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield the type and the bytes of each element."""
    at = 0
    while at < len(raw):
        kind, size = np.frombuffer(raw[at : at + 8], order + "u4").tolist()
        small = kind >> 16  # an element of at most four bytes: size and type share a word
        start, kind, size = (at + 4, kind & 0xFFFF, small) if small else (at + 8, kind, size)
        if size > (4 if small else len(raw) - start):
            raise ValueError(f"an element of {size} bytes in {len(raw) - start}")
        yield kind, raw[start : start + size]
        at = at + 8 if small else start + size + (-size % 8 if kind != _COMPRESSED else 0)


def _unpacked(content: memoryview) -> memoryview:
    unpacked = zlib.decompressobj().decompress(content, _LARGEST + 1)
    if len(unpacked) > _LARGEST:
        raise ValueError(f"an array of more than {_LARGEST} bytes")
    return memoryview(unpacked)


def _numbers(element: tuple[int, memoryview], order: str) -> np.ndarray:
    kind, content = element
    if kind not in _TYPES:
        raise ValueError(f"an element of type {kind} where numbers were expected")
    return np.frombuffer(content, order + _TYPES[kind])


def _array(flags: int, sizes: list[int], numbers: np.ndarray) -> np.ndarray:
    if flags & 0xFF not in _CLASSES or flags & _COMPLEX:
        raise ValueError(f"an array of class {flags & 0xFF} and flags {flags >> 8}, not of real numbers")
    if min(sizes, default=-1) < 0 or math.prod(sizes) != numbers.size:
        raise ValueError(f"an array of sizes {sizes[:9]} with {numbers.size} numbers")
    return numbers.astype(_CLASSES[flags & 0xFF], casting="safe", copy=False).reshape(sizes, order="F")
