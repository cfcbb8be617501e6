"""How commands show results (standard output) and everything else (standard error)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Self

from ..progress import printable
from ..tables import Record, cell, csv_lines, json_lines, to_csv, to_json
from .app import verbosity

_TABLE = 200  # rows of a table on a terminal, so that many come in several


def note(text: str) -> None:
    """Print something that is not a result, unless --quiet."""
    if not verbosity.quiet:
        print(printable(text), file=sys.stderr, flush=True)


def result(text: object, end: str = "\n") -> None:
    """Print a result, on standard output; whatever else is printed while a command runs goes to standard error."""
    print(printable(str(text)) if verbosity.results.isatty() else text, end=end, file=verbosity.results)


def show(
    rows: Sequence[Record], as_json: bool = False, title: str = "", for_people: Callable[[Record], Record] | None = None
) -> None:
    """Print rows: JSON if asked for, a table on a terminal (of `for_people(row)`), CSV elsewhere."""
    if as_json or not verbosity.results.isatty():
        result((to_json if as_json else to_csv)(rows), end="")
    else:
        _print_table([for_people(row) for row in rows] if for_people else rows, title)


class RowStream:
    """Print rows as they are made: as CSV, JSON Lines, a JSON array, or tables of up to `_TABLE` rows.

    Args:
        form: "csv", "jsonl", "json" or "table"; None: a table on a terminal, CSV elsewhere.
        fields: the header of CSV.
        for_people: makes a row of a table.
        before: called before a table is printed.
    """

    def __init__(
        self,
        form: str | None,
        fields: Sequence[str],
        for_people: Callable[[Record], Record],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.form = form or ("table" if verbosity.results.isatty() else "csv")
        self.fields, self.for_people, self.before = fields, for_people, before
        self.begun = False
        self.waiting: list[Record] = []  # rows of the next table

    def write(self, rows: Sequence[Record]) -> None:
        """Print rows."""
        if self.form == "table":
            self.waiting += map(self.for_people, rows)
            while len(self.waiting) >= _TABLE:
                self._table()
            return
        if self.form != "csv":
            text = json_lines(rows)
            if self.form == "json":
                text = ("," if self.begun else "[\n") + text.rstrip("\n").replace("\n", "\n,") + "\n"
        else:
            header = [] if self.begun else [dict(zip(self.fields, self.fields, strict=True))]
            text = csv_lines([*header, *rows], self.fields)
        self.begun = True
        result(text, end="")
        verbosity.results.flush()

    def _table(self) -> None:
        self.before()
        _print_table(self.waiting[:_TABLE], "")
        self.waiting = self.waiting[_TABLE:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.waiting:
            self._table()
        if self.form == "json" and self.begun and kind is None:
            result("]")


def percent(*keys: str) -> Callable[[Record], Record]:
    """Return a function that writes fractions of a row in percent, and "-" where there is none, for `show`.

    >>> percent("flagged")({"dataset": "test", "flagged": 0.005})
    {'dataset': 'test', 'flagged (%)': '0.50'}
    """

    def written(row: Record) -> Record:
        shares = {k: "-" if v is None else f"{100 * v:.2f}" for k, v in row.items() if k in keys}
        return {f"{k} (%)" if k in keys else k: shares.get(k, v) for k, v in row.items()}

    return written


def _print_table(rows: Sequence[Record], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)) if title else None, title_justify="left")
    keys = list(dict.fromkeys(key for row in rows for key in row))
    for key in keys:
        numeric = key.endswith("(%)") or all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(printable(key).replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        style = {"OOD": "bold yellow", "unreadable": "red"}.get(str(row.get("verdict")), "")
        table.add_row(*(Text(printable(_text(row.get(key)))) for key in keys), style=style)
    Console(file=verbosity.results).print(table)


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(cell(value))
    if value == 0 or abs(value) >= 1:
        return f"{value:.2f}"
    return f"{value:.4f}" if abs(value) >= 1e-4 else f"{value:.1e}"
