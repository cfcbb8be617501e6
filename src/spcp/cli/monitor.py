"""`spcp monitor`."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument

from ..errors import InputError
from .app import command
from .options import Json, option
from .output import note, show

if TYPE_CHECKING:
    from ..monitoring import Monitor

Row = tuple[float, int, bool, float, str]  # p-value, class, verdict, score, stream

_LONGEST = 1 << 20  # bytes of a line
_KEPT = 100  # events, for the page
_SHOWN = 10  # broken lines


@command("monitor", panel="Detect")
def monitor_command(
    file: Annotated[Path, Argument(help="JSON lines of detections; - reads standard input.")] = Path("-"),
    detector: Annotated[
        Path | None, option("What made them: a calibrated run, its detector.safetensors, or an exported .onnx.")
    ] = None,
    samples: Annotated[int | None, option("Instead of a detector: the number of its calibration samples.")] = None,
    state: Annotated[Path | None, option("A file to continue from, and to write; a second run reads on.")] = None,
    events: Annotated[Path | None, option("A file to add alarms to, as JSON lines.")] = None,
    metrics: Annotated[Path | None, option("A text file for Prometheus.")] = None,
    page: Annotated[Path | None, option("An HTML page with the timeline.")] = None,
    alpha: Annotated[float, option("Largest probability of a false alarm, over the whole stream.")] = 0.01,
    window: Annotated[int, option("Inputs over which the flagged share is counted, a multiple of 20.")] = 1000,
    by: Annotated[str | None, option("The field of a line that names its stream; default: all are one.")] = None,
    bad: Annotated[
        Literal["raise", "skip"], option("Lines that cannot be read: raise stops, skip counts them.")
    ] = "skip",
    every: Annotated[float, option("Seconds between two writings of the files.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Watch a stream of detections, and raise an alarm when it no longer looks like the calibration data.

    Lines are JSON objects of detections, or answers of the server. While inputs are like the calibration data, an alarm
    is ever raised with a probability of at most alpha, however long the stream. All of the distribution of p-values is
    tested, not only the flagged share, and that of the predicted classes.

    [dim]tail -f detections.jsonl | spcp monitor - --detector runs/cifar10-spcp-0 --page monitor.html
    spcp monitor detections.jsonl --state monitor.npz --events alarms.jsonl --metrics monitor.prom[/dim]
    """
    monitor, notes = _opened(detector, samples, state, alpha, window, by)
    session = _Session(monitor, notes, {"state": state, "events": events, "metrics": metrics, "page": page}, by, bad)
    due = time.monotonic() + every
    try:
        for lines, size in _lines(file, notes, state is not None):
            changed = session.take(lines)
            notes["offset"] += size
            if changed or time.monotonic() >= due:
                session.write()
                due = time.monotonic() + every
    finally:
        session.write()
    rows = [_row(monitor, stream) for stream in monitor.streams]
    show(rows, as_json)
    on = [row["stream"] for row in rows if row["alarm"]]
    note(
        f"{sum(row['inputs'] for row in rows)} inputs; "
        + (f"alarm in {len(on)} of {len(rows)} streams" if on else "no alarm")
    )
    if notes["skipped"]:
        note(f"{notes['skipped']} lines could not be read, {notes['unreadable']} inputs had no detection")


def _opened(
    detector: Path | None, samples: int | None, state: Path | None, alpha: float, window: int, by: str | None
) -> tuple[Monitor, dict[str, Any]]:
    """Return the monitor, continued or new, and what is kept beside it."""
    from ..monitoring import Monitor
    from ..monitoring.reference import Reference

    if detector is not None and samples is not None:
        raise InputError("--detector and --samples exclude each other; give one of them")
    reference = None
    if detector is not None:
        reference = Reference.of(detector)
    elif samples is not None:
        reference = Reference((samples,))
    if state is not None and state.expanduser().exists():
        monitor, notes = Monitor.load_with_notes(state, reference)
        if (notes.get("by"), monitor.window) != (by, window) or monitor.alpha != alpha:
            raise InputError(
                f"{state}: was begun with --alpha {monitor.alpha:g} --window {monitor.window}"
                + (f" --by {notes['by']}" if notes.get("by") else "")
                + "; give the same, or begin a new state"
            )
        return monitor, notes
    if reference is None:
        raise InputError("which detector made the lines is not known; name it with --detector, or give --samples")
    monitor = Monitor(reference, alpha=alpha, window=window, streams=[] if by else [""])
    if not reference.class_counts:
        note("classes are not tested: the detector does not say how often it predicted each; calibrate it again")
    return monitor, {"by": by, "skipped": 0, "unreadable": 0, "line": 0, "file": None, "offset": 0, "events": []}


def _lines(file: Path, notes: dict[str, Any], resumes: bool) -> Iterator[tuple[list[bytes], int]]:
    """Yield the lines that are there, and their bytes, whenever there are some.

    A file is read on from where the state says. If that `resumes`, a last line that is still being written is left to
    the next run.
    """
    with contextlib.ExitStack() as stack:
        if str(file) == "-":
            source: Any = getattr(sys.stdin, "buffer", None)
            notes |= {"file": None, "offset": 0, "line": 0}
        else:
            if not file.is_file():
                raise InputError(f"{file}: there is no such file; name JSON lines, or - for standard input")
            source = stack.enter_context(open(file, "rb"))
            path = str(file.resolve())
            if notes["file"] != path or notes["offset"] > file.stat().st_size:
                notes |= {"file": path, "offset": 0, "line": 0}
            source.seek(notes["offset"])
        read = source.read1 if source is not None else lambda size: sys.stdin.read(size).encode()
        rest, pending = b"", 0
        while chunk := read(1 << 16):
            *lines, last = (rest + chunk).split(b"\n")
            pending += len(chunk)
            if lines:
                yield lines, pending - len(last)
                pending = len(last)
            rest = last[: _LONGEST + 1]  # of a line that is too long, the beginning will do
        if rest.strip() and (not resumes or source is None or _is_json(rest)):
            yield [rest], pending


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


class _Session:
    """A monitor that is fed lines, and the files that are written about it."""

    def __init__(
        self, monitor: Monitor, notes: dict[str, Any], files: dict[str, Path | None], by: str | None, bad: str
    ) -> None:
        self.monitor, self.notes, self.files, self.by, self.bad = monitor, notes, files, by, bad
        reference = monitor.reference
        names = reference.class_names or tuple(map(str, range(len(reference.class_counts))))
        self._numbers = {name: i for i, name in enumerate(names)}
        self._whole = True  # whether the monitor has seen all lines before the offset, and no others

    def take(self, lines: list[bytes]) -> bool:
        """Feed the monitor, and return whether an alarm began or ended."""
        rows, skipped, unreadable = [], [], 0
        for number, line in enumerate(lines, self.notes["line"] + 1):
            try:
                read = [self._row(record) for record in _detections(line)]
                rows += [row for row in read if row is not None]
                unreadable += read.count(None)
            except (ValueError, RecursionError) as error:
                text = f"line {number}: {error}"
                if self.bad == "raise":
                    raise InputError(f"{text}; correct it, or give --bad skip") from error
                skipped.append(f"{text}; skipped")
        self._whole = False
        events = self._update(rows)
        for text in skipped[: max(0, _SHOWN - self.notes["skipped"])]:
            note(text)
        self.notes["line"] += len(lines)
        self.notes["skipped"] += len(skipped)
        self.notes["unreadable"] += unreadable
        self._whole = True
        return bool(events)

    def _update(self, rows: list[Row]) -> list[dict[str, Any]]:
        if not rows:
            return []
        p, classes, is_ood, scores, streams = zip(*rows, strict=True)
        raised = self.monitor.update(p, classes=classes, is_ood=is_ood, scores=scores, streams=streams)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        events = [{"time": now, **dataclasses.asdict(event)} for event in raised]
        self.notes["events"] = [*self.notes["events"], *events][-_KEPT:]
        for event in events:
            what = "alarm" if event["kind"] == "alarm" else "the alarm is over"
            where = f" in {event['stream']}" if event["stream"] else ""
            note(f"{what}{where} at input {event['input']}: {event['detail']}; since about input {event['since']}")
        path = self.files["events"]
        if path is not None and events:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.writelines(json.dumps(event) + "\n" for event in events)
        return events

    def _row(self, record: Any) -> Row | None:
        """Return p-value, class, verdict, score and stream of a detection; None where an input had no detection."""
        if not isinstance(record, dict):
            raise ValueError("is not a JSON object of a detection")
        values: list[Any] = [record.get(key) for key in ("p_value", "is_ood", "class", "score")]
        p, is_ood, name, score = values
        if p is None and record.get("problem"):
            return None
        if not isinstance(p, int | float) or isinstance(p, bool) or not 0 <= p <= 1:
            raise ValueError(f"p_value = {p!r:.40} is not a number from 0 to 1")
        if not isinstance(is_ood, bool):
            raise ValueError(f"is_ood = {is_ood!r:.40} is neither true nor false")
        if self._numbers and (not isinstance(name, str) or name not in self._numbers):
            raise ValueError(f"class = {name!r:.60} is not a class of the detector")
        stream = ""
        if self.by is not None:
            if not isinstance(record.get(self.by), str | int):
                raise ValueError(f"there is no {self.by} to name the stream by")
            stream = str(record[self.by])
        right = isinstance(score, int | float) and not isinstance(score, bool)
        return float(p), self._numbers.get(name, -1), is_ood, float(score) if right else float("nan"), stream

    def write(self) -> None:
        """Write all files but that of events: the state last, so that it never knows more than they do."""
        from ..files import written
        from ..monitoring.timeline import page, prometheus

        if not self._whole:  # interrupted in between: the last state that was written holds
            return
        texts = {"metrics": lambda: prometheus(self.monitor), "page": lambda: page(self.monitor, self.notes["events"])}
        for key, text in texts.items():
            path = self.files[key]
            if path is not None:
                with written(path) as file:
                    file.write(text().encode())
        if self.files["state"] is not None:
            self.monitor.save(self.files["state"], self.notes)


def _detections(line: bytes) -> list[Any]:
    """Return the detections of a line: one, or those of an answer of the server."""
    if not line.strip():
        return []
    if len(line) > _LONGEST:
        raise ValueError(f"is longer than {_LONGEST} bytes")
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is not valid JSON ({error})") from error
    results = record.get("results") if isinstance(record, dict) else None
    return results if isinstance(results, list) else [record]


def _row(monitor: Monitor, stream: str) -> dict[str, Any]:
    status = monitor.status(stream)
    low, high = status.window.interval
    row: dict[str, Any] = {"stream": stream, "inputs": status.inputs, "flagged": status.flagged}
    row |= {"share": status.window.share, "low": low, "high": high, "log10_evidence": status.log10_evidence}
    return row | {"alarm": status.alarm, "since": status.since, "alarms": status.alarms}
