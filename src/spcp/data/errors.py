"""The error about a user's data: one sentence that names the input and what to do; and reading a file with it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import InputError
from ..errors import need as need


class DataError(InputError):
    """The user's data cannot be used as it is; the message names the file and what to do."""


def check_file(path: Path) -> None:
    """Raise an error for what is no regular file: a pipe would be waited for, and a device may have no end."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; check the list or the folder") from error
    except (OSError, ValueError) as error:  # a name too long, or with a zero in it
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}; check the path") from error
    if not regular:
        raise DataError(f"{path}: is a folder, a pipe or a device, not a file; name a file")


def read_bytes(path: Path) -> bytes:
    """Read the whole file, or raise one sentence on why it cannot be read."""
    check_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; check the path") from error


def read_text(path: Path) -> str:
    """Read a text file, or raise one sentence on why it cannot be read."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a text file; get it again") from error
