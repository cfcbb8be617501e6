"""What a run shows while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from .. import progress
from .run import Run

PLAIN_EVERY = 60.0  # seconds between two lines within an epoch, where there is no bar


class Display:
    """Loss, accuracy, threshold, images per second and the time left, on standard error; the first process shows it."""

    def __init__(self, run: Run, steps: int, images: int) -> None:
        self.run, self.steps, self.images = run, steps, images
        self.bar: Any = None
        self.shown = False
        self.started, self.begun = time.perf_counter(), self._done()
        self.said = self.started

    def _done(self) -> int:
        return self.run.epoch * self.steps + self.run.step

    def __enter__(self) -> Display:
        self.shown = self.run.writes and not progress.quiet
        if self.shown and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import BarColumn, Progress, TextColumn
            except ImportError:
                return self
            columns = (TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.fields[words]}"))
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
            self.task = self.bar.add_task("", total=self.run.config.epochs * self.steps, words="")
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, threshold: float | None) -> None:
        """Show where the epoch is."""
        run, now = self.run, time.perf_counter()
        loss, right, seen = run.sums.tolist()
        done, seconds = self._done(), now - self.started
        speed = (done - self.begun) / seconds  # steps per second
        left = (run.config.epochs * self.steps - done) / speed
        words = measured(loss / seen, right / seen * 100, None, threshold, None)
        if self.bar is None or self.bar.console.width >= 110:
            words += f"  {speed * self.images / self.steps:,.0f} images/s"
        words += f"  {clock(left)} left"
        if self.bar is not None:
            self.bar.update(
                self.task, completed=done, description=f"epoch {run.epoch + 1}/{run.config.epochs}", words=words
            )
        elif self.shown and now - self.said > PLAIN_EVERY:
            self.said = now
            place = f"epoch {run.epoch + 1}/{run.config.epochs}  step {run.step}/{self.steps}"
            print(f"{place}  {words}", file=sys.stderr, flush=True)

    def epoch(self, line: Mapping[str, Any]) -> None:
        """Show an epoch that is done."""
        if not self.shown:
            return
        self.said = time.perf_counter()
        words = measured(line["loss"], line["accuracy"], line["val_accuracy"], line.get("threshold"), line.get("cut"))
        text = f"epoch {line['epoch'] + 1}/{self.run.config.epochs}  {words}  {line['seconds']:.1f} s"
        if self.bar is not None:
            self.bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


def measured(loss: float, accuracy: float, validation: float | None, threshold: float | None, cut: float | None) -> str:
    """Numbers of an epoch in words.

    >>> measured(0.25, 91.0, None, 1000.0, 0.0)
    'loss 0.2500  accuracy 91.0 %  threshold 1000 (0.00% cut)'
    """
    parts = [f"loss {loss:.4f}", f"accuracy {accuracy:.1f} %"]
    if validation is not None:
        parts.append(f"validation {validation:.1f} %")
    if threshold is not None:
        parts.append(f"threshold {threshold:.4g}" + ("" if cut is None else f" ({cut:.2%} cut)"))
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3725.2), clock(65)
    ('1:02:05', '1:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
