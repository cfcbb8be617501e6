"""Files that are there whole or not at all, what is read back from them, and folders that one process writes into."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import platform
import re
import secrets
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .errors import InputError, need

try:
    import fcntl
except ImportError:  # Windows, which does not let a file be removed that another process writes
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from torch import Tensor

_CHECKSUM = "spcp_checksum"  # among the notes of a safetensors file
IN_MEMORY = 1 << 30  # bytes: rows that a score keeps lie in a file if they are more
_MAPPED: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()  # by the address of its rows


@contextlib.contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears under its name only when all of it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    temporary, handle = _new_file_beside(path)
    held = os.dup(handle) if fcntl else None  # lasts until the file, closed, has its name
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        if held is not None:
            os.close(held)


def _new_file_beside(path: Path) -> tuple[Path, int]:
    """Create a file that is locked for as long as it is open, by which `sweep` sees that it is in use."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
        if lock(handle) is not False and os.fstat(handle).st_nlink:  # else it was swept in between
            return temporary, handle
        os.close(handle)


def lock(handle: int, *, for_children: bool = True) -> bool | None:
    """Lock an open file for as long as it is open; False: another process has, None: there are no locks here.

    A lock that is not for children ends with this process, though children may live on and have inherited the file;
    and as soon as this process closes the file, however often it has opened it.
    """
    try:
        if fcntl:
            (fcntl.flock if for_children else fcntl.lockf)(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove what processes that were killed while they wrote into a folder, or one file of it, have left there."""
    left_over = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[0-9a-f]{{8}}\.part", re.DOTALL)
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if left_over.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with open(entry.path, "ab") as left:
                    if lock(left.fileno()):
                        os.unlink(entry.path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, and keep other processes from writing into it; it disappears again if it stays empty.

    The lock ends with the process, however that ends.
    """
    filelock = need("filelock", "filelock", "train")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder")
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        holder = ""
        with contextlib.suppress(OSError, ValueError):
            holder = path.read_text().strip()
        raise InputError(
            f"{folder}: {holder or 'another process'} is writing into it; wait until it ends, or choose another folder"
        ) from error
    try:
        path.write_text(f"process {os.getpid()} on {platform.node()}\n")
        sweep(folder)
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
        for parent in made:
            with contextlib.suppress(OSError):  # it is not empty
                parent.rmdir()


def read_json(path: Path, cure: str) -> Any:
    """Read a JSON file; where that fails, the error ends in the cure."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a file; {cure}")
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise InputError(f"{path}: {reason}; {cure}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON ({error}); {cure}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write tensors, and notes as text, into a safetensors file, with a checksum of both."""
    save = need("safetensors.torch", "safetensors").save
    contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    notes = dict(notes or {})
    with written(path) as file:
        file.write(save(contiguous, {**notes, _CHECKSUM: checksum(contiguous, notes)}))


def read_tensors(
    path: Path, *, ours: bool = False, cure: str = "write it again", check: bool = True
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors of a safetensors file, memory-mapped, and its notes.

    A file whose checksum differs is damaged. One without a checksum is somebody else's, which is an error if `ours`.
    `check=False` is for a file that was checked before: then only what is used of it is read.
    """
    safetensors = need("safetensors", "safetensors")
    if not path.is_file():
        raise InputError(f"{path}: {'is not a file' if path.exists() else 'there is no such file'}; check the path")
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            notes = dict(file.metadata() or {})
    except Exception as error:  # a damaged header can raise anything
        raise InputError(f"{path}: not a safetensors file, or damaged ({error}); {cure}") from error
    expected = notes.pop(_CHECKSUM, None)
    if expected is None and ours:
        raise InputError(f"{path}: was not written by spcp, or is damaged (it has no checksum); {cure}")
    if check and expected not in (None, checksum(tensors, notes)):
        raise InputError(f"{path}: is damaged, or was changed after it was written (its checksum differs); {cure}")
    return tensors, notes


def stacked(parts: Iterable[Tensor], folder: Path | None = None) -> Tensor:
    """Return tensors (n, ...), one below the other; more than `IN_MEMORY` bytes lie in a file in a folder.

    Nobody else sees the file, and its space is free again when the tensor, or the process, is gone.
    """
    import torch

    waiting: list[Tensor] = []
    size, file = 0, None
    for part in parts:
        waiting.append(part)
        size += part.nbytes
        if size > IN_MEMORY:
            if file is None:
                if folder is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            for tensor in waiting:
                file.write(raw(tensor))
            waiting = []
    if file is None:
        return torch.cat(waiting)
    file.flush()
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    file.close()
    rows = torch.frombuffer(mapping, dtype=part.dtype).view(-1, *part.shape[1:])
    _MAPPED[rows.data_ptr()] = mapping
    return rows


def let_go(rows: Tensor) -> None:
    """Take some rows of `stacked` out of memory, if they lie in a file; they are read again when they are needed."""
    import torch

    exported = torch.compiler.is_compiling()  # then rows are symbols
    mapping = None if exported or not _MAPPED else _MAPPED.get(rows.untyped_storage().data_ptr())
    if mapping is not None and hasattr(mapping, "madvise"):
        start = int(rows.storage_offset()) * rows.itemsize
        stop = start + rows.nbytes
        start -= start % mmap.PAGESIZE
        mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)


def checksum(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """Return a checksum of tensors, with their names, types and shapes, and of notes."""
    names = sorted(tensors)
    described = [(name, str(tensors[name].dtype), list(tensors[name].shape)) for name in names]
    value = zlib.crc32(json.dumps([described, sorted(notes.items())]).encode())
    for name in names:
        value = zlib.crc32(raw(tensors[name]), value)
    return f"{value:08x}"


def raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor."""
    import torch

    array: Any = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return memoryview(array)
