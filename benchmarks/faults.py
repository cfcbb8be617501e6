"""Faults: what a kill, a full disk or a second process leaves is whole, and the next call ends with the same result.

    python benchmarks/faults.py [--kills 100] [--seed 0] [--only train,bank] [--check]

Each task runs in a process of its own. Kills hit it at a random moment, or within a random write or rename, before or
after it; writes happen in halves and take their time. The other faults: a full disk and a read-only one (on a small
tmpfs, where mounting is allowed), two processes at once, a clock that jumps, a folder that moves. After each fault
every visible file must be readable, and one more call must end as if nothing had happened, with nothing left over.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
import functools
import hashlib
import http.server
import importlib
import io
import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import finish, machine

import spcp
from spcp import bank, data, experiments, progress
from spcp.calibration import calibrate_run, load_detector
from spcp.detection import detect_files, find_files
from spcp.errors import InputError, TrainingError
from spcp.files import read_tensors

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
formats: Any = importlib.import_module("formats")  # tiny files in the official formats
training_run: Any = importlib.import_module("training_run")  # a tiny benchmark

PATIENCE = 120  # seconds, after which a process hangs
PAUSE = 0.004  # seconds, before, within and after each write and rename
PAGE = 4096  # bytes, of a tmpfs
REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}  # the command line says them in a line


# --- Tasks ------------------------------------------------------------------------------------------------------------


# A task writes into a folder and, called again, goes on from there; it returns what must be the same each time. It may
# read from another folder.
Task = Callable[[Path, Path], object]


def weights(folder: Path) -> list[Any]:
    """What a run ended with: its weights, and its history but for the time it took."""
    parts: list[Any] = []
    for name in ("last", "best", "state"):
        tensors, notes = read_tensors(folder / f"{name}.safetensors")
        parts += [(key, value.numpy().tobytes()) for key, value in sorted(tensors.items())]
        parts += [(key, notes.get(key)) for key in ("epoch", "step", "best")]
    history = spcp.Run.open(folder).history
    return [*parts, [{key: value for key, value in record.items() if key != "seconds"} for record in history]]


def train(folder: Path, _: Path) -> object:
    config = training_run.config("spcp", 3, width=2)
    return weights(spcp.train(config, folder / "run", benchmark=training_run.benchmark(48)).folder)


def train_on_own_data(folder: Path, given: Path) -> object:
    from spcp.cli.app import app

    command = [
        "train",
        "--id",
        str(given / "own.npz"),
        "--ood-val",
        "gaussian",
        "--out",
        str(folder / "run"),
        "--quiet",
    ]
    app([*command, "--network", "cnn", "--width", "2", "--epochs", "2", "--batch-size", "32"], standalone_mode=False)
    return weights(folder / "run")


def build_bank(folder: Path, _: Path) -> object:
    bank.SHARD = 16
    torch.manual_seed(0)
    model = spcp.ScoredModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 5), torch.nn.Linear(5, 4)))
    benchmark = training_run.benchmark(96)
    built = bank.build_bank(model, benchmark.train, benchmark.transform, folder=folder, batch_size=16)
    return [tensor.numpy().tobytes() for part in built.parts() for tensor in part]


def tune(folder: Path, _: Path) -> object:
    config = training_run.config("spcp", 1, width=2)
    tuning = spcp.tune(config, folder / "runs", grid=(0.0, 1.0), benchmark=training_run.benchmark(48))
    return tuning.best, [{key: value for key, value in row.items() if key != "folder"} for row in tuning.rows]


def reproduce(folder: Path, _: Path) -> object:
    outcome = experiments.reproduce("itp", "smoke", folder, seeds=1, log=lambda _: None)
    assert (folder / "smoke" / "itp" / "report.html").exists()
    return outcome.records()


def calibrate(folder: Path, _: Path) -> object:
    """Replace the detector of a run by another, twice."""
    run = spcp.Run.open(folder / "run")
    for alpha in (0.1, 0.2):
        calibrate_run(run, alpha=alpha, benchmark=training_run.benchmark(48))
    return detections(run.folder)


def detect(folder: Path, given: Path) -> object:
    detector, inputs = load_detector(folder / "run")
    return detections(folder / "run"), [
        (result.file.replace(str(given), ""), result.score, result.is_ood, result.problem.replace(str(given), ""))
        for result in detect_files(detector, inputs, find_files([str(given / "photos")], inputs))
    ]


def detections(run: Path) -> list[bytes]:
    detector, _ = load_detector(run)
    x = torch.linspace(-1, 1, 4 * 144).reshape(4, 1, 12, 12)
    return [column.numpy().tobytes() for column in detector.detect(x)]


def prepare(folder: Path, given: Path) -> object:
    os.environ["SPCP_CACHE"] = str(folder)
    transform = data.ImageTransform(40, 40, (0.5,), (0.5,))
    return [data.prepare(data.read_folder(given / "photos" / "good"), transform).x.numpy().tobytes() for _ in range(2)]


def download(folder: Path, given: Path) -> object:
    """An archive, and files that are kept as they are, from a server on this machine."""
    module = importlib.import_module("spcp.data.downloads")
    url = (given / "url").read_text()
    digest = lambda name: hashlib.md5((given / "web" / name).read_bytes()).hexdigest()  # noqa: E731
    size = lambda name: (given / "web" / name).stat().st_size  # noqa: E731
    remote = lambda name, unpacked=0: module.Remote(url + name, digest(name), size(name), unpacked)  # noqa: E731
    module.SOURCES["archive"] = module.Source((remote("data.tar.gz", 500_000),), "data", url)
    module.SOURCES["files"] = module.Source((remote("one.bin"), remote("two.bin")), "files", url)
    for name in ("archive", "files"):
        data.download(name, folder, quiet=True)
        assert data.verify(name, folder) == []
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in visible(folder)}


TASKS: dict[str, Task] = {
    "train": train,
    "own data": train_on_own_data,
    "bank": build_bank,
    "tune": tune,
    "reproduce": reproduce,
    "calibrate": calibrate,
    "detect": detect,
    "cache": prepare,
    "download": download,
}


ON_A_RUN = ("calibrate", "detect")  # tasks that begin with one


def write_given(folder: Path) -> None:
    """What the tasks read: data, a calibrated run, and files for the server."""
    benchmark = training_run.benchmark(240)
    np.savez(folder / "own.npz", images=benchmark.train.x[:, 0].numpy(), labels=benchmark.train.y.numpy())
    run = spcp.train(training_run.config("spcp", 1, width=2), folder / "run", benchmark=training_run.benchmark(48))
    calibrate_run(run, alpha=0.1, benchmark=training_run.benchmark(48))
    for i in range(6):
        formats.write_image(folder / "photos" / "good" / f"{i}.png", (14, 13), seed=i)
    (folder / "photos" / "broken.png").write_bytes(b"no image")
    web = folder / "web"
    web.mkdir()
    rng = random.Random(0)
    for name in ("one.bin", "two.bin"):
        (web / name).write_bytes(rng.randbytes(100_000))
    with tarfile.open(web / "data.tar.gz", "w:gz") as archive:
        for i in range(6):
            content = rng.randbytes(30_000)
            entry = tarfile.TarInfo(f"data/{i}.bin")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


class Server(http.server.BaseHTTPRequestHandler):
    """Sends a file slowly, from where it is asked to."""

    folder: Path

    def do_GET(self) -> None:
        body = (self.folder / Path(self.path).name).read_bytes()
        asked = self.headers["Range"]
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        with contextlib.suppress(OSError):
            for at in range(start, len(body), 20_000):
                self.wfile.write(body[at : at + 20_000])
                time.sleep(PAUSE)

    def log_message(self, *_: object) -> None:
        pass


# --- Processes --------------------------------------------------------------------------------------------------------


class Shim:
    """Stands between the package and the disk: counts and slows writes and renames, and may die within one.

    Args:
        kill_at: the point to die at; there are some before, within and after each write and rename.
        pause: seconds at each point.
    """

    def __init__(self, kill_at: int | None = None, pause: float = 0.0) -> None:
        self.kill_at, self.pause, self.points = kill_at, pause, 0

    def point(self) -> None:
        if self.points == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.points += 1
        time.sleep(self.pause)

    def install(self) -> None:
        """For the rest of this process."""
        shim, real_open = self, builtins.open

        class Slow(io.FileIO):
            def write(self, content: Any) -> int:
                view = memoryview(content).cast("B")
                shim.point()
                written = super().write(view[: len(view) // 2])
                shim.point()
                while written < len(view):
                    written += super().write(view[written:])
                return written

        def slow_open(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            writes = "b" in mode and set(mode) & set("wax") and not str(file).startswith("/dev/")
            return Slow(file, mode.replace("b", "")) if writes else real_open(file, mode, *rest, **options)

        def slow_fdopen(handle: int, mode: str = "r", *rest: Any, **options: Any) -> Any:
            return Slow(handle, "w") if mode == "wb" else real_open(handle, mode, *rest, **options)

        def slowed(rename: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(rename)
            def slow(*arguments: Any, **options: Any) -> None:
                shim.point()
                rename(*arguments, **options)
                shim.point()

            return slow

        builtins.open, os.fdopen = slow_open, slow_fdopen  # type: ignore[assignment]
        os.replace, os.rename = slowed(os.replace), slowed(os.rename)


@dataclass
class End:
    """How a process ended: "done", "refused", "foreign", "killed", or "hung"."""

    how: str
    text: str = ""  # of the error, or a digest of the result
    points: int = 0
    seconds: float = 0.0


def start(task: str, folder: Path, given: Path, shim: Shim | None = None, clock: bool = False) -> tuple[int, int]:
    """Start a task in a process; return its id, and where it reports."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        return child, ours
    os.close(ours)
    torch.set_num_threads(1)  # a child has none of its parent's threads, and would wait for them
    report = ["foreign", "", 0]
    try:
        shim = shim or Shim()
        if shim.pause or shim.kill_at is not None:
            shim.install()
        if clock:
            jumping()
        signal.alarm(PATIENCE)
        report = ["done", digest(TASKS[task](folder, given)), shim.points]
    except (InputError, TrainingError) as error:
        report = ["refused", str(error), 0]
    except Exception as error:
        known = isinstance(error, OSError) and error.errno in REFUSALS
        report = ["refused" if known else "foreign", str(error) if known else traceback.format_exc(), 0]
    finally:
        os.write(theirs, json.dumps(report).encode())
        os._exit(0)


def ended(child: int, reports: int) -> End:
    """Wait for a process."""
    started = time.monotonic()
    with os.fdopen(reports, "rb") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seconds = time.monotonic() - started
    if text:
        how, text, points = json.loads(text)
        return End(how, text, points, seconds)
    return End(
        "hung" if status == -signal.SIGALRM else "killed" if status == -signal.SIGKILL else "foreign", str(status)
    )


def call(task: str, folder: Path, given: Path, shim: Shim | None = None, clock: bool = False) -> End:
    return ended(*start(task, folder, given, shim, clock))


def digest(result: object) -> str:
    return hashlib.sha256(repr(result).encode()).hexdigest()


def jumping() -> None:
    """Let the clock go back an hour, or on by a day, whenever it is read."""
    real, steps = time.time, itertools.cycle((-3600.0, 86400.0, 0.0, -1e8))
    time.time = lambda: real() + next(steps)


# --- Faults -----------------------------------------------------------------------------------------------------------


def visible(folder: Path) -> list[Path]:
    """The files that others may see: those whose names, and whose folders' names, do not begin with a dot."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def broken(folder: Path) -> list[str]:
    """The visible files that are not whole."""
    readers: dict[str, Callable[[Path], object]] = {
        ".safetensors": read_tensors,
        ".json": lambda path: json.loads(path.read_text()),
        ".jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
        ".npy": np.load,
        ".html": lambda path: path.read_text().rindex("</html>"),
    }
    problems = []
    for path in visible(folder):
        try:
            readers.get(path.suffix, Path.read_bytes)(path)
        except Exception as error:
            problems.append(f"{path.name} is broken ({error!r:.80})")
    return problems


def left_over(folder: Path, whole: Sequence[str]) -> list[str]:
    """Files that are there after a restart, but not after a call that nothing happened to."""
    return [f"{path} is left over" for path in files_of(folder) if path not in whole]


def pages(folder: Path) -> int:
    """How much of a disk the files take."""
    return sum(-(-path.stat().st_size // PAGE) for path in folder.rglob("*") if path.is_file())


def files_of(folder: Path) -> list[str]:
    paths = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in paths if not path.endswith(".lock")]


@dataclass
class Whole:
    """A task that nothing happened to."""

    end: End
    files: list[str]
    pages: int  # of the disk that it takes


class Bench:
    """Tries faults on tasks, and keeps what went wrong."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.given, self.rng = folder, folder / "given", random.Random(seed)
        self.number = itertools.count()
        self.rows: dict[tuple[str, str], list[int]] = {}  # by task and fault: times, and how many went wrong
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.whole: dict[str, Whole] = {}
        self.given.mkdir()
        write_given(self.given)
        self.server = os.fork()
        if not self.server:
            serve(self.given)
        while not (self.given / "url").exists():
            time.sleep(0.01)

    def close(self) -> None:
        os.kill(self.server, signal.SIGKILL)
        os.waitpid(self.server, 0)

    def new(self, task: str) -> Path:
        """A folder for a task, with what it begins with."""
        folder = self.folder / str(next(self.number))
        folder.mkdir()
        self.begin(task, folder)
        return folder

    def begin(self, task: str, folder: Path) -> None:
        if task in ON_A_RUN:
            shutil.copytree(self.given / "run", folder / "run")

    def undisturbed(self, task: str) -> Whole:
        """What the task ends with when nothing happens; and slowed down, its points and how long it takes."""
        if task not in self.whole:
            folder = self.new(task)
            before = pages(folder)
            plain, slow = call(task, self.new(task), self.given), call(task, folder, self.given, Shim(pause=PAUSE))
            if plain.how != "done" or slow.text != plain.text:
                raise RuntimeError(f"{task}: does not end alike twice: {plain.text} {slow.text}")
            self.whole[task] = Whole(slow, files_of(folder), pages(folder) - before)
        return self.whole[task]

    def judge(self, task: str, fault: str, problems: Sequence[str]) -> None:
        row = self.rows.setdefault((task, fault), [0, 0])
        row[0] += 1
        row[1] += bool(problems)
        self.problems += [f"{task}, {fault}, {row[0]}: {problem}" for problem in problems]

    def again(self, task: str, folder: Path, clock: bool = False) -> list[str]:
        """What is wrong after one more call."""
        whole = self.undisturbed(task)
        end = call(task, folder, self.given, clock=clock)
        if end.how != "done":
            return [f"the next call: {end.how}: {end.text}"]
        different = ["the result is different"] if end.text != whole.end.text else []
        return different + broken(folder) + left_over(folder, whole.files)

    def killed(self, task: str, folder: Path, timed: bool) -> str:
        """Kill a task; return where."""
        whole = self.undisturbed(task)
        if not timed:
            point = self.rng.randrange(max(1, whole.end.points))
            end = call(task, folder, self.given, Shim(kill_at=point))
            return f"point {point} of {whole.end.points}, {end.how}"
        after = self.rng.uniform(0, whole.end.seconds)
        child, reports = start(task, folder, self.given, Shim(pause=PAUSE))
        time.sleep(after)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        end = ended(child, reports)
        return f"after {after:.2f} s of {whole.end.seconds:.2f}, {end.how}"

    def kill(self, task: str, timed: bool) -> None:
        folder = self.new(task)
        where = self.killed(task, folder, timed)
        problems = broken(folder) + self.again(task, folder)
        self.judge(task, "killed at a moment" if timed else "killed in a write", [f"{p} ({where})" for p in problems])

    def two(self, task: str) -> None:
        """Two processes at once: both end alike, or one is refused."""
        folder, whole = self.new(task), self.undisturbed(task)
        both = [start(task, folder, self.given, Shim(pause=PAUSE)) for _ in range(2)]
        ends = [ended(*each) for each in both]
        problems = [f"{end.how}: {end.text}" for end in ends if end.how not in ("done", "refused")]
        problems += ["a result is different" for end in ends if end.how == "done" and end.text != whole.end.text]
        problems += ["both were refused: " + ends[0].text] if all(end.how == "refused" for end in ends) else []
        self.judge(task, "two at once", problems + broken(folder) + self.again(task, folder))

    def clock(self, task: str) -> None:
        """Killed, then the files are from tomorrow or from long ago, and the clock goes back and forth."""
        folder = self.new(task)
        self.killed(task, folder, timed=False)
        for path in folder.rglob("*"):
            moment = time.time() + self.rng.choice((-1e8, 86400.0, 1e8))
            os.utime(path, (moment, moment))
        self.judge(task, "the clock jumps", self.again(task, folder, clock=True))

    def moved(self, task: str) -> None:
        folder = self.new(task)
        self.killed(task, folder, timed=False)
        there = folder.with_name(f"{folder.name} moved")
        folder.rename(there)
        self.judge(task, "the folder moves", self.again(task, there))

    def full(self, task: str) -> None:
        """A disk that has no room for all of it; then it has."""
        with disk(self.folder / "disk") as folder:
            self.begin(task, folder)
            room = self.rng.randrange(max(1, self.undisturbed(task).pages))
            remount(folder, f"size={PAGE * max(1, pages(folder) + room)}")
            end = call(task, folder, self.given)
            problems = broken(folder)
            remount(folder, "size=100m")
            self.judge(task, "the disk is full", wrong_end(end) + problems + self.again(task, folder))

    def read_only(self, task: str) -> None:
        with disk(self.folder / "disk") as folder:
            self.begin(task, folder)
            self.killed(task, folder, timed=False)
            remount(folder, "ro")
            end = call(task, folder, self.given)
            problems = broken(folder)
            remount(folder, "rw")
            self.judge(task, "the disk is read-only", wrong_end(end) + problems + self.again(task, folder))


def wrong_end(end: End) -> list[str]:
    return [] if end.how in ("done", "refused") else [f"{end.how}: {end.text}"]


def serve(given: Path) -> None:
    """Serve files until killed."""
    Server.folder = given / "web"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        (given / "new").write_text(f"http://127.0.0.1:{server.server_address[1]}/")
        (given / "new").rename(given / "url")
        server.serve_forever()


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """A small file system."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True, capture_output=True)


def mounts(folder: Path) -> bool:
    """Whether this process may mount."""
    try:
        with disk(folder):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


FAULTS: dict[str, Callable[[Bench, str], None]] = {
    "two": Bench.two,
    "clock": Bench.clock,
    "moved": Bench.moved,
    "full": Bench.full,
    "read-only": Bench.read_only,
}


def faults(tasks: Sequence[str], kills: int, seed: int, kinds: Sequence[str] = tuple(FAULTS)) -> Bench:
    """Kill the tasks in turn, in a write and at any moment; then try the other faults on each."""
    with tempfile.TemporaryDirectory() as folder, quiet(Path(folder)):
        bench = Bench(Path(folder), seed)
        try:
            if "reproduce" in tasks:
                data.load_benchmark("digits")  # once, before processes part
            may_mount = mounts(Path(folder) / "disk")
            for i in range(kills):
                bench.kill(tasks[i % len(tasks)], timed=i // len(tasks) % 2 == 1)
            for kind, task in itertools.product(kinds, tasks):
                if kind in ("full", "read-only") and not may_mount:
                    bench.notes.append(f"{kind}: skipped, mounting is not allowed")
                else:
                    FAULTS[kind](bench, task)
        finally:
            bench.close()
    return bench


@contextlib.contextmanager
def quiet(folder: Path) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ("SPCP_CACHE", "NO_PROXY", "no_proxy")}
    os.environ |= {"SPCP_CACHE": str(folder / "cache"), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    logging.disable(logging.ERROR)
    progress.quiet = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        progress.quiet = False
        logging.disable(logging.NOTSET)
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def table(bench: Bench) -> str:
    """How many trials went wrong, of how many: a row for each fault, a column for each task."""
    tasks = list(dict.fromkeys(task for task, _ in bench.rows))
    lines = [f"{'wrong / trials':<22}" + "".join(f"{task:>10}" for task in tasks)]
    for fault in dict.fromkeys(fault for _, fault in bench.rows):
        rows = [bench.rows.get((task, fault), [0, 0]) for task in tasks]
        lines.append(f"{fault:<22}" + "".join(f"{f'{wrong} / {times}':>10}" for times, wrong in rows))
    times, wrong = (sum(row[i] for row in bench.rows.values()) for i in (0, 1))
    return "\n".join([*lines, f"{'all':<22}{f'{wrong} / {times}':>10}", *dict.fromkeys(bench.notes)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(TASKS), help="tasks, separated by commas")
    parser.add_argument("--faults", default=",".join(FAULTS), help="besides kills, separated by commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    bench = faults(options.only.split(","), options.kills, options.seed, [f for f in options.faults.split(",") if f])
    print(f"{machine()}, seed {options.seed}, {time.monotonic() - started:.0f} s\n{table(bench)}")
    finish(bench.problems, options.check)


if __name__ == "__main__":
    main()
