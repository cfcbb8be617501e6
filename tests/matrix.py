"""Runs the suite as other machines would: fewer vector instructions, other threads, bfloat16, no C compiler.

    python tests/matrix.py [--short] [--only NAME ...]

`--short` runs the training and command-line tests only, in the settings in which a processor may change what they
compute. Prints a table, and exits 1 if a setting failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
TRAINING = (
    "tests/test_training.py",
    "tests/test_environment.py",
    "tests/cli",
)  # what the precision of training touches


@dataclass(frozen=True)
class Setting:
    """One way to run the suite."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = ()  # all
    compiler: bool = True
    short: bool = False  # whether `--short` runs it too, on TRAINING


# What a setting that does not name them must not inherit.
CHANGED = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "SPCP_TEST_PRECISION")
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
SETTINGS = (
    Setting("as it is"),
    Setting("2 threads", {"OMP_NUM_THREADS": "2"}),
    Setting("torch and kernels without vector instructions", {"ATEN_CPU_CAPABILITY": "default"}),
    Setting("all limited to AVX2", AVX2, short=True),
    Setting("torch and kernels limited to AVX2", {"ATEN_CPU_CAPABILITY": "avx2"}, TRAINING),
    Setting("oneDNN limited to AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, TRAINING),
    Setting("bf16-mixed", {"SPCP_TEST_PRECISION": "bf16-mixed"}, TRAINING, short=True),
    Setting("bf16-mixed, all limited to AVX2", {"SPCP_TEST_PRECISION": "bf16-mixed", **AVX2}, TRAINING),
    Setting("no C compiler", compiler=False),
)


def environment_of(setting: Setting) -> dict[str, str]:
    """The variables to run the tests with."""
    inherited = {name: value for name, value in os.environ.items() if name not in CHANGED}
    return {**inherited, "OMP_NUM_THREADS": "1", **setting.variables}


def run(setting: Setting, tests: tuple[str, ...]) -> tuple[bool, str]:
    """Run the tests; return whether they passed, and pytest's last line."""
    processes = "1" if setting.variables.get("OMP_NUM_THREADS", "1") != "1" else "2"
    options = ["-m", "pytest", "--numprocesses", processes, "--dist", "loadfile", "--no-loadscope-reorder", *tests]
    environment = environment_of(setting)
    if setting.compiler:
        return _outcome([sys.executable, *options], ROOT, environment)
    with tempfile.TemporaryDirectory() as folder:  # kernels are built into the source tree, so in a tree of its own
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        environment |= {"CC": "false"}
        subprocess.run(["make", ".venv/ready"], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        return _outcome([str(Path(folder, ".venv/bin/python")), *options], Path(folder), environment)


def _outcome(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[bool, str]:
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout, flush=True)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
    return done.returncode == 0, re.sub(r" in [\d.]+s.*", "", last.strip("= "))


def main() -> None:
    """Run the settings, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="training and command-line tests only")
    parser.add_argument("--only", nargs="+", choices=[setting.name for setting in SETTINGS], metavar="NAME")
    arguments = parser.parse_args()
    chosen = [
        setting
        for setting in SETTINGS
        if (setting.short or not arguments.short) and setting.name in (arguments.only or [setting.name])
    ]
    failed = []
    print("| setting | tests | result | minutes |\n|---|---|---|---|", flush=True)
    for setting in chosen:
        tests = TRAINING if arguments.short else setting.tests
        start = time.perf_counter()
        passed, words = run(setting, tests)
        minutes = (time.perf_counter() - start) / 60
        what = "training, command line" if tests else "all"
        print(f"| {setting.name} | {what} | {words} | {minutes:.1f} |", flush=True)
        failed += [] if passed else [setting.name]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
