"""What terminals show: a bar on standard error for long work, and text that they do not take for commands."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

quiet = False  # whether to show nothing but results and problems; the command line's --quiet sets it


# Control characters but tab and newline, marks that turn the direction of text, and bytes that are not UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape what a terminal would obey, or cannot show: file names may hold anything.

    >>> printable("caf\xe9\x1b[2J.png")
    'caf\xe9\\x1b[2J.png'
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class Bar:
    """A bar that `progress_bar` shows; without a terminal there is none, and only `print` has an effect."""

    def __init__(self, progress: Any = None, task: Any = None) -> None:
        self._progress, self._task = progress, task

    @property
    def width(self) -> int:
        """Characters in a line of the terminal; 0 without one."""
        return self._progress.console.width if self._progress else 0

    def update(self, completed: float, description: str | None = None, details: str = "") -> None:
        """Move the bar to `completed` of its total, and write `details` behind it."""
        if self._progress:
            self._progress.update(self._task, completed=completed, description=description, details=details)

    def print(self, line: str) -> None:
        """Write a line that stays, above the bar."""
        if self._progress:
            self._progress.console.print(printable(line), highlight=False, markup=False)
        elif not quiet:
            print(printable(line), file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress_bar(description: str, total: float | None, *, show: bool = True, in_bytes: bool = False) -> Iterator[Bar]:
    """Show a bar that disappears at the end, on a terminal and with rich installed; `quiet` or `show=False` hides it.

    >>> with progress_bar("counting", 2) as bar:
    ...     bar.update(1)
    """
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if quiet or not show or not terminal or importlib.util.find_spec("rich") is None:
        yield Bar()
        return
    from rich import progress as rich
    from rich.console import Console

    numbers = (rich.DownloadColumn(), rich.TransferSpeedColumn()) if in_bytes else (rich.TaskProgressColumn(),)
    words = rich.TextColumn("{task.description}", markup=False)
    columns = (words, rich.BarColumn(None), *numbers, rich.TimeRemainingColumn())
    details = rich.TextColumn("{task.fields[details]}", markup=False)
    with rich.Progress(*columns, details, console=Console(stderr=True), transient=True, expand=True) as progress:
        yield Bar(progress, progress.add_task(printable(description), total=total, details=""))


def track(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Pass the items on, and show a bar while doing so.

    >>> list(track([1, 2], "counting", 2))
    [1, 2]
    """
    with progress_bar(what, total) as bar:
        for done, item in enumerate(items, 1):
            yield item
            bar.update(done)
