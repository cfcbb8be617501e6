"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears under its name only when all of it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        mask = os.umask(0)  # mkstemp's files are for their owner only
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sweep(folder: Path, *names: str) -> None:
    """Remove what processes that were killed while they wrote such files have left."""
    for name in names:
        for left in folder.glob(f".{name}.*"):
            left.unlink(missing_ok=True)
