"""Download a data set in its official files: resumed where it broke off, checked, unpacked, and all or nothing."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from ..files import written
from ..progress import Bar, progress_bar
from .archives import DISK_FULL, unpack
from .errors import DataError, need

ATTEMPTS = 5  # for each file, before the user is asked to call again
BACKOFF = 0.5  # seconds; the pauses between attempts are 1, 3, 7 and 15 times this
TIMEOUT = (10.0, 30.0)  # seconds without a connection, and without a byte
CHUNK = 1 << 16  # bytes


@dataclass(frozen=True)
class Remote:
    """One official file: an archive if `unpacked` is set, else kept as it is."""

    url: str
    md5: str
    size: int  # bytes
    unpacked: int = 0  # bytes that may come out of the archive: a bit above what does

    @property
    def name(self) -> str:
        """The name of the file.

        >>> Remote("https://host/a/b.tar?download=1", "", 0).name
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
CIFAR10C = f"{ZENODO}/files/CIFAR-10-C.tar?download=1"

SOURCES: dict[str, Source] = {
    "cifar10": Source(
        (Remote(f"{TORONTO}cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170052171, 190000000),),
        "cifar-10-batches-bin",
        f"{TORONTO}cifar.html",
    ),
    "cifar100": Source(
        (Remote(f"{TORONTO}cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168513733, 190000000),),
        "cifar-100-binary",
        f"{TORONTO}cifar.html",
    ),
    "mnist": Source(
        (
            Remote(f"{MNIST}train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
            Remote(f"{MNIST}train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28881),
            Remote(f"{MNIST}t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1648877),
            Remote(f"{MNIST}t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4542),
        ),
        "MNIST/raw",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    "svhn": Source((Remote(f"{SVHN}test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64275384),), "svhn", SVHN),
    "tin": Source(  # 120 000 small files: on the disk, twice their bytes
        (Remote(f"{CS231N}tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 248100043, 500000000),),
        "tiny-imagenet-200",
        CS231N,
    ),
    "texture": Source(
        (Remote(f"{DTD}download/dtd-r1.0.1.tar.gz", "fff73e5086ae6bdbea199a49dfb8a4c1", 625239812, 680000000),),
        "dtd",
        DTD,
    ),
    "places365": Source(
        (
            Remote(f"{PLACES}val_256.tar", "e27b17d8d44f4af9a78502beb927f808", 525158400, 540000000),
            Remote(f"{PLACES}filelist_places365-standard.tar", "35a0585fee1fa656440f3ab298f8479c", 67498496, 70000000),
        ),
        "places365",
        "http://places2.csail.mit.edu/download.html",
        flat=True,
    ),
    "cifar10c": Source(
        (Remote(CIFAR10C, "56bf5dcef84df0e2308c6dcbcbbd8499", 2918471680, 3000000000),), "CIFAR-10-C", ZENODO
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
    try:
        if not _missing(source, target):
            return target
        area.parent.mkdir(parents=True, exist_ok=True)
        with _lock(area.with_name(f"{name}.lock"), name, quiet):
            missing = _missing(source, target)  # again: the process we waited for may have finished it
            if missing:
                area.mkdir(exist_ok=True)
                _check_space(name, root, area, missing)
                for remote in missing:
                    _fetch(remote, area, source.homepage, quiet)
                _finish(name, source, missing, area, target, quiet)
                if not keep:
                    shutil.rmtree(area, ignore_errors=True)
    except OSError as error:
        if error.errno in DISK_FULL:
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
    remedy = f"delete {root / source.result} and call download({name!r})"
    try:
        files = json.loads(manifest.read_text("utf-8"))["files"]
        expected = {path: (int(size), int(crc)) for path, (size, crc) in files.items()}
    except FileNotFoundError:
        raise DataError(f"{manifest} is missing, so {name!r} cannot be verified; {remedy}.") from None
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{manifest} cannot be read ({error}); {remedy}.") from error
    problems = []
    for path, size_and_crc in expected.items():
        file = root / source.result / path
        try:
            if _size_and_crc(file) != size_and_crc:
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
    """Return where data sets live: as given, else `$SPCP_DATA`, else `./data`."""
    return Path(root or os.environ.get("SPCP_DATA") or "data").expanduser()


def _missing(source: Source, target: Path) -> list[Remote]:
    """Return what has yet to be fetched. A folder out of archives appears in one piece; other files, one by one."""
    if not target.is_dir() or not any(target.iterdir()):
        return list(source.files)
    return [remote for remote in source.files if not remote.unpacked and not (target / remote.name).exists()]


def _lock(path: Path, name: str, quiet: bool) -> AbstractContextManager[object]:
    """Let one process at a time download; the system frees the lock of one that dies."""
    from filelock import FileLock, Timeout  # torch depends on it

    lock = FileLock(path)
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        if not quiet:
            Bar().print(f"Waiting for another process that downloads {name} ...")
        return lock.acquire()


def _check_space(name: str, root: Path, area: Path, missing: list[Remote]) -> None:
    fetched = sum(max(_size(area / remote.name), _size(area / f"{remote.name}.part")) for remote in missing)
    needed = sum(remote.size + remote.unpacked for remote in missing) - fetched
    free = shutil.disk_usage(root).free
    if needed > free:
        raise DataError(
            f"{name!r} needs {_mb(needed)} in {root}, and {_mb(free)} are free; free some, or choose another root."
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _fetch(remote: Remote, area: Path, homepage: str, quiet: bool) -> None:
    """Bring a file into `area`, by way of `<name>.part`, and only if its checksum is right."""
    part = area / f"{remote.name}.part"
    if (area / remote.name).exists():
        os.replace(area / remote.name, part)  # a kept archive is compared with its checksum as well
    with progress_bar(remote.name, remote.size, show=not quiet, in_bytes=True) as bar:
        resumed = _transfer(remote, part, homepage, bar)
        if resumed and _md5(part) != remote.md5:  # the beginning may have been another version's: once more from zero
            part.unlink()
            _transfer(remote, part, homepage, bar)
    if (md5 := _md5(part)) != remote.md5:
        part.unlink()
        raise DataError(
            f"{remote.url} is not the file it should be: expected MD5 {remote.md5}, got {md5}. It was deleted; call "
            f"download again, and if that does not help, the file has changed at its source: see {homepage}."
        )
    os.replace(part, area / remote.name)


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _transfer(remote: Remote, part: Path, homepage: str, bar: Bar) -> bool:
    """Fetch a file into `part`, in several attempts; return whether the first went on from bytes that were there."""
    requests, urllib3 = need("requests", "requests"), need("urllib3", "urllib3")
    if part.exists() and _size(part) == remote.size:
        return True
    resumed = _size(part) > 0
    for attempt in range(ATTEMPTS):
        time.sleep(BACKOFF * (2**attempt - 1))
        try:
            _request(remote, part, bar)
            return resumed
        except requests.HTTPError as error:
            status, problem = error.response.status_code, error
            reason = f"the server answered {status}"
            if status < 500 and status not in (408, 425, 429):  # asking again does not help
                raise DataError(
                    f"Cannot download {remote.url}: {reason}; see {homepage} for where it is now."
                ) from error
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            timed_out, problem = "timed out" in str(error), error
            lost = "the connection broke" if _size(part) else f"no connection ({type(error).__name__})"
            reason = "no answer in time" if timed_out else lost
    raise DataError(
        f"Cannot download {remote.url}: {reason}, after {ATTEMPTS} attempts. {_mb(_size(part))} of {_mb(remote.size)} "
        "are there; call download again, and it goes on from there."
    ) from problem


def _request(remote: Remote, part: Path, bar: Bar) -> None:
    """Try once to fetch what `part` lacks, or all of it from a server that cannot go on there."""
    requests = need("requests", "requests")
    done = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with requests.get(remote.url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        status, span = response.status_code, response.headers.get("Content-Range", "")
        resumes = bool(done) and status == 206 and span.startswith(f"bytes {done}-")
        if done and not resumes and status in (206, 416):
            part.unlink()
            raise requests.ConnectionError("the server cannot go on from there: the next attempt starts over")
        response.raise_for_status()
        done = done if resumes else 0
        length = response.headers.get("Content-Length", "")
        expected = done + int(length) if length.isdigit() else remote.size
        with open(part, "ab" if resumes else "wb", opener=_no_link) as file:
            # The bytes as they are: some servers call a .gz a "Content-Encoding", and requests would decompress it.
            for chunk in response.raw.stream(CHUNK, decode_content=False):
                file.write(chunk)
                done += len(chunk)
                bar.update(done)
                if done > remote.size:  # another file, maybe an endless one: the checksum will tell
                    return
        if done < expected:  # older versions of urllib3 end without an error
            raise requests.ConnectionError(f"{done} of {expected} bytes")


def _no_link(path: str, flags: int) -> int:
    """Open a file, but not the one that a link of somebody else leads to."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _finish(name: str, source: Source, missing: list[Remote], area: Path, target: Path, quiet: bool) -> None:
    """Turn the fetched files into the result: files are moved; archives are unpacked beside it, and renamed."""
    manifest = area.with_name(f"{name}.json")
    if not source.files[0].unpacked:
        target.mkdir(parents=True, exist_ok=True)
        files = {remote.name: (area if remote in missing else target) / remote.name for remote in source.files}
        _write_manifest(manifest, files)  # first: once the files are there, nobody would
        for remote in missing:
            os.replace(area / remote.name, target / remote.name)
        return
    staging = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
    staging.mkdir(parents=True)
    try:
        for remote in source.files:
            with progress_bar(f"unpacking {remote.name}", remote.unpacked, show=not quiet, in_bytes=True) as bar:
                unpack(area / remote.name, staging, remote.unpacked, source.homepage, bar)
        folder = staging if source.flat else staging / target.name
        if not folder.is_dir():
            raise DataError(f"{area / source.files[0].name} holds no folder {target.name!r}; see {source.homepage}.")
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        _write_manifest(manifest, {path.relative_to(folder).as_posix(): path for path in paths})
        if target.is_dir():
            target.rmdir()  # empty, or it would have been taken for the result; Windows replaces no folder
        os.replace(folder, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_manifest(manifest: Path, files: Mapping[str, Path]) -> None:
    """Note the sizes and checksums of the files, by name, for `verify`."""
    content = {name: _size_and_crc(path) for name, path in files.items()}
    with written(manifest) as file:
        file.write(json.dumps({"files": content}).encode())


def _size_and_crc(file: Path) -> tuple[int, int]:
    """Return size and CRC-32: against decay, not against forgery, which the checksum of the download stops."""
    size, crc = 0, 0
    with open(file, "rb") as stream:
        while chunk := stream.read(CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc
