"""What terminals show: a bar on standard error for long work, and text that they do not take for commands."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

EVERY = 30.0  # seconds between lines about progress, where there is no terminal
quiet = False  # whether to show nothing but results and problems; the command line's --quiet sets it


# Control characters but tab and newline, marks that turn the direction of text, and bytes that are not UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape what a terminal would obey, or cannot show: file names may hold anything.

    >>> printable("caf\xe9\x1b[2J.png")
    'caf\xe9\\x1b[2J.png'
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def clock(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds.

    >>> clock(3725.2), clock(65)
    ('1:02:05', '1:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _print_above(shown: Any, line: str) -> None:
    """Write a line that stays: above what rich shows, or on standard error where it shows nothing."""
    if shown:
        shown.console.print(printable(line), highlight=False, markup=False)
    elif not quiet:
        print(printable(line), file=sys.stderr, flush=True)


class Bar:
    """A bar that `progress_bar` shows; without a terminal there is none, and `print` and `count` write lines."""

    def __init__(self, description: str = "", progress: Any = None, task: Any = None, show: bool = True) -> None:
        self._description, self._progress, self._task, self._show = description, progress, task, show
        self._since: tuple[float, int] | None = None  # when counting began, and at which number
        self._line = 0.0  # when the last line was written

    @property
    def width(self) -> int:
        """Characters in a line of the terminal; 0 without one."""
        return self._progress.console.width if self._progress else 0

    def update(self, completed: float, description: str | None = None, details: str = "") -> None:
        """Move the bar to `completed` of its total, and write `details` behind it."""
        if self._progress:
            self._progress.update(self._task, completed=completed, description=description, details=details)

    def count(self, done: int, total: int | None) -> None:
        """Show how many are done of how many, if that is known, how many a second, and the time left.

        Without a terminal that is a line every `EVERY` seconds.
        """
        now = time.monotonic()
        if self._since is None:
            self._since, self._line = (now, done), now
        if not self._progress and (quiet or not self._show or now < self._line + EVERY):
            return
        start, first = self._since
        rate = (done - first) / max(now - start, 1e-9)
        details = f"{rate:.0f}/s" + (f", {clock((total - done) / rate)} left" if total and rate else "")
        if self._progress:
            self._progress.update(self._task, completed=done, total=total, details=details)
        else:
            self._line = now
            self.print(f"{self._description}: {done}" + (f" of {total}" if total else "") + f", {details}")

    def hide(self) -> None:
        """Take the bar away, because something else is about to be shown."""
        if self._progress:
            self._progress.stop()
        self._progress, self._show = None, False

    def print(self, line: str) -> None:
        """Write a line that stays, above the bar."""
        _print_above(self._progress, line)


@contextlib.contextmanager
def progress_bar(
    description: str, total: float | None, *, show: bool = True, in_bytes: bool = False, counted: bool = False
) -> Iterator[Bar]:
    """Show a bar that disappears at the end, on a terminal and with rich installed; `quiet` or `show=False` hides it.

    One that is `counted` is moved by `Bar.count`.

    >>> with progress_bar("counting", 2) as bar:
    ...     bar.update(1)
    """
    if not show or not _on_terminal():
        yield Bar(description, show=show)
        return
    from rich import progress as rich
    from rich.console import Console

    numbers = (rich.DownloadColumn(), rich.TransferSpeedColumn()) if in_bytes else (rich.TaskProgressColumn(),)
    words = rich.TextColumn("{task.description}", markup=False)
    columns = (words, rich.BarColumn(None), *numbers, rich.TimeRemainingColumn())
    if counted:
        columns = (words, rich.BarColumn(None), rich.MofNCompleteColumn())
    details = rich.TextColumn("{task.fields[details]}", markup=False)
    with rich.Progress(*columns, details, console=Console(stderr=True), transient=True, expand=True) as progress:
        yield Bar(description, progress, progress.add_task(printable(description), total=total, details=""))


class LiveTable:
    """A table that `live_table` shows; without a terminal there is none, and `print` alone writes lines."""

    def __init__(self, columns: Sequence[str], live: Any = None) -> None:
        self._columns, self._live = columns, live

    @property
    def shown(self) -> bool:
        """Whether there is one."""
        return self._live is not None

    def update(self, rows: Sequence[Sequence[str]], caption: str) -> None:
        """Show other rows, and a line below them."""
        if self._live:
            from rich.table import Table
            from rich.text import Text

            table = Table(*self._columns, caption=Text(printable(caption)), caption_justify="left")
            for row in rows:
                table.add_row(*(Text(printable(value)) for value in row))
            self._live.update(table, refresh=True)

    def print(self, line: str) -> None:
        """Write a line that stays, above the table."""
        _print_above(self._live, line)


@contextlib.contextmanager
def live_table(columns: Sequence[str], *, show: bool = True) -> Iterator[LiveTable]:
    """Show a table that disappears at the end, on a terminal and with rich installed; `quiet` or `show=False` hides it.

    >>> with live_table(("run", "left")) as table:
    ...     table.update([("seed-0", "0:12")], "1 running")
    """
    if not show or not _on_terminal():
        yield LiveTable(columns)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        yield LiveTable(columns, live)


def _on_terminal() -> bool:
    """Tell whether something that moves can be shown."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return terminal and not quiet and importlib.util.find_spec("rich") is not None


def track(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Pass the items on, and show a bar while doing so.

    >>> list(track([1, 2], "counting", 2))
    [1, 2]
    """
    with progress_bar(what, total) as bar:
        for done, item in enumerate(items, 1):
            yield item
            bar.update(done)
