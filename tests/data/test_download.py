"""Downloads from a real server on this machine that breaks in every way a server breaks."""

import errno
import hashlib
import importlib
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("requests")

from filelock import FileLock

from spcp.data import archives
from spcp.data.downloads import SOURCES, Remote, Source, download, verify
from spcp.data.errors import DataError

module = importlib.import_module("spcp.data.downloads")
BODY = bytes(range(256)) * 1024  # 4 chunks
HALF = len(BODY) // 2
HOME = "http://home.example/"
TREE = {"data/one.txt": b"one", "data/sub/two.bin": b"2" * 100_000, "data/empty": b""}


class Web(ThreadingHTTPServer):
    """Serves `files`. Each request takes the next step of `plan`, if any is left: a status, or how many bytes to send
    before it hangs up; with `stall`, before it falls silent until `go_on` is set.
    """

    daemon_threads = False  # so that closing the server joins them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str | None] = []  # the Range of each request
        self.encoding: str | None = None  # that the last one accepts
        self.plan: list[int] = []
        self.headers: dict[str, str] = {}
        self.ranges = self.lengths = True
        self.stall = False
        self.hung_up = 0  # how often the client did
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        web, body = self.server, self.server.files.get(self.path.strip("/"))
        web.asked.append(self.headers["Range"])
        web.encoding = self.headers["Accept-Encoding"]
        step = web.plan.pop(0) if web.plan else None
        if body is None or (step is not None and 400 <= step < 600):
            return self.send_error(404 if body is None else step)
        start, status = 0, 200
        if self.headers["Range"] and web.ranges:
            start, status = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-")), 206
            if start >= len(body):
                return self.send_error(416)
        self.send_response(status)
        if web.lengths:
            self.send_header("Content-Length", str(len(body) - start))
        headers = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if status == 206 else {}
        for key, value in (headers | web.headers).items():
            self.send_header(key, value)
        self.end_headers()
        try:
            stop = len(body) if step is None else start + step
            self.wfile.write(body[start:stop])
            if web.stall and web.go_on.wait(20):
                self.wfile.write(body[stop:])
        except ConnectionError:
            web.hung_up += 1
        return None

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setattr(module, "BACKOFF", 0)
    monkeypatch.setattr(module, "ATTEMPTS", 3)
    monkeypatch.setattr(archives, "MEMBERS", 9)
    server = Web()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.go_on.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def publish(web: Web, monkeypatch: pytest.MonkeyPatch):
    """Put files on the server and a data set called "toy" in the table."""

    def publish(result: str = "data", *, unpacked: int = 10**6, flat: bool = False, **files: bytes):
        remotes = []
        for name, body in files.items():
            name = name.replace("_", ".")
            web.files[name] = body
            limit = unpacked if name.endswith((".gz", ".tar", ".zip")) else 0
            checksum = hashlib.md5(body).hexdigest()
            remotes.append(Remote(f"{web.url}{name}?download=1", checksum, len(body), limit))
        web.files |= {f"{name}?download=1": body for name, body in web.files.items()}
        monkeypatch.setitem(SOURCES, "toy", Source(tuple(remotes), result, HOME, flat))

    return publish


def tarred(tree: dict[str, bytes], mode: str = "w") -> bytes:
    return tar_of([(tarfile.TarInfo(name), content) for name, content in tree.items()], mode)


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.filterwarnings("ignore", "Duplicate name")  # that is what a test is about
        for info, content in members:
            archive.writestr(info, content)
    return buffer.getvalue()


def tree_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def part(root: Path, name: str = "x.bin") -> Path:
    """Where the unfinished download of a file of "toy" is."""
    path = root / ".downloads" / "toy" / f"{name}.part"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def left(root: Path) -> list[str]:
    """Everything in the root but the lock."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.suffix != ".lock")


# What comes out


@pytest.mark.parametrize("kind", ["tar_gz", "tar", "zip"])
def test_an_archive_becomes_its_folder_and_is_deleted(kind: str, web: Web, publish, tmp_path: Path) -> None:
    body = zipped(("data/", b""), *TREE.items()) if kind == "zip" else tarred(TREE, "w:gz" if "gz" in kind else "w")
    publish(**{f"x_{kind}": body})
    assert download("toy", tmp_path) == tmp_path / "data"
    assert tree_of(tmp_path / "data") == {name.removeprefix("data/"): content for name, content in TREE.items()}
    assert set(left(tmp_path)) == {".downloads", ".downloads/toy.json", "data", "data/sub", *TREE}
    assert download("toy", tmp_path) == tmp_path / "data"
    assert web.asked == [None]


def test_keep_keeps_the_archive_and_saves_the_next_download(web: Web, publish, tmp_path: Path) -> None:
    publish(x_tar=tarred(TREE))
    shutil.rmtree(download("toy", tmp_path, keep=True))
    assert (tmp_path / ".downloads/toy/x.tar").read_bytes() == web.files["x.tar"]
    assert tree_of(download("toy", tmp_path))
    assert web.asked == [None]


def test_other_files_are_kept_as_they_are(web: Web, publish, tmp_path: Path) -> None:
    publish("deep/er", a_bin=b"a", b_bin=b"b")
    assert download("toy", tmp_path) == tmp_path / "deep" / "er"
    assert tree_of(tmp_path / "deep/er") == {"a.bin": b"a", "b.bin": b"b"}
    assert download("toy", tmp_path) == tmp_path / "deep" / "er"
    assert len(web.asked) == 2


def test_files_that_you_put_there_yourself_stay(web: Web, publish, tmp_path: Path) -> None:
    publish(a_bin=b"a", b_bin=b"b")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.bin").write_bytes(b"mine")
    (tmp_path / "data/other").write_bytes(b"mine too")
    assert tree_of(download("toy", tmp_path)) == {"a.bin": b"mine", "b.bin": b"b", "other": b"mine too"}
    assert len(web.asked) == 1
    assert verify("toy", tmp_path) == []


def test_a_folder_that_you_filled_yourself_is_taken_as_it_is_but_not_an_empty_one(
    web: Web, publish, tmp_path: Path
) -> None:
    publish(x_tar=tarred(TREE))
    (tmp_path / "data").mkdir()
    assert "one.txt" in tree_of(download("toy", tmp_path))
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine").touch()
    assert tree_of(download("toy", tmp_path)) == {"mine": b""}
    assert len(web.asked) == 1


def test_two_archives_go_into_one_folder(publish, tmp_path: Path) -> None:
    publish("places", flat=True, a_tar=tarred({"val/x.jpg": b"x"}), b_tar=tarred({"list.txt": b"x.jpg 0"}))
    assert tree_of(download("toy", tmp_path)) == {"val/x.jpg": b"x", "list.txt": b"x.jpg 0"}
    assert not list(tmp_path.glob(".*unpacking"))


def test_the_root_is_the_argument_or_the_variable_or_data(
    publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(x_bin=BODY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPCP_DATA", raising=False)
    assert download("toy").resolve() == tmp_path / "data" / "data"
    monkeypatch.setenv("SPCP_DATA", str(tmp_path / "variable"))
    assert download("toy") == tmp_path / "variable" / "data"
    assert download("toy", str(tmp_path / "argument")) == tmp_path / "argument" / "data"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert download("toy", "~/root") == tmp_path / "home" / "root" / "data"
    assert verify("toy") == []


def test_an_unknown_name_is_told_the_known_ones(tmp_path: Path) -> None:
    for call in (download, verify):
        with pytest.raises(DataError, match=r"no data set 'cifar-10'.*mean 'cifar10'\?.*cifar100.*texture"):
            call("cifar-10", tmp_path)
    with pytest.raises(DataError, match=r"'zzz'\. The names are"):
        download("zzz", tmp_path)


@pytest.mark.parametrize("name", SOURCES)
def test_the_table_is_sound(name: str) -> None:
    source = SOURCES[name]
    assert len({bool(remote.unpacked) for remote in source.files}) == 1  # archives or not, but not both
    for remote in source.files:
        assert re.fullmatch(r"[0-9a-f]{32}", remote.md5)
        assert remote.name.endswith((".tar", ".tar.gz", ".zip")) == bool(remote.unpacked)
        assert not remote.unpacked or remote.size < remote.unpacked < 3 * remote.size


# Broken connections


def test_a_cut_connection_goes_on_where_it_was_cut(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    web.plan = [HALF, HALF // 2]
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == [None, f"bytes={HALF}-", f"bytes={HALF + HALF // 2}-"]


def test_a_cut_is_noticed_without_a_length(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    web.plan, web.lengths = [HALF], False
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == [None, f"bytes={HALF}-"]


def test_after_the_last_attempt_it_says_how_much_is_there_and_the_next_call_goes_on(
    web: Web, publish, tmp_path: Path
) -> None:
    body = BODY * 4
    publish(x_bin=body)
    web.plan = [300_000, 100_000, 100_000]
    with pytest.raises(DataError, match=r"x\.bin.*connection broke.*0\.5 MB of 1\.0 MB are there; call download again"):
        download("toy", tmp_path)
    assert part(tmp_path).read_bytes() == body[:500_000]
    assert not (tmp_path / "data").exists()
    assert tree_of(download("toy", tmp_path)) == {"x.bin": body}
    assert web.asked[-1] == "bytes=500000-"
    assert left(tmp_path) == [".downloads", ".downloads/toy.json", "data", "data/x.bin"]


def test_a_server_that_knows_no_ranges_starts_over(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    part(tmp_path).write_bytes(BODY[:HALF])
    web.ranges = False
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == [f"bytes={HALF}-"]


def test_a_range_that_cannot_be_served_starts_over(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    part(tmp_path).write_bytes(BODY + b"more")
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == [f"bytes={len(BODY) + 4}-", None]  # 416


def test_another_range_than_asked_for_starts_over(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    part(tmp_path).write_bytes(BODY[:HALF])
    web.headers = {"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"}
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == [f"bytes={HALF}-", None]


def test_a_stale_beginning_is_thrown_away_once(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    part(tmp_path).write_bytes(b"old" * 1000)
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == ["bytes=3000-", None]

    shutil.rmtree(tmp_path / "data")
    web.asked.clear()
    web.files["x.bin?download=1"] = BODY[::-1]
    part(tmp_path).write_bytes(b"old" * 1000)
    web.plan = [len(BODY), HALF]  # the second try is cut and goes on too, and yet there is no third
    with pytest.raises(DataError, match="not the file it should be"):
        download("toy", tmp_path)
    assert web.asked == ["bytes=3000-", None, f"bytes={HALF}-"]


def test_a_complete_beginning_needs_no_server(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    part(tmp_path).write_bytes(BODY)
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == []


def test_a_wrong_checksum_leaves_nothing(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    wrong = BODY[::-1]
    web.files["x.bin?download=1"] = wrong
    expected, got = hashlib.md5(BODY).hexdigest(), hashlib.md5(wrong).hexdigest()
    with pytest.raises(DataError, match=f"(?s){re.escape(web.url)}x.bin.*{expected}.*{got}.*again.*{HOME}"):
        download("toy", tmp_path)
    assert left(tmp_path) == [".downloads", ".downloads/toy"]
    assert len(web.asked) == 1


def test_a_file_that_does_not_end_is_stopped(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    web.files["x.bin?download=1"] = bytes(100_000_000)
    with pytest.raises(DataError, match="not the file it should be"):
        download("toy", tmp_path)
    web.shutdown()
    web.server_close()  # joins the handler
    assert web.hung_up == 1


def test_bytes_are_not_decompressed_where_the_server_calls_them_encoded(web: Web, publish, tmp_path: Path) -> None:
    publish(x_tar_gz=tarred(TREE, "w:gz"))
    web.headers = {"Content-Encoding": "x-gzip"}
    assert tree_of(download("toy", tmp_path))["one.txt"] == b"one"
    assert web.encoding == "identity"


def test_not_found_is_not_asked_for_again(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    web.files.clear()
    with pytest.raises(DataError, match=rf"x\.bin.*answered 404; see {HOME}"):
        download("toy", tmp_path)
    assert web.asked == [None]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(status: int, web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    web.plan = [status] * 3
    with pytest.raises(DataError, match=rf"answered {status}, after 3 attempts"):
        download("toy", tmp_path)
    web.plan = [status]
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert len(web.asked) == 5


def test_the_pauses_between_attempts_grow(web: Web, publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(x_bin=BODY)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(module, "BACKOFF", 0.5)
    web.plan = [500, 500]
    download("toy", tmp_path)
    assert pauses == [0, 0.5, 1.5]


def test_no_connection(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    web.shutdown()
    web.server_close()
    with pytest.raises(DataError, match=r"no connection \(ConnectionError\), after 3 attempts. 0.0 MB of 0.3 MB"):
        download("toy", tmp_path)


def test_a_silent_server_is_not_waited_for(web: Web, publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(x_bin=BODY)
    monkeypatch.setattr(module, "TIMEOUT", (5, 0.1))
    web.plan, web.stall = [HALF, 0, 0], True
    with pytest.raises(DataError, match="no answer in time, after 3 attempts"):
        download("toy", tmp_path)
    assert part(tmp_path).read_bytes() == BODY[:HALF]
    assert web.asked == [None, f"bytes={HALF}-", f"bytes={HALF}-"]


# Bad archives


def symlink_in_zip() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("data/bad")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


REFUSED = {
    "up": ("tar", tarred({"data/a": b"a", "../bad": b""}), "'../bad': the path leads out"),
    "up and down": ("tar", tarred({"data/../../bad": b""}), "'data/../../bad': the path leads out"),
    "absolute": ("tar", tarred({"/bad": b""}), "'/bad': the path leads out"),
    "drive": ("tar", tarred({"C:bad": b""}), "'C:bad': the path leads out"),
    "backslash": ("tar", tarred({"data\\..\\..\\bad": b""}), "the path leads out"),
    "folder up": ("tar", tar_of([special("../bad", tarfile.DIRTYPE)]), "'../bad': the path leads out"),
    "symlink": ("tar", tar_of([special("data/bad", tarfile.SYMTYPE, "/etc")]), "'data/bad': it is a link or a device"),
    "harmless symlink": ("tar", tar_of([special("data/bad", tarfile.SYMTYPE, "a")]), "'data/bad': it is a link"),
    "hard link": ("tar", tar_of([special("data/bad", tarfile.LNKTYPE, "data/a")]), "'data/bad': it is a link"),
    "device": ("tar", tar_of([special("data/bad", tarfile.CHRTYPE)]), "'data/bad': it is a link or a device"),
    "pipe": ("tar", tar_of([special("data/bad", tarfile.FIFOTYPE)]), "'data/bad': it is a link or a device"),
    "twice": ("tar", tar_of([(tarfile.TarInfo("data/a"), b"1"), (tarfile.TarInfo("data/./a"), b"2")]), "there twice"),
    "file as folder": ("tar", tarred({"data/a": b"", "data/a/b": b""}), "'data/a/b': it is there twice"),
    "file as folder of a folder": (
        "tar",
        tarred({"data/a": b"", "data/a/b/c": b""}),
        "'data/a/b/c': it is there twice",
    ),
    "folder as file": ("tar", tarred({"data/a/b": b"", "data/a": b""}), "'data/a': it is there twice"),
    "too large": ("tar_gz", tarred({"data/a": b"", "data/big": bytes(1_000_001)}, "w:gz"), "big': more than 1.0 MB"),
    "too many": ("tar", tarred({f"data/{i}": b"" for i in range(10)}), "'data/9': it holds more than 9 files"),
    "zip up": ("zip", zipped(("data/a", b"a"), ("../bad", b"")), "'../bad': the path leads out"),
    "zip absolute": ("zip", zipped(("/bad", b"")), "'/bad': the path leads out"),
    "zip symlink": ("zip", zipped((symlink_in_zip(), b"/etc")), "'data/bad': it is a link or a device"),
    "zip twice": ("zip", zipped(("data/a", b"1"), ("data/a", b"2")), "'data/a': it is there twice"),
    "zip too large": ("zip", zipped(*((f"data/{i}", bytes(400_000)) for i in range(3))), "'data/2': more than 1.0 MB"),
    "zip too many": ("zip", zipped(*((f"data/{i}/", b"") for i in range(10))), "it holds more than 9 files"),
    "no folder": ("tar", tarred({"other/a": b"a"}), "holds no folder 'data'"),
    "no members": ("tar", tarred({}), "holds no folder 'data'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_archive_that_is_not_plain_is_refused(case: str, publish, tmp_path: Path) -> None:
    kind, body, reason = REFUSED[case]
    publish(**{f"x_{kind}": body})
    root = tmp_path / "deep" / "root"
    with pytest.raises(DataError, match=rf"x\.{kind.replace('_', '.')}.*{re.escape(reason)}.*{HOME}"):
        download("toy", root)
    assert left(root) == [".downloads", ".downloads/toy", f".downloads/toy/x.{kind.replace('_', '.')}"]
    assert left(tmp_path) == ["deep", "deep/root", *(f"deep/root/{path}" for path in left(root))]
    assert not Path("/bad").exists()


def broken(body: bytes, at: int, by: bytes = b"\xff" * 8) -> bytes:
    return body[:at] + by + body[at + len(by) :]


PLAIN, SQUEEZED, ZIPPED = tarred(TREE), tarred(TREE, "w:gz"), zipped(*TREE.items())
DAMAGED = {
    "not a tar": ("tar", BODY),
    "not a tar.gz": ("tar_gz", BODY),
    "not a zip": ("zip", BODY),
    "empty": ("tar", b""),
    "tar cut in a file": ("tar", PLAIN[:50_000]),
    "tar with a damaged header": ("tar", broken(PLAIN, PLAIN.index(b"data/empty") + 148)),
    "tar.gz cut": ("tar_gz", SQUEEZED[:-30]),
    "tar.gz damaged": ("tar_gz", broken(SQUEEZED, len(SQUEEZED) // 2)),
    "zip cut": ("zip", ZIPPED[:-30]),
    "zip damaged": ("zip", broken(ZIPPED, ZIPPED.index(b"sub/two.bin") + 30)),
    "zip damaged at once": ("zip", broken(ZIPPED, ZIPPED.index(b"sub/two.bin") + 11)),
    "zip with a wrong index": ("zip", broken(ZIPPED, len(ZIPPED) - 4, b"\xff")),
    "zip with a password": ("zip", ZIPPED.replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1")),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_archive_is_refused(case: str, publish, tmp_path: Path) -> None:
    kind, body = DAMAGED[case]
    publish(**{f"x_{kind}": body})
    with pytest.raises(DataError, match=rf"x\.{kind.replace('_', '.')} cannot be unpacked.*{HOME}"):
        download("toy", tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name != ".downloads"]


# The disk


def test_the_space_is_checked_before(web: Web, publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = tarred(TREE, "w") + bytes(3_000_000)
    publish(x_tar=body, unpacked=2_000_000)
    needed, free = len(body) + 2_000_000, 0
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(needed, needed - free, free))
    free = needed - 1
    with pytest.raises(DataError, match=r"'toy' needs 5\.1 MB in .*, and 5\.1 MB are free; free some"):
        download("toy", tmp_path)
    assert web.asked == []
    part(tmp_path, "x.tar").write_bytes(body[:1])  # what is there already is not needed again
    assert download("toy", tmp_path) == tmp_path / "data"


@pytest.fixture
def disk_for(monkeypatch: pytest.MonkeyPatch):
    """A disk that is full as soon as a file is larger than this."""

    def disk_for(size: int) -> None:
        class File(io.FileIO):
            def write(self, data: bytes) -> int:  # type: ignore[override]
                if self.tell() + len(data) > size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return super().write(data)

        def opened(path: Path, mode: str, opener: object = None) -> io.IOBase:
            return io.FileIO(path, mode) if "r" in mode else File(path, mode)

        for file in (module, archives):
            monkeypatch.setattr(file, "open", opened, raising=False)

    return disk_for


def test_a_disk_that_gets_full_keeps_what_is_there(web: Web, publish, disk_for, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    disk_for(HALF)
    with pytest.raises(DataError, match=rf"disk of {tmp_path} is full; free some space and call download\('toy'\)"):
        download("toy", tmp_path)
    assert part(tmp_path).read_bytes() == BODY[:HALF]
    disk_for(len(BODY))
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == [None, f"bytes={HALF}-"]  # a full disk is no reason to ask again


def test_a_disk_that_gets_full_while_unpacking_keeps_the_archive(web: Web, publish, disk_for, tmp_path: Path) -> None:
    publish(x_tar_gz=tarred(TREE, "w:gz"))
    disk_for(50_000)
    with pytest.raises(DataError, match="is full"):
        download("toy", tmp_path)
    assert left(tmp_path) == [".downloads", ".downloads/toy", ".downloads/toy/x.tar.gz"]
    disk_for(100_000)
    assert tree_of(download("toy", tmp_path))
    assert web.asked == [None]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_really_full(publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_no_link", os.open)
    publish(x_bin=BODY)
    part(tmp_path).symlink_to("/dev/full")
    with pytest.raises(DataError, match="is full; free some space"):
        download("toy", tmp_path)
    assert not (tmp_path / "data").exists()


def test_a_root_that_cannot_be_written(publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Cannot write 'toy' to .*/file.*choose another root"):
        download("toy", tmp_path / "file")


def test_leftovers_of_a_killed_process_are_removed(publish, tmp_path: Path) -> None:
    publish(x_tar=tarred(TREE))
    (tmp_path / ".data.unpacking/data").mkdir(parents=True)
    (tmp_path / ".data.unpacking/data/half").touch()
    assert "half" not in tree_of(download("toy", tmp_path, keep=True))
    assert [name for name in left(tmp_path) if "unpacking" in name] == []


# Several processes

# Quick, without torch: the package is not imported, only its folder is given.
CHILD = """
import json, signal, sys, types
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
for name, folder in (("spcp", sys.argv[1]), ("spcp.data", sys.argv[1] + "/data")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
before = set(sys.modules)
from spcp.data import downloads as module
foreign = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
"""
TOY = """
url, checksum, size, root = json.loads(sys.argv[2])
module.SOURCES["toy"] = module.Source((module.Remote(url, checksum, size),), "data", "")
sys.stderr.isatty = lambda: True
print(module.download("toy", root))
"""


def start(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    source = Path(module.__file__).parents[1]
    command = [sys.executable, "-c", CHILD + code, str(source), json.dumps(arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]


def toy() -> tuple[str, str, int]:
    (remote,) = SOURCES["toy"].files
    return remote.url, remote.md5, remote.size


def test_importing_it_imports_nothing_else() -> None:
    with start("print(foreign)") as child:
        assert child.communicate(timeout=20)[0] == "{'spcp'}\n"


def test_of_two_processes_one_downloads_and_the_other_waits(web: Web, publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    web.plan, web.stall = [HALF], True
    reading, writing = os.pipe()
    with (
        start(TOY, *toy(), str(tmp_path), stderr=writing) as one,
        start(TOY, *toy(), str(tmp_path), stderr=writing) as two,
    ):
        os.close(writing)
        with open(reading) as stderr:
            for line in stderr:
                if "Waiting for another process that downloads toy" in line:
                    break
            web.go_on.set()
            stderr.read()
        for child in (one, two):
            assert child.communicate(timeout=20)[0] == f"{tmp_path / 'data'}\n"
            assert child.returncode == 0
    assert tree_of(tmp_path / "data") == {"x.bin": BODY}
    assert web.asked == [None]


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_what_an_interrupted_process_fetched_is_used_by_the_next(
    kill: signal.Signals, web: Web, publish, tmp_path: Path
) -> None:
    publish(x_bin=BODY)
    web.plan, web.stall = [HALF], True
    with start(TOY, *toy(), str(tmp_path), stderr=subprocess.PIPE) as child:
        deadline = time.monotonic() + 20
        while not (part(tmp_path).exists() and part(tmp_path).stat().st_size == HALF) and time.monotonic() < deadline:
            time.sleep(0.01)
        child.send_signal(kill)
        stderr = child.communicate(timeout=20)[1]
    assert child.returncode == -kill
    assert ("KeyboardInterrupt" in stderr) == (kill == signal.SIGINT)
    assert part(tmp_path).read_bytes() == BODY[:HALF]
    assert not (tmp_path / "data").exists()
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == [None, f"bytes={HALF}-"]


def test_an_interrupt_releases_the_lock_and_keeps_a_download_whose_checksum_was_being_computed(
    web: Web, publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    publish(x_bin=BODY)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_md5", interrupt)
        with pytest.raises(KeyboardInterrupt):
            download("toy", tmp_path)
    assert left(tmp_path) == [".downloads", ".downloads/toy", ".downloads/toy/x.bin.part"]
    with FileLock(tmp_path / ".downloads/toy.lock", timeout=0):
        pass
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert web.asked == [None]


def test_a_planted_link_is_not_written_through(tmp_path: Path, publish) -> None:  # type: ignore[no-untyped-def]
    publish(x_bin=BODY)
    (tmp_path / "mine").write_bytes(b"precious")
    part(tmp_path, "x.bin").symlink_to(tmp_path / "mine")
    with pytest.raises(DataError, match=r"x.bin.part"):
        download("toy", tmp_path)
    assert (tmp_path / "mine").read_bytes() == b"precious"


def test_files_can_be_verified_though_the_process_ended_when_they_were_in_place(
    publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(old: Path, new: Path) -> None:
        rename(old, new)
        if Path(new).parent == tmp_path / "data":
            raise KeyboardInterrupt

    publish(x_bin=BODY)
    rename = os.replace
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            download("toy", tmp_path)
    assert tree_of(download("toy", tmp_path)) == {"x.bin": BODY}
    assert verify("toy", tmp_path) == []


# What is shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_goes_to_a_terminal_on_stderr_only(
    publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(x_tar=tarred(TREE))
    download("toy", tmp_path / "captured")
    assert capsys.readouterr() == ("", "")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal := Terminal())
        download("toy", tmp_path / "quiet", quiet=True)
        assert terminal.getvalue() == ""
        download("toy", tmp_path / "shown")
    assert "x.tar" in terminal.getvalue()
    assert re.search(r"(\d+\.\d)/\1 kB", terminal.getvalue())  # it got to the end
    assert "unpacking x.tar" in terminal.getvalue()
    assert capsys.readouterr() == ("", "")


def test_without_requests_it_says_what_to_install(publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(x_bin=BODY)
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(ImportError, match=r"needs requests: pip install 'spcp\[data\]'"):
        download("toy", tmp_path)


# Verifying


@pytest.mark.parametrize("kind", ["tar", "bin"])
def test_verify_names_what_is_missing_and_what_has_changed(kind: str, publish, tmp_path: Path) -> None:
    publish(**({"x_tar": tarred(TREE)} if kind == "tar" else {"one_txt": b"one", "two_bin": b"2", "empty_bin": b""}))
    folder = download("toy", tmp_path)
    (folder / "added").touch()
    assert verify("toy", tmp_path) == []
    two = next(folder.rglob("two.bin"))
    two.unlink()
    (folder / "one.txt").write_bytes(b"onf")
    assert sorted(verify("toy", tmp_path)) == [f"{folder / 'one.txt'} has changed", f"{two} is missing"]
    two.mkdir()
    assert any(f"{two} cannot be read" in line for line in verify("toy", tmp_path))


def test_verify_needs_the_manifest(publish, tmp_path: Path) -> None:
    publish(x_bin=BODY)
    remedy = r"delete .*data and call download\('toy'\)"
    with pytest.raises(DataError, match=rf"toy\.json is missing, so 'toy' cannot be verified; {remedy}"):
        verify("toy", tmp_path)
    download("toy", tmp_path)
    manifest = tmp_path / ".downloads/toy.json"
    for content in ("", "[]", "{}", '{"files": 1}', '{"files": {"x.bin": 1}}', '{"files": {"x.bin": ["a", "b"]}}'):
        manifest.write_text(content)
        with pytest.raises(DataError, match=rf"toy\.json cannot be read .*; {remedy}"):
            verify("toy", tmp_path)
