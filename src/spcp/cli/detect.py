"""`spcp detect`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument

from ..errors import InputError, check_numbers
from ..tables import Record
from .app import command, verbosity
from .options import LATEST, Json, Model, latest_run, option
from .output import RowStream, note

if TYPE_CHECKING:
    from ..data.listing import Sample

UNREADABLE = 3  # the exit code if some inputs could not be read
_COUNTING = 0.005  # seconds for each batch, in which inputs are counted for the time left


@command("detect", panel="Detect")
def detect_command(
    files: Annotated[
        list[str] | None,
        Argument(help="Files, folders, patterns, arrays, tar and parquet files; - reads a list.", show_default=False),
    ] = None,
    run: Annotated[
        Path | None,
        option(f"A calibrated run, its detector.safetensors, or an exported .onnx; default: {LATEST}.", "--run", "-r"),
    ] = None,
    out: Annotated[
        Path | None,
        option("Write rows into a .csv, .jsonl or .parquet file; the same command goes on with it.", "--out"),
    ] = None,
    restart: Annotated[bool, option("Begin --out anew, whatever is in it.", "--restart")] = False,
    form: Annotated[
        Literal["table", "csv", "jsonl", "json"] | None,
        option("How rows are printed; default: a table on a terminal, else csv.", "--format"),
    ] = None,
    summary: Annotated[Path | None, option("Write the counts into a JSON file.", "--summary")] = None,
    follow: Annotated[
        bool, option("Read names from standard input as they come, and answer each at once, in jsonl.", "--follow")
    ] = False,
    column: Annotated[str | None, option("The column of image bytes in parquet files.", "--column")] = None,
    explain: Annotated[
        bool, option("Add the p-value of each member of a consensus, and the main features.", "--explain")
    ] = False,
    batch_size: Annotated[int, option("Inputs that are decided about at once.", "--batch-size")] = 64,
    workers: Annotated[
        int | None, option("Processes that decode; default: one for each core, at most 8.", "--workers")
    ] = None,
    device: Annotated[
        str | None, option("Where the network runs: cpu, cuda, ...; default: cuda if there is one.", "--device")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        option("local: this process; ray: a Ray cluster, by the exported file of the detector.", "--engine"),
    ] = "local",
    address: Annotated[
        str | None, option("A Ray cluster, host:port or auto; default: one that is started here.", "--address")
    ] = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Classify each input, and tell whether it is OOD.

    The p-value is the share of ID samples that score at most as high as the input: a small one speaks for OOD. Rows
    come in the order of the inputs, as they are made. An input that cannot be read has a row with the problem, and the
    exit code is 3. With --out, the same command goes on after Ctrl-C or a kill; in the end each input has one row.

    [dim]spcp detect photo.jpg holiday/ 'scans/**/*.png'
    spcp detect 'shards/*.tar' --out results.parquet --summary summary.json
    find . -name '*.png' | spcp detect - --format jsonl | jq 'select(.is_ood)'[/dim]
    """
    from ..calibration import load_detector
    from ..data.listing import Listing, check_there
    from ..detection import EXPLAINED, FIELDS, Counts, check_some, detect_windows, resumed, windows
    from ..engines import connect
    from ..engines.inputs import Lines, detect_on_cluster, memory_of
    from ..journal import Journal
    from ..progress import progress_bar

    check_numbers({"--batch-size": batch_size}, {"--batch-size": (int, 1, 1 << 16)})
    check_numbers({"--workers": workers or 0}, {"--workers": (int, 0, 1024)})
    if follow and (files or out):
        raise InputError("--follow: takes names from standard input, and prints; leave out files and --out")
    if follow and engine == "ray":
        raise InputError("--follow: answers one by one, in this process; leave out --engine ray")
    if address and engine != "ray":
        raise InputError(f"--address {address}: is that of a Ray cluster; add --engine ray")
    if out and (form or as_json):
        raise InputError(f"--out {out}: its ending says how it is written; leave out --format and --json")
    check_there(files or [])  # before a detector is loaded
    path = latest_run(run, "detector.safetensors", model)
    if engine == "ray":
        path = _file_of(path, model)
    detector, inputs = _exported(path) if path.suffix == ".onnx" else load_detector(path, network=model)
    _move(detector, device)
    fields = {key: kind for key, kind in FIELDS.items() if explain or key not in EXPLAINED}
    counts, before = Counts(), 0
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        ray = None
        if engine == "ray":
            ray = stack.enter_context(connect(address, memory=memory_of(path), verbose=verbosity.verbose))
        lines = Lines(ray, sys.stdin) if ray and "-" in (files or []) else None
        listing = Listing([] if follow else files or [], inputs, column=column, lines=lines)
        listed = _followed(inputs, column, batch_size) if follow else windows(check_some(listing), batch_size)
        shown = form or ("json" if as_json else "jsonl" if follow else None)
        journal: Any = None
        if out:
            same = {"detector": _digest(path), "--explain": explain, "--column": column}
            journal = stack.enter_context(Journal(out, fields, same, restart=restart))
            counts, listed = resumed(journal, listed)
            before = counts.inputs
            if before:
                note(f"{out}: has {before} rows already; going on from there")
        bar = stack.enter_context(progress_bar("detecting", None, counted=True, show=not follow))
        rows = stack.enter_context(RowStream(shown, list(fields), for_people=_for_people, before=bar.hide))
        write = journal.append if out else rows.write
        bar.count(before, listing.count())
        if ray:
            found = detect_on_cluster(ray, path, listing, listed, batch_size=batch_size, done=before, workers=workers)
        else:
            found = detect_windows(detector, inputs, listed, explain=explain, workers=0 if follow else workers)
        try:
            for results in found:
                records = [result.as_record() for result in results]
                write(records)
                counts.add(records)
                bar.count(counts.inputs, listing.count(_COUNTING))
        except KeyboardInterrupt:
            if out:
                note(f"{out}: has {counts.inputs} rows; the same command goes on from there")
            raise
        if journal:
            journal.finish()
    seconds = time.monotonic() - started
    rate = (counts.inputs - before) / max(seconds, 1e-9)
    alpha = 100 * (detector.alpha or 0.0)
    readable = counts.inputs - counts.unreadable
    note(f"{counts.flagged} of {readable} are OOD; of ID inputs at most {alpha:g} % are flagged, on average")
    note(f"{counts.inputs - before} inputs in {seconds:.1f} s, {rate:.0f}/s" + f"; {before} before" * bool(before))
    if summary:
        about = {**vars(counts), "before": before, "seconds": round(seconds, 3), "rate": round(rate, 3)}
        _write_json(summary, about | {"alpha": detector.alpha, "detector": str(path), "out": str(out) if out else None})
    if counts.unreadable:
        note(f"{counts.unreadable} could not be read")
        raise typer.Exit(UNREADABLE)


def _file_of(path: Path, model: str | None) -> Path:
    """Return the exported file that workers decide by: the one that is named, or that of a run."""
    from ..serving.server import exported_file

    if path.is_dir():
        path = exported_file(path, model=model)
        note(f"{path}: the exported file of the run, which decides")
    if path.suffix != ".onnx":
        raise InputError(f"--engine ray: {path} is no exported file; name an .onnx, or the folder of the run (--run)")
    return path


def _exported(path: Path) -> tuple[Any, Any]:
    """Open an exported detector."""
    import torch

    from ..data import Inputs
    from ..exported import ExportedDetector

    detector = ExportedDetector.open(path, threads=torch.get_num_threads(), spinning=False)  # other processes decode
    try:
        return detector, Inputs.from_json(detector.inputs)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _move(detector: Any, device: str | None) -> None:
    """Move a detector to a device."""
    import torch

    from ..detector import Detector

    if not isinstance(detector, Detector):
        if device not in (None, "cpu"):
            raise InputError(f"--device {device}: an exported detector runs on the cpu; leave it out, or name the run")
        return
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        detector.to(torch.device(name))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"--device {name}: cannot be used ({reason}); choose another, such as cpu") from error


def _digest(path: Path) -> str:
    """Return a digest of a detector's file."""
    path = path.expanduser()
    with open(path / "detector.safetensors" if path.is_dir() else path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _followed(inputs: Any, column: str | None, size: int) -> Iterator[list[Sample]]:
    """Yield the samples that lines on standard input name, as soon as they are there: one, or as many as have come."""
    from ..data.listing import Listing
    from ..detection import windows

    lines: queue.Queue[str | None] = queue.Queue(4 * size)

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (line := lines.get()) is not None:
        ready = [line]
        with contextlib.suppress(queue.Empty):
            while len(ready) < size and ready[-1] is not None:
                ready.append(lines.get_nowait())  # type: ignore[arg-type]
        ended = ready[-1] is None
        yield from windows(Listing(["-"], inputs, column=column, lines=[text for text in ready if text]), size)
        if ended:
            return


def _write_json(path: Path, content: Record) -> None:
    from ..files import written

    with written(path.expanduser()) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


def _for_people(row: Record) -> Record:
    verdict = {True: "OOD", False: "ID", None: "unreadable"}[row["is_ood"]]
    shown = {"file": row["file"], "verdict": verdict} | {key: row[key] for key in row if key not in ("file", "is_ood")}
    for key in ("members", "features"):
        if key in row:
            shown[key] = ", ".join(f"{name} {value:.2g}" for name, value in row[key].items())
    return shown
