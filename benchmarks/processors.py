"""Whether `spcp demo` tells the same on processors with and without AVX-512.

    python benchmarks/processors.py [--seeds 3] [--epochs 20] [--check]

Runs the demo three times at once: as it is, which limits torch, oneDNN, MKL and the kernels to AVX2; with these limits
and one more for MKL set outside; and free to use all that the processor has. The first two are compared, and the first
with the last; on a processor without AVX-512 all three compute alike.
Aim of the first two: the same sentences but for their numbers, and every AUROC and accuracy, as means over seeds,
within half a point. The last has none: rounding in another order trains other networks, as another seed does, and how
much that changes is why the demo limits itself.
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

from spcp.cli.demo import PORTABLE
from spcp.compiled import INSTRUCTION_SETS

LIMITED = {**PORTABLE, "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
FREE = {"ONEDNN_MAX_CPU_ISA": "ALL", "MKL_CBWR": "AUTO"}  # a variable that is set is left alone by the demo
AIM = 0.005


def arms() -> dict[str, dict[str, str]]:
    """The variables of each run; torch uses what it is told to, so AVX-512 only where the processor has it."""
    usable = {key: value for key, value in os.environ.items() if key not in LIMITED}
    look = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"
    done = subprocess.run([sys.executable, "-c", look], env=usable, stdout=subprocess.PIPE, text=True, check=True)
    own = done.stdout.strip()
    known = {"ATEN_CPU_CAPABILITY": own} if own in INSTRUCTION_SETS else {}
    return {"as it is": {}, "limited to AVX2": LIMITED, f"free ({own})": {**known, **FREE}}


def start(folder: Path, options: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spcp.cli", "demo", "--quiet", "--out", str(folder), *options]
    others = {name: value for name, value in os.environ.items() if name not in LIMITED}
    return subprocess.Popen(command, env={**others, "OMP_NUM_THREADS": "1", **variables}, stdout=subprocess.DEVNULL)


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


def compare(names: tuple[str, str], folders: tuple[Path, Path]) -> list[str]:
    """Print how two runs differ, and return the aims that they miss."""
    one, other = map(figures, folders)
    largest = max(abs(one[key] - other[key]) for key in one)
    alike = sentences(folders[0]) == sentences(folders[1]) != []
    pair = " and ".join(names)
    print(f"{pair}: {len(one)} figures, largest difference {largest * 100:.3f} points; same sentences: {alike}")
    missed = [f"{pair}: largest difference {largest * 100:.2f} points, aim {AIM * 100}"] if largest > AIM else []
    return missed + ([] if alike else [f"{pair}: the reports say different things"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--seeds", default="3")
    parser.add_argument("--epochs", default="20")
    arguments = parser.parse_args()
    print(machine())
    chosen = arms()
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: Path(temporary, str(number)) for number, name in enumerate(chosen)}
        options = ["--seeds", arguments.seeds, "--epochs", arguments.epochs]
        processes = [start(folders[name], options, variables) for name, variables in chosen.items()]
        if any([process.wait() for process in processes]):  # noqa: C419 (wait for all)
            sys.exit("the demo failed")
        first, *others = chosen
        missed, _ = (compare((first, name), (folders[first], folders[name])) for name in others)
    finish(missed, arguments.check)


if __name__ == "__main__":
    main()
