"""`spcp demo`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from .app import command
from .options import option
from .output import note, result

# Sums in another order differ in their last digits, and training turns those into points of AUROC. With the vector
# instructions of every recent x86-64 processor, and no more, the demo shows the same figures on all of them.
PORTABLE = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2,STRICT"}


def limit_instructions() -> None:
    """Let torch use AVX2 at most, where the processor has it; torch reads this when it is imported."""
    flags = Path("/proc/cpuinfo")
    if "torch" not in sys.modules and flags.exists() and " avx2 " in flags.read_text():
        for name, value in PORTABLE.items():
            os.environ.setdefault(name, value)


@command("demo", panel="Report")
def demo_command(
    out: Annotated[Path, option("Folder for runs and the report.", "--out", "-o")] = Path("demo"),
    seeds: Annotated[int, Option(help="Networks of each kind.", min=1)] = 3,
    epochs: Annotated[int | None, option("Fewer for a quick look.")] = None,
) -> None:
    """Compare plain training with SPCP on embedded real data: train, evaluate, calibrate, detect, and write a report.

    Takes about two minutes; the same command continues after Ctrl-C.
    """
    limit_instructions()
    from ..demo import demo

    result(demo(out, seeds=seeds, epochs=epochs, log=note))
