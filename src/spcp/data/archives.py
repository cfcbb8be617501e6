"""Safe unpacking of zip and tar files: nothing leads out of the folder, and nothing comes out but plain files."""

from __future__ import annotations

import errno
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import IO, cast

from ..progress import Bar
from .errors import DataError

CHUNK = 1 << 16  # bytes
MEMBERS = 150_000  # files and folders in an archive, at most

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# What reading a damaged archive raises; RuntimeError for one that is encrypted or exotic.
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


def unpack(archive: Path, folder: Path, limit: int, homepage: str, bar: Bar) -> None:
    """Unpack an archive into a new folder, or refuse it.

    Only plain files and folders come out, each once, and neither modes nor owners are taken over: stricter than
    tarfile's "data" filter, and the same for zip.
    """
    name, size = "(beginning)", 0
    problem: str | Exception
    try:
        for count, (name, kind, read) in enumerate(_members(archive), 1):
            path = PureWindowsPath(name)  # understands both kinds of slashes, and drives
            if count > MEMBERS:
                raise ValueError(f"it holds more than {MEMBERS} files and folders")
            if path.anchor or ".." in path.parts:
                raise ValueError("the path leads out of the folder")
            if kind == "other":
                raise ValueError("it is a link or a device")
            target = folder.joinpath(*path.parts)
            (target if kind == "folder" else target.parent).mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                continue
            with read() as stream, open(target, "xb") as file:
                while chunk := stream.read(CHUNK):
                    size += len(chunk)  # what really comes out, whatever the header claims
                    if size > limit:
                        raise ValueError(f"more than {limit / 1e6:,.1f} MB come out")
                    file.write(chunk)
            bar.update(size)
        return
    except (FileExistsError, NotADirectoryError):
        problem = "it is there twice"
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        problem = error
    raise DataError(
        f"{archive} cannot be unpacked, at {name!r}: {problem}. Nothing came out of it; get the data from {homepage}."
    )


def _members(archive: Path) -> Iterator[tuple[str, str, Callable[[], IO[bytes]]]]:
    """Yield the name, the kind (file, folder or other) and how to read it, for each member of a zip or tar file."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
                kind = "other" if not plain else "folder" if entry.is_dir() else "file"
                yield entry.filename, kind, partial(zipped.open, entry)
        return
    with tarfile.open(archive, "r:gz" if archive.suffix in (".gz", ".tgz") else "r:") as tar:
        for info in tar:
            kind = "file" if info.isfile() else "folder" if info.isdir() else "other"
            yield info.name, kind, partial(cast("Callable[[tarfile.TarInfo], IO[bytes]]", tar.extractfile), info)
        # tarfile takes a damaged header for the end, but the end is a block of zeros, or nothing.
        assert tar.fileobj is not None
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError("damaged header")
        while tar.fileobj.read(CHUNK):  # gzip compares its checksum at the very end
            pass
