"""Records in a file that grows as they are made, and that a process can go on with after another was killed."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .errors import InputError, need
from .files import lock, read_json, written
from .tables import Record, csv_lines, json_lines

OR_ANEW = "name another file, or start anew (--restart)"
_ROWS = 10_000  # of a parquet file that are converted at once


class Journal:
    """Records in a CSV, JSON Lines or parquet file, by its ending.

    Records are appended as they are made. A killed process leaves at most a part of a last line, which `records` stops
    at and `cut` removes. A hidden file beside it, with the ending .state, keeps what the records depend on: whoever
    opens the journal again must say the same. Records of a parquet file, which cannot grow, are lines of JSON in a
    hidden file until `finish` converts them.

    Args:
        path: the file.
        fields: the names of the fields, and the type of each: str, bool, float, or dict for numbers by name.
        same: what the records depend on, for JSON.
        restart: whether to begin anew, whatever is there.
    """

    def __init__(
        self, path: str | Path, fields: Mapping[str, type], same: Mapping[str, Any], *, restart: bool = False
    ) -> None:
        self.path, self.fields = Path(path).expanduser(), fields
        if self.path.suffix not in (".csv", ".jsonl", ".parquet"):
            raise InputError(f"{self.path}: must end in .csv, .jsonl or .parquet, which says how it is written")
        self._converted = self.path.suffix == ".parquet"
        if self._converted:
            need("pyarrow.parquet", "pyarrow", "parquet")
        self._lines = self.path.with_name(f".{self.path.name}.rows") if self._converted else self.path
        self._state = self.path.with_name(f".{self.path.name}.state")
        if self.path.exists() and not self.path.is_file():
            raise InputError(f"{self.path}: is not a file; name a file")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._lines, "a+b")  # noqa: SIM115
        try:
            if lock(self._file.fileno(), for_children=False) is False:  # a killed process's workers end later
                raise InputError(f"{self.path}: another process is writing into it; wait until it ends")
            if restart:
                self._file.truncate(0)
                if self._converted:
                    self.path.unlink(missing_ok=True)
            self._open(same)
        except BaseException:
            if self._converted and not self._lines.stat().st_size:
                self._lines.unlink()
            self._file.close()
            raise
        self.place = 0  # where the record that `records` has returned last ends, in bytes

    def _open(self, same: Mapping[str, Any]) -> None:
        """Check that what is there has come from the same, or begin."""
        if self._lines.stat().st_size or (self._converted and self.path.exists()):
            if not self._state.exists():
                raise InputError(f"{self.path}: is there already, and nothing says what made it; {OR_ANEW}")
            before = read_json(self._state, OR_ANEW)
            for key in same if isinstance(before, dict) else ():
                if before.get(key) != same[key]:
                    raise InputError(f"{self.path}: was begun with another {key}; {OR_ANEW}")
            if self._converted and not self._lines.stat().st_size:
                self._file.writelines(json_lines([record]).encode() for record in self._from_parquet())
                self._file.flush()
            return
        with written(self._state) as file:
            file.write(json.dumps(dict(same)).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()

    def records(self) -> Iterator[Record]:
        """Yield the whole records that are there; values of CSV are text."""
        self.place = self._file.seek(0)
        yield from self._csv(self._file) if self.path.suffix == ".csv" else self._json(self._file)

    def _json(self, lines: Iterable[bytes]) -> Iterator[Record]:
        for number, line in enumerate(_whole(lines), 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise InputError(f"{self.path}: line {number} is not valid JSON ({error}); {OR_ANEW}") from error
            self.place += len(line)
            yield record

    def _csv(self, lines: Iterable[bytes]) -> Iterator[Record]:
        read = 0

        def texts() -> Iterator[str]:
            nonlocal read
            for line in _whole(lines):
                read += len(line)
                yield line.decode(errors="replace")

        with contextlib.suppress(csv.Error):  # cut off between quotes
            for row in csv.reader(texts(), strict=True):
                if (len(row) if self.place else row) != (len(self.fields) if self.place else list(self.fields)):
                    raise InputError(f"{self.path}: has other columns, or is damaged at byte {self.place}; {OR_ANEW}")
                if self.place:
                    self.place = read
                    yield dict(zip(self.fields, row, strict=True))
                else:
                    self.place = read  # the header

    def cut(self, place: int) -> None:
        """Remove what is behind a place."""
        self._file.truncate(place)
        self.place = place

    def append(self, records: Iterable[Record]) -> None:
        """Write records, so that a kill does not lose them."""
        if self.path.suffix == ".csv":
            header = "" if self.place else csv_lines([{key: key for key in self.fields}], list(self.fields))
            text = header + csv_lines(records, list(self.fields))
        else:
            text = json_lines(records)
        content = text.encode(errors="backslashreplace")  # names that are not UTF-8
        self._file.write(content)
        self._file.flush()
        self.place += len(content)

    def finish(self) -> None:
        """Make the parquet file, if it is one, of what was appended."""
        if not self._converted:
            return
        arrow, parquet = need("pyarrow", "pyarrow", "parquet"), need("pyarrow.parquet", "pyarrow", "parquet")
        number = arrow.float64()
        kinds = {str: arrow.string(), bool: arrow.bool_(), float: number, dict: arrow.map_(arrow.string(), number)}
        schema = arrow.schema([(name, kinds[kind]) for name, kind in self.fields.items()])
        records = self.records()
        with written(self.path) as file, parquet.ParquetWriter(file, schema) as writer:
            while rows := list(itertools.islice(records, _ROWS)):
                columns = {name: [_plain(row.get(name)) for row in rows] for name in self.fields}
                writer.write_table(arrow.table(columns, schema=schema))
        self._lines.unlink()

    def _from_parquet(self) -> Iterator[Record]:
        parquet = need("pyarrow.parquet", "pyarrow", "parquet")
        try:
            for batch in parquet.ParquetFile(self.path).iter_batches(_ROWS):
                for row in batch.to_pylist():
                    there = {key: value for key, value in row.items() if value is not None or key != "problem"}
                    yield {key: dict(value) if isinstance(value, list) else value for key, value in there.items()}
        except Exception as error:  # a damaged file can raise anything
            raise InputError(f"{self.path}: cannot be read ({error}); {OR_ANEW}") from error


def _whole(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines up to one that is cut off."""
    return itertools.takewhile(lambda line: line.endswith(b"\n"), lines)


def _plain(value: Any) -> Any:
    """Return a value as parquet takes it: text that is UTF-8, and a table as its items."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return list(value.items()) if isinstance(value, dict) else value
