"""`spcp demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from .app import command
from .options import option
from .output import note


@command("demo", panel="Report")
def demo_command(
    out: Annotated[Path, option("Folder for runs and the report.", "--out", "-o")] = Path("demo"),
    seeds: Annotated[int, Option(help="Networks of each kind.", min=1)] = 3,
    epochs: Annotated[int | None, option("Fewer for a quick look.")] = None,
) -> None:
    """Compare plain training with SPCP on embedded real data: train, evaluate, calibrate, detect, and write a report.

    Takes about two minutes; the same command continues after Ctrl-C.
    """
    from ..demo import demo

    print(demo(out, seeds=seeds, epochs=epochs, log=note))
