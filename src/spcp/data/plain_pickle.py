"""Read a pickle of plain values and integer arrays without executing anything that it names."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError, read_bytes


class _Type:
    """Stands for `numpy.dtype` while a pickle is read; only whole numbers are admitted."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        self.dtype = np.dtype({"|": "", "=": "<"}.get(order, order) + self.code)
        if self.dtype.kind not in "iu":
            raise pickle.UnpicklingError(f"an array of {self.dtype}")


class _Array:
    """Stands for `numpy.ndarray` while a pickle is read: bytes, a shape and a type, checked against each other."""

    array: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, kind, fortran, data = state
        data = data.encode("latin1") if isinstance(data, str) else data
        if math.prod(shape) * kind.dtype.itemsize != len(data):
            raise pickle.UnpicklingError("an array whose shape and bytes disagree")
        self.array = np.frombuffer(data, kind.dtype).reshape(shape, order="F" if fortran else "C").copy()


class _Latin1:
    """Stands for `codecs.encode`, by which Python 3 writes bytes into old pickles."""

    __slots__ = ()  # nothing that a pickle could change

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"an encoding {encoding!r}")
        return text.encode("latin1")


class _Reconstruct:
    """Stands for numpy's `_reconstruct`, which makes an array that is filled later."""

    __slots__ = ()

    def __call__(self, *_: Any) -> _Array:
        return _Array()


_ADMITTED: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): object(),  # only ever an argument of _reconstruct
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Latin1(),
}


_PLACES = {"PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"}  # in a memo that grows to the largest


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"a reference to {module}.{name}")
        return _ADMITTED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a reference to something outside")


def load_plain_pickle(path: Path) -> Any:
    """Read a pickle of plain values (numbers, strings, lists, dictionaries) and integer arrays.

    Anything else in it, such as a reference to a function, is refused before it is touched: numpy's names stand here
    for small classes that check a shape against its bytes.
    """
    raw = read_bytes(path)
    try:
        _check_sizes(raw)
        value = _PlainUnpickler(io.BytesIO(raw), encoding="bytes").load()
        return {key: _unwrapped(item) for key, item in value.items()} if isinstance(value, dict) else _unwrapped(value)
    except Exception as error:  # a hostile pickle can raise anything
        reason = " ".join(str(error).split())  # which may quote the file
        raise DataError(f"{path}: not a pickle of plain values and arrays ({reason}); download it again") from error


def _check_sizes(raw: bytes) -> None:
    """Refuse a pickle that declares more than it holds: Python makes room for it before it looks."""
    for opcode, argument, _ in pickletools.genops(raw):  # reads no string past the end
        if opcode.name in _PLACES and (argument or 0) >= len(raw):
            raise pickle.UnpicklingError(f"place {argument} in the memo of a pickle of {len(raw)} bytes")


def _unwrapped(value: Any) -> Any:
    if isinstance(value, _Type):
        raise pickle.UnpicklingError("a type that is no array's")
    return value.array if isinstance(value, _Array) else value
