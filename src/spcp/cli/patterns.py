"""`spcp patterns`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .app import command
from .options import Json, Model, Runs, open_runs, option
from .output import note, show


@command("patterns", panel="Report")
def patterns_command(
    runs: Runs,
    out: Annotated[Path, option("Folder for the figure.", "--out", "-o")] = Path("patterns"),
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Measure how few weights carry the predictions: sparsity, and the sorted contribution matrices as a figure.

    [dim]spcp patterns runs/digits-plain-0 runs/digits-spcp-0[/dim]
    """
    from ..report import patterns

    rows, files = patterns(open_runs(runs, model), out)
    show(rows, as_json)
    note(f"written: {', '.join(map(str, files))}")
