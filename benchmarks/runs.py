"""What several runs at a time gain, and what Ray costs.

    python benchmarks/runs.py [--check] [--write] [--rounds 1] [--budget small]

Four runs of 60 epochs on the embedded digits, each with one thread: `spcp reproduce training-length --budget small`
with one row and four seeds; trained and scored anew each time. Engines take turns. Counted are

- whole commands, from the shell to the end: imports, data, the start of processes or of a Ray cluster, the report;
- the runs alone, in a process that has imported everything and read the data, with processes that run already and a
  Ray cluster that it is connected to.

Aims: the command with `--jobs 2` is at least 1.7 times as fast as with `--jobs 1`, on two cores at least; on a cluster
that is there, runs take at most 1.15 times as long as in local processes. The weights of all are compared, to the bit.

Prints the table of docs/scale/runs.md; --write writes it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from timing import finish, machine, ratio

from spcp import Engine
from spcp.engines.cluster import connect
from spcp.experiments import BUDGETS, Lab, Row
from spcp.files import read_tensors
from spcp.tables import to_markdown

PAGE = Path(__file__).parents[1] / "docs" / "scale" / "runs.md"
SEEDS = 4
COMMANDS = {
    "`--jobs 1`": ["--jobs", "1"],
    "`--jobs 2`": ["--jobs", "2"],
    "`--engine ray --jobs 2`, which starts a cluster": ["--engine", "ray", "--jobs", "2"],
}
ALONE = {
    "`--jobs 1`": Engine(),
    "`--jobs 2`": Engine(jobs=2),
    "`--engine ray --jobs 2`, on a cluster that is there": Engine("ray", jobs=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--write", action="store_true", help="write docs/scale/runs.md")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--budget", default="small", choices=("small", "smoke"), help="smoke: to see that this works")
    options = parser.parse_args()
    epochs = max(BUDGETS[options.budget].lengths)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        commands = {name: command(own, options.budget, epochs) for name, own in COMMANDS.items()}
        whole = timed(commands, folder, options.rounds)
        with connect(cores=2):
            lab = Lab(BUDGETS[options.budget], folder / "warm-up", seeds=SEEDS)
            lab.benchmark("digits")
            for engine in ALONE.values():  # so that processes are there, and have imported what they need
                alone(lab, engine, 1)(folder / "warm-up" / engine.kind / str(engine.jobs))
            runs = {name: alone(lab, engine, epochs) for name, engine in ALONE.items()}
            times = timed(runs, folder, options.rounds)
        compare([path.parent for path in folder.rglob("last.safetensors") if "warm-up" not in path.parts])
    text = page(whole, times, epochs)
    print(text)
    if options.write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text)
    gain = ratio(whole["`--jobs 1`"], whole["`--jobs 2`"])
    cost = ratio(list(times.values())[2], times["`--jobs 2`"])
    missed = [f"--jobs 2: {gain:.2f} times as fast as --jobs 1, aim 1.7"] if gain < 1.7 else []
    missed += [f"Ray: {cost:.2f} times as long as local processes, aim 1.15"] if cost > 1.15 else []
    finish(missed, options.check)


def timed(calls: dict[str, Callable[[Path], object]], folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each call of each, in turn, each into a folder of its own."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call(Path(tempfile.mkdtemp(dir=folder)))
            times[name].append(time.perf_counter() - start)
    return times


def command(options: list[str], budget: str, epochs: int) -> Callable[[Path], object]:
    """Return a call of the command."""
    row = ["--only", f"Vanilla for {epochs} epochs", "--seeds", str(SEEDS)]
    arguments = [sys.executable, "-m", "spcp.cli", "reproduce", "training-length", "--budget", budget, *row, *options]
    return lambda folder: subprocess.run(
        [*arguments, "--quiet", "--out", str(folder)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def alone(lab: Lab, engine: Engine, epochs: int) -> Callable[[Path], object]:
    """Return a call that trains and scores the same runs in this process."""
    row = Row("Vanilla", settings={"epochs": epochs}, benchmark="digits")

    def call(folder: Path) -> None:
        lab.folder, lab.engine = folder, dataclasses.replace(engine)
        lab.prepare([("measured", row, seed, ("energy",)) for seed in range(SEEDS)])

    return call


def compare(runs: list[Path]) -> None:
    """Stop if runs of the same seed have other weights."""
    for seed in range(SEEDS):
        first, *others = (read_tensors(run / "last.safetensors")[0] for run in runs if run.name == f"seed-{seed}")
        assert others
        assert all(torch.equal(value, other[name]) for other in others for name, value in first.items()), seed


def page(whole: dict[str, list[float]], alone: dict[str, list[float]], epochs: int) -> str:
    """Write the table."""
    lines = []
    for what, times in (("the whole command", whole), ("the runs alone", alone)):
        slowest = next(iter(times.values()))
        for name, own in times.items():
            lines.append([f"{what}, {name}", f"{statistics.median(own):.1f}", f"{ratio(slowest, own):.2f}"])
    rounds = len(next(iter(whole.values())))
    measured = f"the median of {rounds} rounds" if rounds > 1 else "one round"
    return (
        f"Four runs of {epochs} epochs on the embedded digits, trained and scored; {measured} of\n`benchmarks/runs.py` "
        f"on {os.cpu_count()} cores, {machine()}.\nAll weights are the same to the bit.\n\n"
        + to_markdown(["counted", "seconds", "times as fast"], lines)
    )


if __name__ == "__main__":
    main()
