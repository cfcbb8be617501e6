"""What is shown of many jobs: a table of those that run on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from ..progress import LiveTable, clock
from ..runs import Run
from ..training.display import epoch_line, time_left
from .job import Ended, Job

_log = logging.getLogger("spcp")

COLUMNS = ("run", "epochs", "since", "left")


@dataclass
class Board:
    """What is shown of jobs: a table of those that run, and lines that stay, each with the name of its run."""

    jobs: Sequence[Job]
    show: bool
    table: LiveTable
    running: dict[str, tuple[Job, float]] = field(default_factory=dict)  # since when
    epochs: dict[str, int] = field(default_factory=dict)  # done, of those that run
    told: set[str] = field(default_factory=set)
    done: int = 0
    failed: int = 0

    def start(self, job: Job) -> None:
        """Show that a job starts."""
        self.running[job.name] = job, time.monotonic()
        if not self.table.shown:
            self.table.print(f"{job.name}: started" if self.show else f"run: {job.name}")

    def end(self, end: Ended) -> None:
        """Show what came of a job."""
        _, since = self.running.pop(end.job.name)
        for text in end.messages:
            if text not in self.told:  # what holds for all is said once
                self.told.add(text)
                _log.warning("%s: %s", end.job.name, text)
        if end.problem is None:
            self.done += 1
            if self.show:
                self.table.print(f"{end.job.name}: done, {clock(time.monotonic() - since)}")
        else:
            self.failed += 1
            _log.debug("%s", end.traceback)
            if len(self.jobs) > 1:
                self.table.print(f"{end.job.name}: failed: {end.problem}")

    def look(self) -> None:
        """Show how far the jobs are that run."""
        if not self.show:
            return
        rows = []
        for job, since in self.running.values():
            history: list[dict[str, Any]] = []
            if job.folder is not None and (job.folder / "metrics.jsonl").exists():
                with contextlib.suppress(InputError, OSError):  # it is being made
                    history = Run.open(job.folder).history
            before, self.epochs[job.name] = self.epochs.get(job.name, len(history)), len(history)
            if len(history) > before and not self.table.shown:
                self.table.print(f"{job.name}: {epoch_line(history[-1], job.epochs)}")
            left = clock(time_left(history, job.epochs)) if history else ""
            rows.append((job.name, f"{len(history)}/{job.epochs}", clock(time.monotonic() - since), left))
        waiting = len(self.jobs) - len(self.running) - self.done - self.failed
        counts = {"running": len(self.running), "waiting": waiting, "done": self.done, "failed": self.failed}
        self.table.update(rows, ", ".join(f"{count} {what}" for what, count in counts.items() if count))
