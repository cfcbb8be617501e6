"""`spcp detect` by Ray beside one process with two workers: the same file decides about the same photographs.

    python benchmarks/fleet.py [--check] [--files 2048] [--turns 3] [--out docs/scale/inputs-table.md]

Each engine writes a CSV file, in turn; the files must be equal to the byte. The start is the time until the first row,
without that of the cluster, which is told apart; the rate is that of the rows after it. A cluster on this machine has
no more cores than one process with two workers, so that the ratio of the rates is what Ray costs. Aim: at least 70 %.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from detecting import WORKERS, made
from loading import write_photographs
from timing import finish, machine

from spcp.data import Inputs
from spcp.data.listing import Listing, Sample
from spcp.detection import BATCH, FIELDS, FileDetection, detect_windows, windows
from spcp.engines import connect
from spcp.engines.inputs import detect_on_cluster
from spcp.exported import ExportedDetector
from spcp.journal import Journal

AIM = 0.7

Found = Iterator[list[FileDetection]]
Engine = Callable[[Listing, Iterable[list[Sample]]], Found]


def timed(engine: Engine, source: Path, inputs: Inputs, out: Path) -> tuple[float, float]:
    """Write the rows of a folder; return the seconds until the first, and the rate of those after it."""
    fields = {key: kind for key, kind in FIELDS.items() if key != "members"}
    listing = Listing([str(source)], inputs)
    start, first, rows, early = time.perf_counter(), 0.0, 0, 0
    with Journal(out, fields, {}, restart=True) as journal:
        for results in engine(listing, windows(listing)):
            journal.append([result.as_record() for result in results])
            rows += len(results)
            if not first:
                first, early = time.perf_counter(), rows
    return first - start, (rows - early) / (time.perf_counter() - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when the aim is missed")
    parser.add_argument("--files", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table, as Markdown")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photographs").mkdir()
        write_photographs(folder / "photographs", arguments.files)
        detector, inputs = made(16)
        path = detector.export(folder / "detector.onnx", torch.randn(8, *inputs.shape), inputs=inputs)
        exported = ExportedDetector.open(path, threads=1)
        start = time.perf_counter()
        with connect(cores=WORKERS) as ray:
            joined = time.perf_counter() - start
            engines: dict[str, Engine] = {
                "local": lambda _, listed: detect_windows(exported, inputs, listed, workers=WORKERS),
                "ray": lambda listing, listed: detect_on_cluster(ray, path, listing, listed, batch_size=BATCH),
            }
            measured: dict[str, list[tuple[float, float]]] = {engine: [] for engine in engines}
            for _ in range(arguments.turns):
                for engine, run in engines.items():
                    measured[engine].append(timed(run, folder / "photographs", inputs, folder / f"{engine}.csv"))
                assert (folder / "local.csv").read_bytes() == (folder / "ray.csv").read_bytes()
    table = ["| engine | seconds until the first row | inputs per second after it |", "|---|---|---|"]
    for engine, times in measured.items():
        first, rate = (statistics.median(column) for column in zip(*times, strict=True))
        table.append(f"| `--engine {engine}` | {first:.1f} | {rate:.0f} |")
    share = statistics.median(far[1] / near[1] for far, near in zip(measured["ray"], measured["local"], strict=True))
    text = "\n".join(table) + (
        f"\n\nRay's rate is {share:.2f} of the local one; its cluster took {joined:.1f} s to start. "
        f"{arguments.files} JPEG files of 500 x 375 pixels, a CNN of width 16 at 32 pixels, two workers each, medians "
        f"of {arguments.turns} turns, equal files of results; {machine()}; `benchmarks/fleet.py`.\n"
    )
    print(f"\n{text}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)
    finish([f"{share:.2f} of the local rate, less than {AIM}"] if share < AIM else [], arguments.check)


if __name__ == "__main__":
    main()
