"""What training shows while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..progress import Bar, clock
from .state import TrainingState

PLAIN_EVERY = 60.0  # seconds between two lines within an epoch, where there is no bar


class Display:
    """Loss, accuracy, threshold, images per second and the time left; the first process shows them.

    Args:
        bar: of `progress_bar`.
        state: what is shown.
        steps: of an epoch.
        images: of an epoch.
    """

    def __init__(self, bar: Bar, state: TrainingState, steps: int, images: int) -> None:
        self.bar, self.state, self.steps, self.images = bar, state, steps, images
        self.started, self.begun = time.perf_counter(), self._done()
        self.printed = self.started

    def _done(self) -> int:
        return self.state.epoch * self.steps + self.state.step

    def step(self, threshold: float | None) -> None:
        """Show where the epoch is."""
        state, now, done = self.state, time.perf_counter(), self._done()
        if not state.writes:
            return
        loss, correct, seen = state.sums.tolist()
        speed = (done - self.begun) / (now - self.started)  # steps per second
        details = measured(loss / seen, correct / seen, threshold=threshold)
        if self.bar.width == 0 or self.bar.width >= 110:
            details += f"  {speed * self.images / self.steps:,.0f} images/s"
        details += f"  {clock((state.config.epochs * self.steps - done) / speed)} left"
        epoch = f"epoch {state.epoch + 1}/{state.config.epochs}"
        self.bar.update(done, epoch, details)
        if self.bar.width == 0 and now - self.printed > PLAIN_EVERY:
            self.printed = now
            self.bar.print(f"{epoch}  step {state.step}/{self.steps}  {details}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Show an epoch that is done."""
        if self.state.writes:
            self.printed = time.perf_counter()
            self.bar.print(epoch_line(record, self.state.config.epochs))


def epoch_line(record: Mapping[str, Any], epochs: int) -> str:
    """Put the record of an epoch into words."""
    words = measured(
        record["loss"],
        record["accuracy"],
        record["val_accuracy"],
        record.get("threshold"),
        record.get("truncated"),
    )
    return f"epoch {record['epoch'] + 1}/{epochs}  {words}  {record['seconds']:.1f} s"


def time_left(history: Sequence[Mapping[str, Any]], epochs: int) -> float:
    """Return the seconds that the rest of a run takes, if its epochs take as long as those before.

    >>> time_left([{"seconds": 2.0}, {"seconds": 4.0}], 5)
    9.0
    """
    return (epochs - len(history)) * sum(float(record["seconds"]) for record in history) / len(history)


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
