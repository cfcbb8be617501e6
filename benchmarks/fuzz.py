"""Damaged files: every reader reads them rightly, or refuses them in one sentence that names the file.

    python benchmarks/fuzz.py [--count 100000] [--seed 0] [--only mat,npz] [--check]
    python benchmarks/fuzz.py --only mat --case 1234 [--seed 0]    # one case, here, with its traceback

Each case damages one valid file: bits, bytes, lengths and fields, at random but for the seed. A case may take 5 seconds
of CPU time and 1 GiB of memory. Aims: no exception but the project's own, nothing wrong, slow, too large or crashed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gzip
import importlib
import io
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import finish, machine

import spcp
from spcp import data, progress
from spcp.bank import build_bank
from spcp.calibration import calibrate_run, load_detector
from spcp.errors import InputError
from spcp.files import read_tensors, write_tensors

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
formats: Any = importlib.import_module("formats")  # tiny files in the official formats
training_run: Any = importlib.import_module("training_run")  # a tiny benchmark

SECONDS = 5  # of CPU time, for one case
MEMORY = 1 << 30  # bytes, more than before
PATIENCE = 60  # seconds without an answer
GOOD = ("read", "refused")
BAD = ("foreign", "wrong", "slow", "memory", "crash")


# --- Readers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """How valid files are written, and how they are read, one of them damaged."""

    write: Callable[[Path], object]
    read: Callable[[Path, Path], object]  # the folder, and the file that is damaged
    damaged: str = "*"  # which files are
    exact: bool = False  # what is read must be what was written: checksums see to it
    share: float = 1.0  # of the cases; less for what is slow


def read_set(data_set: Any) -> None:
    """Look at a set as all that follows does."""
    x, y = data_set.x, data_set.y
    assert len(x) == len(y) == len(data_set), "samples and labels differ in number"
    assert x.dtype == torch.uint8 or x.is_floating_point(), f"samples of {x.dtype}"
    assert not len(y) or int(y.min()) >= -1, "a label below -1"
    assert not data_set.class_names or not len(y) or int(y.max()) < len(data_set.class_names), "a label without a class"


def read_files(kind: Any, transform: Any) -> Callable[[Path, Path], None]:
    def read(folder: Path, path: Path) -> None:
        files = data.FileSet("files", folder, (path.name,), torch.tensor([-1]), kind=kind)
        read_set(data.prepare(files, transform, cache=False))

    return read


def write_images(folder: Path) -> None:
    for i, name in enumerate(("png", "jpg", "bmp", "gif", "webp", "tif", "ppm")):
        formats.write_image(folder / f"image.{name}", (12, 9), seed=i)
    formats.write_image(folder / "grey.png", (12, 9), mode="L")


def write_sounds(folder: Path) -> None:
    for name in ("wav", "flac", "ogg", "aiff", "mp3"):
        formats.write_sound(folder / f"sound.{name}", seconds=0.1, channels=2)


def write_mats(folder: Path) -> None:
    formats.write_svhn(folder / "compressed.mat", 4)
    x, y = formats.pixels(32, 32, 3, 4), np.arange(1, 5, dtype=np.uint8)[:, None]
    importlib.import_module("scipy.io").savemat(folder / "plain.mat", {"X": x, "y": y})


def write_npz(folder: Path) -> None:
    images, labels = formats.pixels(6, 4, 4), np.arange(6) % 3
    np.savez(folder / "plain.npz", images=images, labels=labels)
    np.savez_compressed(folder / "compressed.npz", x=images.astype(np.float32), y=labels)


def write_npy(folder: Path) -> None:
    np.save(folder / "images.npy", formats.pixels(6, 4, 4))
    np.save(folder / "floats.npy", formats.pixels(6, 4).astype(np.float32))


def write_safetensors(folder: Path) -> None:
    write_tensors(folder / "x.safetensors", {"x": torch.randn(6, 4), "y": torch.arange(6) % 3})


def write_toml(folder: Path) -> None:
    np.savez(folder / "id.npz", images=formats.pixels(60, 4, 4), labels=np.arange(60) % 3)
    np.savez(folder / "ood.npz", images=formats.pixels(6, 4, 4, seed=1))
    (folder / "benchmark.toml").write_text(
        'name = "tiny"\n[id]\npath = "id.npz"\n[ood]\nnear = { one = "ood.npz" }\nfar = { two = "ood.npz" }\n'
        'val = "gaussian"\n[transform]\nsize = 4\nmean = [0.5]\nstd = [0.25]\naugment = "crop"\nflip = false\n'
    )


def write_lists(folder: Path) -> None:
    formats.write_tin(folder, ["n01", "n02"])
    (folder / "list.txt").write_text("val/images/val_0.JPEG 0\nval/images/val_1.JPEG -1\n")


def read_lists(folder: Path, path: Path) -> None:
    listed = data.read_imglist(path, folder) if path.name == "list.txt" else data.read_tin(folder, "test")
    assert len(listed.paths) == len(listed.y), "paths and labels differ in number"
    assert all((listed.root / name).resolve().is_relative_to(folder.resolve()) for name in listed.paths), "leaves root"


def write_cache(folder: Path) -> None:
    formats.write_image(folder / "images" / "image.png", (12, 9))
    read_cache(folder, folder)


def read_cache(folder: Path, _: Path) -> bytes:
    os.environ["SPCP_CACHE"] = str(folder / "cache")
    x: Any = data.prepare(data.read_folder(folder / "images"), IMAGE).x
    return bytes(x.numpy().tobytes())


def small_run(epochs: int = 1, until: int | None = None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        train(folder, epochs, until)

    return write


def train(folder: Path, epochs: int, until: int | None = None) -> Any:
    config = training_run.config("spcp", epochs, batch_size=24, width=2)
    return spcp.train(config, folder, benchmark=training_run.benchmark(24), until=until)


def write_monitor(folder: Path) -> None:
    monitor = spcp.Monitor(30)
    monitor.update(np.arange(1, 31) / 31)
    monitor.save(folder / "monitor.npz")


def read_monitor(_: Path, path: Path) -> None:
    monitor = spcp.Monitor.load(path)
    monitor.update(np.full(30, 0.5))
    assert monitor.status().inputs == 60, "inputs were lost"


def write_detector(folder: Path) -> None:
    train(folder, 1)
    calibrate_run(spcp.Run.open(folder), alpha=0.2, benchmark=training_run.benchmark(24))


def read_detector(folder: Path, path: Path) -> bytes:
    detector, _ = load_detector(path)
    detection = detector.detect(torch.linspace(-1, 1, 4 * 144).reshape(4, 1, 12, 12))
    return b"".join(column.numpy().tobytes() for column in detection)


def read_run(folder: Path, _: Path) -> None:
    run = spcp.Run.open(folder)
    model = run.load()
    assert model.num_classes == len(run.inputs.class_names), "outputs and classes differ in number"
    model.outputs(torch.zeros(2, *run.inputs.shape))


def read_history(folder: Path, _: Path) -> None:
    run = spcp.Run.open(folder)
    epochs = [record["epoch"] for record in run.history]
    assert epochs == sorted(set(epochs)), "epochs out of order"
    assert all(isinstance(record["epoch"], int) for record in run.environment), "an environment without its epoch"


def read_state(folder: Path, _: Path) -> bytes:
    """Finish the run, in a copy of its folder."""
    copy = folder.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)  # of a case that did not come back
    shutil.copytree(folder, copy)
    try:
        train(copy, 2)
        weights = read_tensors(copy / "last.safetensors")[0]
        return b"".join(value.numpy().tobytes() for value in weights.values())
    except InputError as error:
        raise type(error)(str(error).replace(str(copy), str(folder))) from error


def write_bank(folder: Path) -> None:
    read_bank(folder, folder)


def read_bank(folder: Path, _: Path) -> bytes:
    bank = build_bank(MODEL, SAMPLES, folder=folder)
    return b"".join(tensor.numpy().tobytes() for part in bank.parts() for tensor in part)


def write_manifest(folder: Path) -> None:
    (folder / "svhn").mkdir()
    (folder / "svhn" / "test_32x32.mat").write_bytes(b"digits")
    (folder / ".downloads").mkdir()
    (folder / ".downloads" / "svhn.json").write_text('{"files": {"test_32x32.mat": [6, 1893474567]}}\n')


IMAGE = data.ImageTransform(8, 8, (0.5,) * 3, (0.5,) * 3)
SOUND = data.AudioTransform(sample_rate=8000, seconds=0.1, mels=8)
torch.manual_seed(0)
SAMPLES = (torch.randn(8, 4), torch.arange(8) % 3)
MODEL = spcp.ScoredModel(torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)))
CIFAR = lambda _, path: read_set(data.read_cifar(path.parent, "test"))  # noqa: E731
ARRAYS = lambda _, path: read_set(data.read_arrays(path))  # noqa: E731

READERS: dict[str, Reader] = {
    "cifar-10 binary": Reader(
        lambda folder: formats.write_cifar10_binary(folder / "10", 1), CIFAR, "10/test_batch.bin"
    ),
    "cifar-100 binary": Reader(lambda folder: formats.write_cifar100_binary(folder / "100", 1), CIFAR, "100/*e*t*"),
    "cifar-10 python": Reader(
        lambda folder: formats.write_cifar10_python(folder / "10"), CIFAR, "10/test_batch", share=2
    ),
    "cifar-100 python": Reader(
        lambda folder: formats.write_cifar100_python(folder / "100"), CIFAR, "100/[tm]e*", share=2
    ),
    "idx": Reader(
        lambda folder: [formats.write_mnist(folder / kind, 4, kind == "gz", ("t10k",)) for kind in ("gz", "plain")],
        lambda _, path: read_set(data.read_mnist(path.parent, "test")),
        "*/*",
    ),
    "mat": Reader(write_mats, lambda _, path: read_set(data.read_svhn(path)), share=0.3),
    "npz": Reader(write_npz, ARRAYS),
    "npy": Reader(write_npy, ARRAYS),
    "safetensors": Reader(write_safetensors, ARRAYS),
    "images": Reader(write_images, read_files("image", IMAGE), share=2),
    "sounds": Reader(write_sounds, read_files("audio", SOUND), share=2),
    "toml": Reader(write_toml, lambda _, path: data.read_benchmark(path), "*.toml"),
    "image lists": Reader(write_lists, read_lists, "*list.txt"),
    "tables of classes": Reader(write_lists, read_lists, "**/[vw]*.txt"),
    "config": Reader(small_run(), read_run, "config.json"),
    "inputs": Reader(small_run(), read_run, "inputs.json"),
    "weights": Reader(small_run(), read_run, "last.safetensors"),
    "history": Reader(small_run(2), read_history, "metrics.jsonl"),
    "environment": Reader(small_run(), read_history, "environment.json"),
    "state": Reader(small_run(2, until=1), read_state, "state.safetensors", exact=True, share=0.1),
    "detector": Reader(write_detector, read_detector, "detector.safetensors", exact=True),
    "monitor": Reader(write_monitor, read_monitor),
    "bank": Reader(write_bank, read_bank, "banks/*/*", exact=True),
    "cache": Reader(write_cache, read_cache, "cache/*", exact=True),
    "manifest": Reader(write_manifest, lambda folder, _: data.verify("svhn", folder), ".downloads/*"),
}


# --- Damage -----------------------------------------------------------------------------------------------------------

NUMBERS = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 0.5, 1e-308, 1e308, float("nan"), float("inf"), -float("inf"), 10**30, 2**31, 10**9,
    "", "nan", "é", "\x1b[31m", "../..", "a" * 300, [], {}, [[]], [1, "a", None], {"a": {}},
)  # fmt: skip
WORDS = (
    b"", b"-1", b"0", b"1e999", b"nan", b"10000000000", b"99999999999999999999999", b'""', b"[]", b"{}", b"null",
    b"true", b"\x00", b"\xff\xfe", b"\n", b"..", b"/", b"'", b"[" * 3000, b"<f8", b"|O", b"|V0", b"<U9",
)  # fmt: skip
PICKLE = (
    b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\x7f", b"B\xff\xff\xff\x7f", b"\x96" + b"\xff" * 7 + b"\x7f", b"cos\nsystem\n",
    b"R", b"b", b"0", b"(", b"t", b"l", b"d", b"a", b"e", b"s", b"u", b"2", b"1", b".", b"N", b"\x93", b"\x94", b"Q",
    b"\x81", b"\x8a\xff", b"\x8b\xff\xff\xff\x7f", b"X\xff\xff\xff\x7f", b"C\xff", b"\x95" + b"\xff" * 8, b"}", b"]",
    b")", b"h\x01",
)  # fmt: skip


def place(raw: bytes | bytearray, rng: random.Random) -> int:
    """A position; at the beginning or the end, where headers are, as often as anywhere."""
    end = max(1, len(raw))
    where = rng.random()
    if where < 0.4:
        return rng.randrange(min(end, 128))
    return end - 1 - rng.randrange(min(end, 128)) if where < 0.5 else rng.randrange(end)


def bytes_damaged(raw: bytes, rng: random.Random) -> bytes:
    out, at = bytearray(raw), place(raw, rng)
    span = rng.choice((1, 2, 4, 16, 64, 1000))
    kind = rng.randrange(11)
    if kind == 0:
        for _ in range(rng.choice((1, 2, 8, 64))):
            if out:
                out[place(out, rng)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        out[at : at + 1] = bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF))])
    elif kind == 2:
        form = rng.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
        number = rng.choice(NUMBERS) % 2 ** (8 * struct.calcsize(form))
        out[at : at + struct.calcsize(form)] = struct.pack(form, number)
    elif kind == 3:
        del out[at:]
    elif kind == 4:
        del out[at : at + span]
    elif kind == 5:
        out[at:at] = out[at : at + span] * rng.choice((1, 2, 100))
    elif kind == 6:
        out[at:at] = rng.randbytes(span)
    elif kind == 7:
        out[at : at + span] = rng.randbytes(span)
    elif kind == 8:
        out[at : at + span] = bytes(span)
    elif kind == 9:
        out += rng.randbytes(span) if rng.random() < 0.8 else bytes(100_000)
    else:
        out = bytearray(rng.choice((b"", b"\x00", rng.randbytes(64), raw * 2)))
    return bytes(out)


def text_damaged(raw: bytes, rng: random.Random) -> bytes:
    """Replace a number, a word or a string by another; or a line by another."""
    if rng.random() < 0.2:
        lines = raw.split(b"\n")
        lines[rng.randrange(len(lines))] = rng.choice((*lines, b"", b"a", b"[id]"))
        return b"\n".join(lines)
    words = list(re.finditer(rb"-?[\d.]+(?:e[+-]?\d+)?|'[^']*'|\"[^\"]*\"|\w+|[^\w\s]", raw))
    if not words:
        return bytes_damaged(raw, rng)
    word = rng.choice(words)
    other = rng.choice((*WORDS, rng.choice(words)[0]))
    return raw[: word.start()] + other + raw[word.end() :]


def value_damaged(value: Any, rng: random.Random) -> Any:
    """Replace, remove or rename something in what a JSON file holds; also in JSON within its strings."""
    if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.9:
        with contextlib.suppress(ValueError):
            return json.dumps(value_damaged(json.loads(value), rng))
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key, out = rng.choice(sorted(value)), dict(value)
        kind = rng.random()
        if kind < 0.1:
            del out[key]
        elif kind < 0.15:
            out[rng.choice(("x", "", "é", key + "_"))] = out.pop(key)
        else:
            out[key] = value_damaged(value[key], rng)
        return out
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return value[:i] + rng.choice(([], [value[i]] * 2, [value_damaged(value[i], rng)])) + value[i + 1 :]
    if isinstance(value, int | float) and rng.random() < 0.3:
        return value * rng.choice((-1, 2, 10, 1000, 0.5))
    return rng.choice(VALUES)


def json_damaged(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.splitlines() if raw.count(b"\n{") else [raw]
    i = rng.randrange(len(lines))
    lines[i] = json.dumps(value_damaged(json.loads(lines[i]), rng)).encode()
    return b"\n".join(lines) + b"\n"


def safetensors_damaged(raw: bytes, rng: random.Random) -> bytes:
    """Change the header, with its length, or the payload alone."""
    size = int.from_bytes(raw[:8], "little")
    if rng.random() < 0.3:
        return raw[: 8 + size] + bytes_damaged(raw[8 + size :], rng)
    header = json_damaged(raw[8 : 8 + size], rng)
    return len(header).to_bytes(8, "little") + header + raw[8 + size :]


def npy_damaged(raw: bytes, rng: random.Random) -> bytes:
    size = int.from_bytes(raw[8:10], "little")
    header = text_damaged(raw[10 : 10 + size], rng)
    return raw[:8] + min(len(header), 65535).to_bytes(2, "little") + header + raw[10 + size :]


def npz_damaged(raw: bytes, rng: random.Random) -> bytes:
    """Change what an entry holds, its name, or how it is compressed; the archive itself stays right."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(raw)) as before,
        zipfile.ZipFile(out, "w", before.infolist()[0].compress_type) as after,
    ):
        chosen = rng.randrange(len(before.infolist()))
        for i, entry in enumerate(before.infolist()):
            content, name = before.read(entry), entry.filename
            if i == chosen and rng.random() < 0.9:
                content = rng.choice((npy_damaged, bytes_damaged))(content, rng)
            elif i == chosen:
                name = rng.choice(("x.npy", "y.npy", "x", "../x.npy"))
            after.writestr(name, content)
    return out.getvalue()


def damaged(path: Path, raw: bytes, rng: random.Random) -> bytes:
    """Change the contents of a file, once or a few times; half of the time with what encloses them kept right."""
    special: Callable[[bytes, random.Random], bytes] | None = {
        ".npz": npz_damaged,
        ".npy": npy_damaged,
        ".safetensors": safetensors_damaged,
        ".json": json_damaged,
        ".jsonl": json_damaged,
        ".toml": text_damaged,
        ".txt": text_damaged,
        ".gz": lambda raw, rng: gzip.compress(bytes_damaged(gzip.decompress(raw), rng)),
        "": lambda raw, rng: raw[: (at := place(raw, rng))] + rng.choice(PICKLE) + raw[at + rng.choice((0, 1)) :],
    }.get(path.suffix)
    if special is not None and rng.random() < 0.6:
        return special(raw, rng)
    for _ in range(rng.choice((1, 1, 2, 4))):
        raw = bytes_damaged(raw, rng)
    return raw


# --- Cases ------------------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """The files of one reader, and what they hold when whole."""

    name: str
    seed: int
    folder: Path
    files: dict[Path, bytes] = field(default_factory=dict)
    whole: object = None

    def __post_init__(self) -> None:
        reader = READERS[self.name]
        os.environ["SPCP_CACHE"] = str(self.folder / "cache")
        (self.folder / "files").mkdir()
        reader.write(self.folder / "files")
        paths = sorted(path for path in (self.folder / "files").glob(reader.damaged) if path.is_file())
        self.files = {path: path.read_bytes() for path in paths}
        assert self.files, f"{self.name}: no file to damage"
        for path in self.files:
            self.whole = reader.read(self.folder / "files", path)

    def case(self, index: int) -> tuple[Path, bytes]:
        """The file that a case damages, and its damaged contents."""
        rng = random.Random(f"{self.seed} {self.name} {index}")
        path = rng.choice(list(self.files))
        return path, damaged(path, self.files[path], rng)

    @contextlib.contextmanager
    def damage(self, index: int) -> Iterator[Path]:
        path, contents = self.case(index)
        self.put(path, contents)
        try:
            yield path
        finally:
            self.put(path, self.files[path])

    def put(self, path: Path, contents: bytes) -> None:
        """Replace a file, as an editor would: the old one may still be mapped into memory."""
        temporary = self.folder / "new"
        temporary.write_bytes(contents)
        os.replace(temporary, path)

    def verdict(self, index: int) -> tuple[str, str]:
        """What becomes of a case, and the sentence or the exception."""
        reader, folder = READERS[self.name], self.folder / "files"
        with self.damage(index) as path:
            try:
                value = reader.read(folder, path)
            except InputError as error:
                text = str(error)
                if "\n" in text.strip() or not (path.name in text or str(folder) in text):
                    return "foreign", f"{path.name}: not one sentence that names the file: {text!r}"
                return "refused", text
            except MemoryError as error:
                return "memory", f"{path.name}: {error!r}"
            except AssertionError as error:
                return "wrong", f"{path.name}: {error}"
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                return (
                    "foreign",
                    f"{path.name}: {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})",
                )
            if reader.exact and value != self.whole:
                return "wrong", f"{path.name}: read, but not what was written"
            return "read", ""


def run_cases(bench: Bench, cases: Sequence[int]) -> Iterator[tuple[int, str, str, float]]:
    """Run cases in a process of their own; after a crash, the rest in another."""
    left = list(cases)
    while left:
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(ours)
            _work(bench, left, theirs)
        os.close(theirs)
        done, started = 0, time.monotonic()
        with os.fdopen(ours) as results:
            for line in results:
                verdict, text, seconds = json.loads(line)
                yield left[done], verdict, text, seconds
                done, started = done + 1, time.monotonic()
        _, status = os.waitpid(child, 0)
        if done < len(left):
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            slow = number in (signal.SIGPROF, signal.SIGALRM)
            why = signal.strsignal(number) if number else f"exit code {os.waitstatus_to_exitcode(status)}"
            path, _ = bench.case(left[done])
            bench.put(path, bench.files[path])
            yield left[done], "slow" if slow else "crash", f"{path.name}: {why}", time.monotonic() - started
            done += 1
        left = left[done:]


def _work(bench: Bench, cases: Sequence[int], out: int) -> None:
    """Report on each case, in a child process: within its limits, or by its death."""
    torch.set_num_threads(1)  # a child has none of its parent's threads, and would wait for them
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)  # libraries in C complain there
    try:
        with os.fdopen(out, "w", buffering=1) as results:
            for index in cases:
                started = time.process_time()
                signal.setitimer(signal.ITIMER_PROF, SECONDS)  # the signals of these two end the process
                signal.alarm(PATIENCE)
                verdict, text = bench.verdict(index)
                signal.setitimer(signal.ITIMER_PROF, 0)
                print(json.dumps([verdict, text[:400], time.process_time() - started]), file=results)
    finally:
        os._exit(0)


@dataclass
class Tally:
    """What became of the cases of one reader."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    slowest: float = 0.0
    problems: list[str] = field(default_factory=list)


def fuzz(names: Sequence[str], count: int, seed: int) -> dict[str, Tally]:
    """Run `count` cases, divided among readers."""
    total = sum(READERS[name].share for name in names)
    tallies: dict[str, Tally] = {}
    with quiet():
        for name in names:
            tally = tallies[name] = Tally()
            cases = range(max(1, round(count * READERS[name].share / total)))
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(name, seed, Path(folder))
                for index, verdict, text, seconds in run_cases(bench, cases):
                    tally.counts[verdict] += 1
                    tally.slowest = max(tally.slowest, seconds)
                    if verdict in BAD:
                        tally.problems.append(f"{name}, case {index}: {verdict}: {text}".replace(folder, ""))
    return tallies


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Damaged files are announced in the log and by warnings; a thousand of them are too many."""
    before = os.environ.get("SPCP_CACHE")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        progress.quiet = True
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            progress.quiet = False
            os.environ.pop("SPCP_CACHE")
            if before is not None:
                os.environ["SPCP_CACHE"] = before


def table(tallies: dict[str, Tally]) -> str:
    columns = (*GOOD, *BAD)
    rows = [f"{'reader':<20}{'files':>8}" + "".join(f"{name:>9}" for name in columns) + f"{'slowest':>10}"]
    sums: collections.Counter[str] = sum((tally.counts for tally in tallies.values()), collections.Counter())
    every = [*((name, tally.counts, tally.slowest) for name, tally in tallies.items())]
    for name, counts, slowest in [*every, ("all", sums, max(slowest for *_, slowest in every))]:
        cells = "".join(f"{counts[column]:>9}" for column in columns)
        rows.append(f"{name:<20}{counts.total():>8}{cells}{slowest:>8.2f} s")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--count", type=int, default=100_000, help="files to damage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(READERS), help="readers, separated by commas")
    parser.add_argument("--case", type=int, help="run this case of the one reader here, and show its traceback")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.only.split(",")
    if options.case is not None:
        with quiet():
            bench = Bench(names[0], options.seed, Path(tempfile.mkdtemp()))
            with bench.damage(options.case) as path:
                print(f"{path}: {path.read_bytes()[:2000]!r}", flush=True)
                print(READERS[names[0]].read(bench.folder / "files", path))
        return
    started = time.monotonic()
    tallies = fuzz(names, options.count, options.seed)
    print(f"{machine()}, seed {options.seed}, {time.monotonic() - started:.0f} s\n{table(tallies)}")
    finish([problem for tally in tallies.values() for problem in tally.problems], options.check)


if __name__ == "__main__":
    main()
