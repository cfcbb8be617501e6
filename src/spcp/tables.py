"""Tables of records in the forms that programs and papers read."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


def to_csv(records: Iterable[Record]) -> str:
    """Write records as CSV; the header holds the keys of all records, nested values are JSON.

    >>> print(to_csv([{"a": 1}, {"a": None, "b": [2, 3]}]), end="")
    a,b
    1,
    ,"[2, 3]"
    """
    records = list(records)
    fields = list(dict.fromkeys(key for record in records for key in record))
    return csv_lines([dict(zip(fields, fields, strict=True))], fields) + csv_lines(records, fields)


def csv_lines(records: Iterable[Record], fields: Sequence[str]) -> str:
    """Write records as lines of CSV with these fields, without a header; nested values are JSON.

    >>> csv_lines([{"b": True}], ["a", "b"])
    ',true\\n'
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([cell(record.get(key)) for key in fields] for record in records)
    return file.getvalue()


def to_json(records: Iterable[Record]) -> str:
    """Write records as a JSON array; numbers that are not finite become null, because JSON has none.

    >>> print(to_json([{"a": float("nan")}]), end="")
    [
     {
      "a": null
     }
    ]
    """
    return json.dumps([finite(record) for record in records], indent=1) + "\n"


def json_lines(records: Iterable[Record]) -> str:
    """Write records as JSON Lines: one object a line.

    >>> json_lines([{"a": 1}, {"a": float("inf")}])
    '{"a": 1}\\n{"a": null}\\n'
    """
    return "".join(json.dumps(finite(record)) + "\n" for record in records)


def to_markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table, the first column to the left and the others to the right.

    >>> print(to_markdown(["score", "AUROC"], [["energy", "91.20"]]), end="")
    | score | AUROC |
    | --- | ---: |
    | energy | 91.20 |
    """
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "".join("| " + " | ".join(line) + " |\n" for line in (header, rule, *lines))


def to_latex(header: Sequence[str], lines: Iterable[Sequence[str]], comment: str = "") -> str:
    """Write a LaTeX tabular, with a comment above it."""
    body = [" & ".join(line).replace("_", "\\_").replace("%", "\\%") + " \\\\" for line in (header, *lines)]
    columns = "l" + "c" * (len(header) - 1)
    text = [
        f"\\begin{{tabular}}{{{columns}}}",
        "\\hline",
        body[0],
        "\\hline",
        *body[1:],
        "\\hline",
        "\\end{tabular}",
        "",
    ]
    return "\n".join([f"% {comment}", *text] if comment else text)


def cell(value: Any) -> Any:
    """Return a value as a cell of a CSV file has it."""
    return "" if value is None else json.dumps(value) if isinstance(value, Mapping | list | tuple | bool) else value


def finite(record: Record) -> dict[str, Any]:
    """Return a record with None for numbers that are not finite.

    >>> finite({"a": float("nan"), "b": 1.0})
    {'a': None, 'b': 1.0}
    """
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in record.items()}
