"""The error about a user's data: one sentence that names the input and what to do; and reading a file with it."""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError
from ..errors import need as need


class DataError(InputError):
    """The user's data cannot be used as it is; the message names the file and what to do."""


def read_bytes(path: Path) -> bytes:
    """Read the whole file, or raise one sentence on why it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; check the path") from error
