"""A feature bank that is larger than memory should be: what each score costs there, and how much memory it takes.

    python benchmarks/large_bank.py [--check] [--rows 1281167] [--size 2048] [--classes 1000] [--dtype float32]
                                    [--fit-rows N] [--folder DIR] [--out docs/scale/bank.md]

By default ImageNet's training set as ResNet-50 sees it, but of synthetic features and logits: 10.5 GB of features in
float32, and 5.1 GB of logits. They are written as the shards of a bank into a folder of their own, which is removed at
the end. Scores of training data are fitted on all rows, or on the first `--fit-rows` but for those that keep the rows
(knn, nnguide, relation); scores of held-out data on as many as ImageNet's validation set has, or fewer. Then they score
as many rows as the table says. One thread; seconds are those of the processor, so that other work does not count.
Memory is the peak of the process, the interpreter and torch (0.3 GiB) included: anonymous memory, and all that is
resident, which counts the pages of mapped files. Aim: less than 4 GiB resident.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from memory import LIBC
from timing import finish, machine
from torch import nn

from spcp.bank import SHARD, FeatureBank, Part, Shards
from spcp.files import write_tensors, written
from spcp.progress import track
from spcp.scores import SCORES, Score, build_score
from spcp.tables import to_markdown

AIM = 4.0  # GiB
Cost = tuple[float, float, float]  # seconds, and anonymous and resident memory
HELD_OUT = {"two-views": 1, "consensus": 1}  # shards of validation data; others: 6, 49 152 rows
QUERIES = {"knn": 256, "relation": 256, "itp": 256, "two-views": 256, "nnguide": SHARD, "consensus": SHARD}
SCORED = 2  # shards
KEEPING = ("knn", "nnguide", "relation")  # rows
LAST = ("vim", "knn", "vra-p", "relation")  # which take longest
NAMES = [name for name in SCORES if name not in ("odin", "mos", *LAST) and not name.startswith("consensus-")]


def write_bank(folder: Path, rows: int, size: int, classes: int, dtype: torch.dtype) -> list[Path]:
    """Write features of classes with means of their own, none below 0, and logits with a peak at the class."""
    centres = torch.randn(classes, size, generator=torch.Generator().manual_seed(0)) / 2
    paths = []
    for i in track(range(-(-rows // SHARD)), "writing", -(-rows // SHARD)):
        n, rng = min(SHARD, rows - i * SHARD), torch.Generator().manual_seed(i + 1)
        y = torch.randint(classes, (n,), generator=rng)
        h = torch.randn(n, size, generator=rng).add_(centres[y]).relu_()
        z = torch.randn(n, classes, generator=rng)
        z[torch.arange(n), y] += 4
        paths.append(folder / f"{i:05}.safetensors")
        write_tensors(paths[-1], Part(h.to(dtype), z.to(dtype), y, z.argmax(1))._asdict())
    return paths


def measured(function: Callable[[], object]) -> Cost:
    """Seconds of a call, and the peaks of anonymous and of resident memory meanwhile, in GiB."""
    gc.collect()
    LIBC.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    anonymous, done = [_status("RssAnon")], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            anonymous.append(_status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    try:
        function()
    finally:
        seconds = time.process_time() - start
        done.set()
        watcher.join()
    return seconds, max(anonymous) / 2**20, _status("VmHWM") / 2**20


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when the aim is missed")
    parser.add_argument("--rows", type=int, default=1_281_167)
    parser.add_argument("--fit-rows", type=int, help="for fits that take long; default: all")
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="where there is room for 32 GB")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "scale" / "bank.md")
    parser.add_argument("--scores", default=",".join((*NAMES, *LAST)))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="spcp-bank-") as folder:
        os.environ["SPCP_CACHE"] = folder  # what neighbour scores keep lies there, too
        measure(Path(folder), arguments)


@torch.no_grad()
def measure(folder: Path, arguments: argparse.Namespace) -> None:
    rows, size, classes = arguments.rows, arguments.size, arguments.classes
    torch.manual_seed(0)
    head = nn.Linear(size, classes)
    paths = write_bank(folder, rows, size, classes, getattr(torch, arguments.dtype))
    whole = FeatureBank(Shards(paths))
    fewer = FeatureBank(Shards(paths[: -(-(arguments.fit_rows or rows) // SHARD)]))
    stored = sum(path.stat().st_size for path in paths) / 1e9
    lines: list[list[str]] = []
    missed: list[str] = []

    def add(name: str, fit_rows: str, fitting: Cost, score_rows: int = 0, scoring: Cost = (0.0, 0.0, 0.0)) -> None:
        anonymous, resident = (max(fitting[i], scoring[i]) for i in (1, 2))
        seconds = f"{fitting[0]:.1f}" if fit_rows else ""
        speed = f"{score_rows / scoring[0]:,.0f}" if score_rows else ""
        scored = f"{score_rows:,}" if score_rows else ""
        lines.append([name, fit_rows, seconds, scored, speed, f"{anonymous:.2f}", f"{resident:.2f}"])
        print("  ".join(f"{text:>12}" for text in lines[-1]), flush=True)
        if resident >= AIM:
            missed.append(f"{name}: {resident:.2f} GiB resident")

    note = (
        f"{machine()}; one thread, seconds of the processor. {rows:,} rows of {size} features and {classes} logits in "
        f"{arguments.dtype}: {stored:.1f} GB on disk. `moments` are computed once for `dice`, `fdbd`, `itp`, `mds`, "
        "`nci`, `rmds`, `she`, `vim` and `consensus`, whose seconds come on top. Written by "
        "`benchmarks/large_bank.py`.\n"
    )
    print(f"{machine()}\n{rows} rows of {size} features and {classes} logits, {arguments.dtype}, {stored:.1f} GB")
    add("moments", f"{len(fewer):,}", measured(fewer.moments))
    for name in arguments.scores.split(","):
        score = build_score(name)
        held_out = FeatureBank(Shards(paths[: HELD_OUT.get(name, 6)]))
        bank = whole if name in KEEPING else fewer
        fitting = measured(functools.partial(fit, score, bank, held_out, head))
        fit_rows = " and ".join(f"{len(held_out if role == 'val' else bank):,}" for role in score.fitted_on)
        queries = FeatureBank(Shards(paths[-SCORED - 1 : -1] or paths))
        if name in QUERIES:
            queries = queries.take(torch.arange(QUERIES[name]))
        scoring = measured(functools.partial(score.scores, queries, head))
        add(name, fit_rows, fitting, len(queries), scoring)
        del score  # and what it keeps
        write_table(arguments.out, lines, note)
    finish(missed, arguments.check)


def fit(score: Score, train: FeatureBank, held_out: FeatureBank, head: nn.Linear) -> None:
    """Fit a score on the data that it needs."""
    if "train" in score.fitted_on:
        score.fit(train, head)
    if "val" in score.fitted_on:
        score.fit_held_out(held_out, head)


def write_table(path: Path, lines: list[list[str]], note: str) -> None:
    """Write what was measured so far."""
    title = ["score", "rows to fit", "seconds to fit", "rows scored", "rows a second", "anonymous GiB", "resident GiB"]
    with written(path) as file:
        file.write(f"{to_markdown(title, lines)}\n{note}".encode())


if __name__ == "__main__":
    main()
