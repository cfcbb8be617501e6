"""Download a data set in its official files: resumed where it broke off, checked, unpacked, and all or nothing."""

from __future__ import annotations

import difflib
import errno
import json
import logging
import os
import shutil
import stat
import sys
import tarfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, cast
from urllib.parse import urlsplit

from .errors import DataError, need

ATTEMPTS = 5  # for each file, before the user is asked to call again
BACKOFF = 0.5  # seconds; the pauses between attempts are 1, 3, 7 and 15 times this
TIMEOUT = (10.0, 30.0)  # seconds without a connection, and without a byte
CHUNK = 1 << 16  # bytes

FULL = (errno.ENOSPC, errno.EDQUOT)
# What reading a damaged archive raises; RuntimeError for one that is encrypted or exotic.
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)

Advance = Callable[[int], None]  # told the bytes that are done


@dataclass(frozen=True)
class Remote:
    """One official file: an archive if `unpacked` is set, else kept as it is."""

    url: str
    hash: str  # "md5:..." or "sha256:..."
    size: int  # bytes
    unpacked: int = 0  # bytes that may come out of the archive: a bit above what does
    members: int = 0  # files and folders that may come out of it

    @property
    def name(self) -> str:
        """The name of the file.

        >>> Remote("https://host/a/b.tar?download=1", "md5:0", 0).name
        'b.tar'
        """
        return PurePosixPath(urlsplit(self.url).path).name


@dataclass(frozen=True)
class Source:
    """A data set: archives that are unpacked together, or files that are kept as they are."""

    files: tuple[Remote, ...]
    result: str  # its folder in the root
    homepage: str
    flat: bool = False  # archives: all of it is the result, not just the folder of that name


TORONTO = "https://www.cs.toronto.edu/~kriz/"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
SVHN = "http://ufldl.stanford.edu/housenumbers/"
CS231N = "http://cs231n.stanford.edu/"
DTD = "https://www.robots.ox.ac.uk/~vgg/data/dtd/"
PLACES = "http://data.csail.mit.edu/places/places365/"
ZENODO = "https://zenodo.org/records/2535967"

# For each file: address, checksum, bytes; for an archive also its limits, in bytes and in members.
SOURCES: dict[str, Source] = {
    "cifar10": Source(
        (
            Remote(
                f"{TORONTO}cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530", 170052171, 190_000_000, 20
            ),
        ),
        "cifar-10-batches-bin",
        f"{TORONTO}cifar.html",
    ),
    "cifar100": Source(
        (
            Remote(
                f"{TORONTO}cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8", 168513733, 190_000_000, 20
            ),
        ),
        "cifar-100-binary",
        f"{TORONTO}cifar.html",
    ),
    "mnist": Source(
        (
            Remote(f"{MNIST}train-images-idx3-ubyte.gz", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
            Remote(f"{MNIST}train-labels-idx1-ubyte.gz", "md5:d53e105ee54ea40749a09fcbcd1e9432", 28881),
            Remote(f"{MNIST}t10k-images-idx3-ubyte.gz", "md5:9fb629c4189551a2d022fa330f9573f3", 1648877),
            Remote(f"{MNIST}t10k-labels-idx1-ubyte.gz", "md5:ec29112dd5afa0611ce80d1b7f02629c", 4542),
        ),
        "MNIST/raw",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    "svhn": Source((Remote(f"{SVHN}test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3", 64275384),), "svhn", SVHN),
    "tin": Source(  # 120 000 small files: on the disk, twice their bytes
        (
            Remote(
                f"{CS231N}tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248100043,
                500_000_000,
                125_000,
            ),
        ),
        "tiny-imagenet-200",
        CS231N,
    ),
    "texture": Source(
        (
            Remote(
                f"{DTD}download/dtd-r1.0.1.tar.gz",
                "md5:fff73e5086ae6bdbea199a49dfb8a4c1",
                625239812,
                680_000_000,
                10_000,
            ),
        ),
        "dtd",
        DTD,
    ),
    "places365": Source(
        (
            Remote(f"{PLACES}val_256.tar", "md5:e27b17d8d44f4af9a78502beb927f808", 525158400, 540_000_000, 40_000),
            Remote(
                f"{PLACES}filelist_places365-standard.tar",
                "md5:35a0585fee1fa656440f3ab298f8479c",
                67498496,
                70_000_000,
                20,
            ),
        ),
        "places365",
        "http://places2.csail.mit.edu/download.html",
        flat=True,
    ),
    "cifar10c": Source(
        (
            Remote(
                f"{ZENODO}/files/CIFAR-10-C.tar?download=1",
                "md5:56bf5dcef84df0e2308c6dcbcbbd8499",
                2918471680,
                3_000_000_000,
                100,
            ),
        ),
        "CIFAR-10-C",
        ZENODO,
    ),
}


def download(name: str, root: str | os.PathLike[str] | None = None, *, quiet: bool = False, keep: bool = False) -> Path:
    """Fetch a data set, check it, unpack it, and return its folder; at once if that is there.

    What was fetched of a download that breaks off stays in `root/.downloads`, and the next call goes on from there.
    The folder appears when it is complete, not before. A folder that you filled yourself is never overwritten.

    Args:
        name: one of `SOURCES`.
        root: where data sets live; `$SPCP_DATA` if not given, else `./data`.
        quiet: show no progress bar. It is shown on a terminal only, and goes to stderr.
        keep: keep the archives in `root/.downloads`.

    Raises:
        DataError: what went wrong and what to do.
    """
    source, root = _source(name), data_root(root)
    target, area = root / source.result, root / ".downloads" / name
    show = not quiet and sys.stderr is not None and sys.stderr.isatty()
    try:
        if not _missing(source, target):
            return target
        area.parent.mkdir(parents=True, exist_ok=True)
        with _alone(area.with_name(f"{name}.lock"), name, show):
            missing = _missing(source, target)  # again: the one we waited for may have finished it
            if missing:
                _clean(area, source)
                _check_space(name, root, area, missing)
                for remote in missing:
                    _fetch(remote, area, source.homepage, show)
                _finish(name, source, missing, area, target, show)
                if not keep:
                    shutil.rmtree(area, ignore_errors=True)
    except OSError as error:
        if error.errno in FULL:
            raise DataError(
                f"The disk of {root} is full; free some space and call download({name!r}) again: it goes on from there."
            ) from error
        raise DataError(f"Cannot write {name!r} to {root}: {error}; choose another root.") from error
    return target


def verify(name: str, root: str | os.PathLike[str] | None = None) -> list[str]:
    """Compare a data set with what `download` wrote, and return what is wrong with it: an empty list if nothing.

    One line for each file that is missing, changed or unreadable. Files that were added do not count.
    """
    source, root = _source(name), data_root(root)
    manifest = root / ".downloads" / f"{name}.json"
    cure = f"delete {root / source.result} and call download({name!r})"
    try:
        files = json.loads(manifest.read_text("utf-8"))["files"]
        wanted = {path: (int(size), int(crc)) for path, (size, crc) in files.items()}
    except FileNotFoundError:
        raise DataError(f"{manifest} is missing, so {name!r} cannot be verified; {cure}.") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{manifest} cannot be read ({error}); {cure}.") from error
    problems = []
    for path, fingerprint in wanted.items():
        file = root / source.result / path
        try:
            if _fingerprint(file) != fingerprint:
                problems.append(f"{file} has changed")
        except FileNotFoundError:
            problems.append(f"{file} is missing")
        except OSError as error:  # a failing disk, say
            problems.append(f"{file} cannot be read: {error}")
    return problems


def _source(name: str) -> Source:
    if name in SOURCES:
        return SOURCES[name]
    close = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise DataError(f"There is no data set {name!r}.{hint} The names are {', '.join(sorted(SOURCES))}.")


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """Where data sets live: as given, else `$SPCP_DATA`, else `./data`."""
    return Path(root or os.environ.get("SPCP_DATA") or "data").expanduser()


def _missing(source: Source, target: Path) -> list[Remote]:
    """What has yet to be fetched. A folder out of archives appears in one piece; other files, one by one."""
    if not target.is_dir() or not any(target.iterdir()):
        return list(source.files)
    return [remote for remote in source.files if not remote.unpacked and not (target / remote.name).exists()]


@contextmanager
def _alone(path: Path, name: str, show: bool) -> Iterator[None]:
    """One process at a time; the system frees the lock of one that dies."""
    from filelock import FileLock, Timeout  # torch depends on it

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if show:
            print(f"Waiting for another process that downloads {name} ...", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _clean(area: Path, source: Source) -> None:
    """Make the folder, or remove from it what a killed process left, but for what can be used."""
    area.mkdir(exist_ok=True)
    useful = {name for remote in source.files for name in (remote.name, f"{remote.name}.part")}
    for path in area.iterdir():
        if path.name not in useful:
            path.unlink()


def _check_space(name: str, root: Path, area: Path, missing: list[Remote]) -> None:
    needed = sum(remote.unpacked for remote in missing)
    for remote in missing:
        there = max(_size(area / remote.name), _size(area / f"{remote.name}.part"))
        needed += max(0, remote.size - there)
    free = shutil.disk_usage(root).free
    if needed > free:
        raise DataError(
            f"{name!r} needs {_mb(needed)} in {root}, and {_mb(free)} are free; free some, or choose another root."
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


@contextmanager
def _progress(label: str, total: int | None, show: bool) -> Iterator[Advance]:
    if not show:
        yield lambda done: None
        return
    rich = need("rich.progress", "rich")
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=need("rich.console", "rich").Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


def _fetch(remote: Remote, area: Path, homepage: str, show: bool) -> None:
    """Bring a file into `area`. Pooch compares the checksum and moves it there; the bytes come by `_transfer`."""
    pooch = need("pooch", "pooch")
    part = area / f"{remote.name}.part"
    resumed = False

    def downloader(url: str, output: str, _: object) -> None:
        nonlocal resumed
        with _progress(remote.name, remote.size, show) as advance:
            resumed = _transfer(remote, part, homepage, advance)
        os.unlink(output)
        try:
            os.link(part, output)  # not a move: pooch deletes its file when interrupted while it computes the checksum
        except OSError:  # a file system without hard links
            os.replace(part, output)

    for last in (False, True):
        try:
            with _silent(pooch.get_logger()):
                pooch.retrieve(remote.url, remote.hash, fname=remote.name, path=area, downloader=downloader)
        except DataError:
            raise
        except ValueError as error:  # pooch's for a wrong checksum
            part.unlink(missing_ok=True)
            if resumed and not last:
                continue  # the beginning may have been another version's: once more from zero
            raise DataError(
                f"{remote.url} is not the file it should be: {str(error).split('. ')[0]}. It was deleted; call "
                f"download again, and if that does not help, the file has changed at its source: see {homepage}."
            ) from error
        part.unlink(missing_ok=True)
        return


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Keep back what pooch logs in this thread; the user's own use of pooch goes on as it is."""
    thread = threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(elsewhere)


def _transfer(remote: Remote, part: Path, homepage: str, advance: Advance) -> bool:
    """Fetch a file into `part`, in several attempts; true if it went on from bytes that were there."""
    requests, urllib3 = need("requests", "requests"), need("urllib3", "urllib3")
    if part.exists() and _size(part) == remote.size:  # interrupted while the checksum was computed
        return True
    reason, problem = "", None
    for attempt in range(ATTEMPTS):
        time.sleep(BACKOFF * (2**attempt - 1))
        try:
            return _request(remote, part, advance)
        except requests.HTTPError as error:
            status, problem = error.response.status_code, error
            reason = f"the server answered {status}"
            if status < 500 and status not in (408, 425, 429):  # asking again does not help
                raise DataError(
                    f"Cannot download {remote.url}: {reason}; see {homepage} for where it is now."
                ) from error
        except (requests.Timeout, urllib3.exceptions.TimeoutError) as error:
            reason, problem = "no answer in time", error
        except requests.RequestException as error:
            reason, problem = f"no connection ({type(error).__name__})", error
        except urllib3.exceptions.HTTPError as error:
            reason, problem = "the connection was cut", error
    raise DataError(
        f"Cannot download {remote.url}: {reason}, after {ATTEMPTS} attempts. {_mb(_size(part))} of {_mb(remote.size)} "
        "are there; call download again, and it goes on from there."
    ) from problem


def _request(remote: Remote, part: Path, advance: Advance) -> bool:
    """One attempt; true if it went on where `part` ended."""
    requests, urllib3 = need("requests", "requests"), need("urllib3", "urllib3")
    done = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with requests.get(remote.url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        status, span = response.status_code, response.headers.get("Content-Range", "")
        goes_on = bool(done) and status == 206 and span.startswith(f"bytes {done}-")
        if done and not goes_on and status in (206, 416):
            part.unlink()
            raise urllib3.exceptions.HTTPError("the server cannot go on from there: the next attempt starts over")
        response.raise_for_status()
        done = done if goes_on else 0
        length = response.headers.get("Content-Length", "")
        whole = done + int(length) if length.isdigit() else remote.size
        with open(part, "ab" if goes_on else "wb") as file:
            # The bytes as they are: some servers call a .gz a "Content-Encoding", and requests would decompress it.
            for chunk in response.raw.stream(CHUNK, decode_content=False):
                file.write(chunk)
                done += len(chunk)
                advance(done)
                if done > remote.size:  # another file, maybe an endless one: the checksum will say so
                    return goes_on
        if done < whole:  # older versions of urllib3 end without an error
            raise urllib3.exceptions.HTTPError(f"{done} of {whole} bytes")
        return goes_on


def _finish(name: str, source: Source, missing: list[Remote], area: Path, target: Path, show: bool) -> None:
    """Turn the fetched files into the result: files are moved; archives are unpacked beside it, and renamed."""
    manifest = area.with_name(f"{name}.json")
    if not source.files[0].unpacked:
        target.mkdir(parents=True, exist_ok=True)
        for remote in missing:
            os.replace(area / remote.name, target / remote.name)
        _write_manifest(manifest, target, [target / remote.name for remote in source.files])
        return
    staging = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
    staging.mkdir(parents=True)
    try:
        for remote in source.files:
            with _progress(f"unpacking {remote.name}", None, show) as advance:
                _unpack(area / remote.name, staging, remote, source.homepage, advance)
        folder = staging if source.flat else staging / target.name
        if not folder.is_dir():
            raise DataError(f"{area / source.files[0].name} holds no folder {target.name!r}; see {source.homepage}.")
        _write_manifest(manifest, folder, [path for path in folder.rglob("*") if path.is_file()])
        if target.is_dir():
            target.rmdir()  # empty, or it would have been taken for the result; Windows replaces no folder
        os.replace(folder, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unpack(archive: Path, folder: Path, remote: Remote, homepage: str, advance: Advance) -> None:
    """Unpack an archive into a new folder, or refuse it.

    Only plain files and folders come out, each once, and neither modes nor owners are taken over: stricter than
    tarfile's "data" filter, and the same for zip.
    """
    name, written, count = "(beginning)", 0, 0
    problem: str | Exception
    try:
        for name, kind, read in _members(archive):
            count += 1
            if count > remote.members:
                raise ValueError(f"it holds more than {remote.members} files and folders")
            path = PureWindowsPath(name)  # knows both kinds of slashes, and drives
            if path.anchor or ".." in path.parts:
                raise ValueError("the path leads out of the folder")
            if kind == "folder":
                folder.joinpath(*path.parts).mkdir(parents=True, exist_ok=True)
                continue
            if kind != "file":
                raise ValueError("it is a link or a device")
            folder.joinpath(*path.parts[:-1]).mkdir(parents=True, exist_ok=True)
            with read() as stream, open(folder.joinpath(*path.parts), "xb") as file:
                while chunk := stream.read(CHUNK):
                    written += len(chunk)  # what really comes out, whatever the header claims
                    if written > remote.unpacked:
                        raise ValueError(f"more than {_mb(remote.unpacked)} come out")
                    file.write(chunk)
            advance(written)
    except (FileExistsError, NotADirectoryError):
        problem = "it is there twice"
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        problem = error
    else:
        return
    raise DataError(
        f"{archive} cannot be unpacked, at {name!r}: {problem}. Nothing came out of it; get the data from {homepage}."
    )


def _members(archive: Path) -> Iterator[tuple[str, str, Callable[[], IO[bytes]]]]:
    """The name, the kind (file, folder or other) and how to read it, for each member of a zip or tar file."""
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


def _write_manifest(manifest: Path, folder: Path, files: list[Path]) -> None:
    """Note the sizes and checksums of the files, for `verify`."""
    content = {file.relative_to(folder).as_posix(): _fingerprint(file) for file in sorted(files)}
    unfinished = manifest.with_suffix(".json.part")
    unfinished.write_text(json.dumps({"files": content}), "utf-8")
    os.replace(unfinished, manifest)


def _fingerprint(file: Path) -> tuple[int, int]:
    """Size and CRC-32: against decay, not against forgery, which the checksum of the download stops."""
    size, crc = 0, 0
    with open(file, "rb") as stream:
        while chunk := stream.read(CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc
