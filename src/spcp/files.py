"""Files that are there whole or not at all, and tensors in them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .errors import InputError, need

if TYPE_CHECKING:
    from torch import Tensor


@contextlib.contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears under its name only when all of it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        mask = os.umask(0)  # only their owner may read mkstemp's files
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


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write tensors, and notes as text, into a safetensors file."""
    save = need("safetensors.torch", "safetensors").save
    contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with written(path) as file:
        file.write(save(contiguous, dict(notes or {})))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors of a safetensors file, memory-mapped, and its notes."""
    safetensors = need("safetensors", "safetensors")
    try:
        with safetensors.safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; check the path") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: not a safetensors file, or damaged ({error}); write it again") from error
