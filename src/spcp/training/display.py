"""What training shows while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from .. import progress
from .state import TrainingState

PLAIN_EVERY = 60.0  # seconds between two lines within an epoch, where there is no bar


class Display:
    """Loss, accuracy, threshold, images per second and the time left, on standard error; the first process shows it."""

    def __init__(self, state: TrainingState, steps: int, images: int) -> None:
        self.state, self.steps, self.images = state, steps, images
        self.bar: Any = None
        self.shown = False
        self.started, self.begun = time.perf_counter(), self._done()
        self.printed = self.started

    def _done(self) -> int:
        return self.state.epoch * self.steps + self.state.step

    def __enter__(self) -> Display:
        self.shown = self.state.writes and not progress.quiet
        if self.shown and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import BarColumn, Progress, TextColumn
            except ImportError:
                return self
            columns = (TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.fields[words]}"))
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
            self.task = self.bar.add_task("", total=self.state.config.epochs * self.steps, words="")
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, threshold: float | None) -> None:
        """Show where the epoch is."""
        state, now = self.state, time.perf_counter()
        loss, correct, seen = state.sums.tolist()
        done, seconds = self._done(), now - self.started
        speed = (done - self.begun) / seconds  # steps per second
        left = (state.config.epochs * self.steps - done) / speed
        words = measured(loss / seen, correct / seen, threshold=threshold)
        if self.bar is None or self.bar.console.width >= 110:
            words += f"  {speed * self.images / self.steps:,.0f} images/s"
        words += f"  {clock(left)} left"
        if self.bar is not None:
            self.bar.update(
                self.task, completed=done, description=f"epoch {state.epoch + 1}/{state.config.epochs}", words=words
            )
        elif self.shown and now - self.printed > PLAIN_EVERY:
            self.printed = now
            place = f"epoch {state.epoch + 1}/{state.config.epochs}  step {state.step}/{self.steps}"
            print(f"{place}  {words}", file=sys.stderr, flush=True)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Show an epoch that is done."""
        if not self.shown:
            return
        self.printed = time.perf_counter()
        words = measured(*(record.get(key) for key in ("loss", "accuracy", "val_accuracy", "threshold", "truncated")))
        text = f"epoch {record['epoch'] + 1}/{self.state.config.epochs}  {words}  {record['seconds']:.1f} s"
        if self.bar is not None:
            self.bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


def measured(
    loss: float,
    accuracy: float,
    validation: float | None = None,
    threshold: float | None = None,
    truncated: float | None = None,
) -> str:
    """Put the numbers of an epoch into words.

    >>> measured(0.25, 0.91, None, 1000.0, 0.0)
    'loss 0.2500  accuracy 91.0 %  threshold 1000 (0.00% truncated)'
    """
    parts = [f"loss {loss:.4f}", f"accuracy {100 * accuracy:.1f} %"]
    if validation is not None:
        parts.append(f"validation {100 * validation:.1f} %")
    if threshold is not None:
        parts.append(f"threshold {threshold:.4g}" + ("" if truncated is None else f" ({truncated:.2%} truncated)"))
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds.

    >>> clock(3725.2), clock(65)
    ('1:02:05', '1:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
