"""`spcp detect` over many inputs: how fast beside decoding alone, and does memory stay flat?

    python benchmarks/detecting.py [--check] [--files 512] [--seconds 30] [--inputs 1000000]

1. JPEG files (500 x 375, patches of photographs) in a folder, in a tar file and in a parquet file are decoded by two
   workers alone, are decided about, with rows in a CSV file, and the network alone runs on batches that are ready, on
   one core. They take turns, each with workers of its own. On two cores a network and decoding share the time, so that
   the rate cannot exceed the bound 1 / (1 / decoding + 1 / (2 network)). Aims: at least 90 % of the bound; and of
   decoding alone, where the network is light. The ratio of processor time, of all processes, is what decoding has of
   the whole if nobody else uses the machine.
2. Names from a list, a tenth of them and all, become rows of a CSV file; every tenth is an image of 8 x 8 pixels, and
   the others are not there. Aim: all take at most 32 MB more than a tenth. Then the command goes on with a finished
   file.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
from loading import write_photographs
from memory import peak
from PIL import Image
from timing import finish, interleaved, machine, ratio

from spcp import Detector, data, networks
from spcp.data.decoding import Decoder, Key, stream
from spcp.data.listing import Listing, Sample, Samples
from spcp.detection import BATCH, FIELDS, detect_windows, resumed, windows
from spcp.journal import Journal

AIM, SLACK, WORKERS = 0.9, 32.0, 2


def made(width: int) -> tuple[Detector, data.Inputs]:
    """A CNN at 32 pixels, with random weights: what it decides does not matter here."""
    inputs = data.Inputs(tuple("abcdefghij"), (3, 32, 32), data.ImageTransform(32, 32, (0.5,) * 3, (0.5,) * 3))
    network = networks.cnn(10, channels=3, width=width)
    return Detector(network, "energy").calibrate(torch.randn(200, 3, 32, 32)), inputs


def decode(inputs: data.Inputs, arguments: list[str]) -> None:
    """Decode alone, by the same workers."""

    def keys() -> Iterator[list[Key]]:
        for window in windows(Listing(arguments, inputs)):
            yield [(sample.loaded(),) for sample in window]

    for _ in stream(Decoder(Samples("image"), inputs.transform), keys(), WORKERS, torch.device("cpu")):
        pass


def write(detector: Detector, inputs: data.Inputs, samples: Iterator[Sample] | Listing, out: Path) -> None:
    """Decide, and write rows, or go on with what is there."""
    with Journal(out, FIELDS, {}) as journal:
        _, left = resumed(journal, windows(samples, BATCH))
        for results in detect_windows(detector, inputs, left, workers=WORKERS):
            journal.append(result.as_record() for result in results)
        journal.finish()


def timed(function: Callable[[], None], spent: list[float]) -> Callable[[], None]:
    """Note the processor time of a call, workers included."""

    def call() -> None:
        before = _processor_time()
        function()
        spent.append(_processor_time() - before)

    return call


def _processor_time() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def rates(folder: Path, files: int, seconds: float, missed: list[str]) -> None:
    (folder / "photographs").mkdir()
    write_photographs(folder / "photographs", files)
    paths = sorted((folder / "photographs").rglob("*.jpg"))
    with tarfile.open(folder / "photographs.tar", "w") as tar:
        for path in paths:
            tar.add(path, path.name)
    table = pyarrow.table({"image": [path.read_bytes() for path in paths]})
    pyarrow.parquet.write_table(table, folder / "photographs.parquet", row_group_size=100)
    print(f"\n{files} JPEG files: images per second (median)")
    head = ("decoding", "network", "detecting", "of decoding", "of bound", "processor", "turns")
    print(f"{'network':<16}{'input':<21}" + "".join(f"{name:>12}" for name in head))
    for width, light in ((4, True), (16, False)):
        detector, inputs = made(width)
        for source in ("photographs", "photographs.tar", "photographs.parquet"):
            row = compared(detector, inputs, folder, folder / source, files, seconds)
            shown = (f"{value:>12.{0 if value > 3 else 2}f}" for value in row)
            print(f"{f'CNN, width {width}':<16}{source:<21}" + "".join(shown), flush=True)
            for share, what in ((row[3], "decoding alone"), (row[4], "the bound")):
                if share < AIM and (light or what == "the bound"):
                    missed.append(f"{source}, width {width}: {share:.2f} of the rate of {what}, less than {AIM}")


def compared(
    detector: Detector, inputs: data.Inputs, folder: Path, source: Path, files: int, seconds: float
) -> tuple[float, ...]:
    """Decode, run the network and detect in turn; return rates and shares as the table has them."""
    out = folder / "out.csv"
    batch = torch.randn(BATCH, *inputs.shape)

    def detect() -> None:
        for left in folder.glob("*out.csv*"):
            left.unlink()
        write(detector, inputs, Listing([str(source)], inputs), out)

    def network() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for _ in range(files // BATCH):
            detector.detect(batch)
        torch.set_num_threads(threads)

    spent: tuple[list[float], list[float]] = ([], [])
    decoding = timed(lambda: decode(inputs, [str(source)]), spent[0])
    times = interleaved([decoding, network, timed(detect, spent[1])], seconds)
    with open(out) as file:
        assert sum(1 for _ in file) - 1 == files
    alone, ready, whole = (files / statistics.median(own) for own in times)
    bound = 1 / (1 / alone + 1 / (WORKERS * ready))
    return alone, ready, whole, whole / alone, whole / bound, ratio(spent[0][1:], spent[1][1:]), len(times[0])


def memory(folder: Path, count: int, missed: list[str]) -> None:
    detector, inputs = made(4)
    Image.new("RGB", (8, 8)).save(folder / "x.png")
    for i in range(100):
        os.link(folder / "x.png", folder / f"{10 * i}.png")

    def lines(count: int) -> Iterator[str]:
        return (f"{folder}/{i % 1000 if i % 10 == 0 else i}.png\n" for i in range(count))

    print(f"\nrows of {count} names: memory on top of what there was, seconds, rows per second")
    used = []
    for rows in (count // 10, count):
        out = folder / f"{rows}.csv"
        start = time.perf_counter()
        used.append(peak(lambda: write(detector, inputs, Listing(["-"], inputs, lines=lines(rows)), out)))  # noqa: B023
        seconds = time.perf_counter() - start
        print(f"{rows:>10}{used[-1]:>8.0f} MB{seconds:>8.1f} s{rows / seconds:>10.0f}/s", flush=True)
    start = time.perf_counter()
    again = peak(lambda: write(detector, inputs, Listing(["-"], inputs, lines=lines(count)), out))
    seconds = time.perf_counter() - start
    print(f"{'again':>10}{again:>8.0f} MB{seconds:>8.1f} s{count / seconds:>10.0f}/s", flush=True)
    if used[1] > used[0] + SLACK:
        missed.append(f"{used[1]:.0f} MB for all rows, {used[0]:.0f} MB for a tenth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--files", type=int, default=512, help="0 leaves the comparisons out")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each of the comparisons")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="0 leaves memory out")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    missed: list[str] = []
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        if arguments.files:
            rates(Path(folder), arguments.files, arguments.seconds, missed)
        if arguments.inputs:
            memory(Path(folder), arguments.inputs, missed)
    finish(missed, arguments.check)


if __name__ == "__main__":
    main()
