"""A progress bar for long work, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

quiet = False  # whether to show nothing but results and problems; the command line's --quiet sets it


def track(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Pass the items on, and show a bar on standard error while doing so, if that is a terminal and rich is installed.

    >>> list(track([1, 2], "counting", 2))
    [1, 2]
    """
    try:
        if quiet or not sys.stderr.isatty():
            raise ImportError
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield from items
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=what)
