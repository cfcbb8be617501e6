"""Whether `spcp demo` tells the same on processors with and without AVX-512.

    python benchmarks/processors.py [--seeds 3] [--epochs 20] [--check]

Runs the demo twice at once: with the processor as it is, and with torch, oneDNN, MKL and the kernels limited to AVX2.
Aim: the same sentences but for their numbers, and every AUROC and accuracy, as means over seeds, within half a point.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from timing import finish, machine

LIMITS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
AIM = 0.005


def start(folder: Path, options: list[str], limits: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spcp.cli", "demo", "--quiet", "--out", str(folder), *options]
    free = {name: value for name, value in os.environ.items() if name not in LIMITS}
    return subprocess.Popen(command, env={**free, "OMP_NUM_THREADS": "1", **limits}, stdout=subprocess.DEVNULL)


def figures(folder: Path) -> dict[tuple[str, ...], float]:
    """Mean over seeds of every AUROC and accuracy of the report."""
    values = defaultdict(list)
    with open(folder / "report" / "results.csv") as file:
        for row in csv.DictReader(file):
            for measure in ("auroc", "accuracy"):
                key = (row["arm"], row["score"], row["group"], row["dataset"], measure)
                values[key].append(float(row[measure]))
    return {key: sum(numbers) / len(numbers) for key, numbers in values.items()}


def sentences(folder: Path) -> list[str]:
    """The report's verdict, without its numbers."""
    text = (folder / "report" / "report.md").read_text()
    lines = text.partition("\n## Verdict\n")[2].partition("\n#")[0].splitlines()
    return [re.sub(r"[-+]?\d+(\.\d+)?", "#", line) for line in lines if line.startswith("- ")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--seeds", default="3")
    parser.add_argument("--epochs", default="20")
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary, name) for name in ("whole", "limited")]
        options = ["--seeds", arguments.seeds, "--epochs", arguments.epochs]
        processes = [start(folder, options, limits) for folder, limits in zip(folders, ({}, LIMITS), strict=True)]
        if any([process.wait() for process in processes]):  # noqa: C419 (wait for both)
            sys.exit("the demo failed")
        whole, limited = map(figures, folders)
        alike = sentences(folders[0]) == sentences(folders[1]) != []
    largest = max(abs(whole[key] - limited[key]) for key in whole)
    print(f"{len(whole)} figures, largest difference {largest * 100:.3f} points; same sentences: {alike}")
    missed = [f"largest difference {largest * 100:.2f} points, aim {AIM * 100}"] if largest > AIM else []
    finish(missed + ([] if alike else ["the reports say different things"]), arguments.check)


if __name__ == "__main__":
    main()
