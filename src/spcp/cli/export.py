"""`spcp export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument

from .app import command
from .options import LATEST, BadFiles, Json, Model, latest_run, open_runs, option
from .output import note, percent, show


@command("export", panel="Ship")
def export_command(
    run: Annotated[
        Path | None, Argument(help=f"Folder of a calibrated run; default: {LATEST}.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, option("The file: .onnx, or .pt2 for torch.export; default: RUN/detector.onnx.", "--out", "-o")
    ] = None,
    preprocessing: Annotated[
        bool, option("Let the file prepare images itself, from bytes.", "--preprocessing")
    ] = False,
    bank: Annotated[int | None, option("Keep so many training samples, for scores that compare with them.")] = None,
    int8: Annotated[
        Literal["dynamic", "static"] | None, option("Compute the network in int8; static is for convolutions.")
    ] = None,
    model: Model = None,
    bad: BadFiles = "raise",
    as_json: Json = False,
) -> None:
    """Write the detector of a run as one file that runs without spcp, and check it on validation data.

    From a batch it makes prediction, logits, score, p_value and is_ood. A file with --int8, --bank or --preprocessing
    is calibrated again, so that alpha holds for what is shipped, and the share that it flags of each test set is shown.

    [dim]spcp export runs/digits-spcp-0 --out detector.onnx --preprocessing[/dim]
    """
    from ..exported import ExportedDetector
    from ..shipping import export_run, flagged_by_file

    (opened,) = open_runs([latest_run(run, "detector.safetensors")], model)
    benchmark = opened.benchmark(bad="skip") if bad == "skip" else opened.benchmark()  # as the run has it
    path = export_run(opened, out, preprocessing=preprocessing, bank=bank, int8=int8, benchmark=benchmark)
    if path.suffix == ".onnx" and (int8 or bank or preprocessing):
        rows = flagged_by_file(ExportedDetector.open(path), benchmark)
        show(rows, as_json, "flagged as OOD by the file", percent("flagged", "accuracy"))
    note(f"written: {path}, {path.stat().st_size / 1e6:.1f} MB")
