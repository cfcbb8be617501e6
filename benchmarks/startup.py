"""How long one waits before anything happens: `import spcp` beside `import torch`, and `spcp --help`.

    python benchmarks/startup.py [--check]

Each is a process of its own; they take turns. Aims: importing the package takes at most 1.1 times as long as importing
torch; `spcp --help` at most half a second. The package imports what it exports when that is first used, torch included;
so what all of it takes is shown too.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable

from timing import finish, interleaved, machine, ratio

EVERYTHING = "import spcp; [getattr(spcp, name) for name in spcp.__all__]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    commands = {
        "import torch": ["-c", "import torch"],
        "import spcp": ["-c", "import spcp"],
        "import spcp, and all it exports": ["-c", EVERYTHING],
        "spcp --help": ["-m", "spcp.cli", "--help"],
    }
    print(machine())
    times = interleaved([process(own) for own in commands.values()], options.seconds)
    for name, own in zip(commands, times, strict=True):
        print(f"{name:<34}{statistics.median(own):>8.2f} s{ratio(own, times[0]):>8.2f}x torch  ({len(own)} times)")
    missed = []
    if ratio(times[1], times[0]) > 1.1:
        missed.append(f"import spcp: {ratio(times[1], times[0]):.2f}x of torch, aim 1.1x")
    if statistics.median(times[3]) > 0.5:
        missed.append(f"spcp --help: {statistics.median(times[3]):.2f} s, aim 0.5 s")
    finish(missed, options.check)


def process(arguments: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
