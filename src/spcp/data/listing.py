"""List the samples of large inputs, when they are needed: files, folders, patterns, arrays, tar and parquet files.

Nothing is held but what is listed next, so memory does not depend on how many samples there are.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import io
import os
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .arrays import read_arrays
from .audio import AudioTransform, read_audio
from .errors import DataError, check_file, need
from .folders import Kind, endings, entries, is_system, left_out, nothing_in, suffix_of, walk
from .images import ImageTransform, open_image
from .inputs import Inputs
from .sets import OOD, SAMPLE_NAMES

_ARRAYS = (".npz", ".npy", ".safetensors")
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_SHARDS = (*_TARS, ".parquet")
_LARGEST = 1 << 30  # bytes of an image or sound in a tar file
_AT_ONCE = 32  # rows of a parquet file that are read
_KINDS = 100  # of files that a folder's note counts


@dataclass(frozen=True, slots=True)
class Member:
    """Where the content of a file lies in a tar file."""

    path: str
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the content."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                content = file.read(self.size)
        except OSError as error:
            raise DataError(f"{self.path}: {error.strerror}; check the path") from error
        if len(content) < self.size:
            raise DataError(f"{self.path}: ends within this file; get the whole archive")
        return content


@dataclass(frozen=True, slots=True)
class Sample:
    """One input by name; one that cannot be had has a problem.

    The source is the path of a file, a `Member` of a tar file, the bytes of a file, an array, or a function that
    returns bytes.
    """

    name: str
    source: Any = None
    problem: str = ""

    def loaded(self) -> Sample:
        """Return the sample with its bytes, where a function reads them."""
        if not callable(self.source):
            return self
        try:
            return Sample(self.name, self.source())
        except DataError as error:
            return Sample(self.name, problem=f"{self.name}: {error}")

    @property
    def is_float(self) -> bool:
        """Whether it is an array that the network takes as it is."""
        return isinstance(self.source, np.ndarray) and self.source.dtype.kind == "f"


class Samples:
    """A set of samples whose index is the sample itself, to be decoded by a `Decoder`."""

    name = "samples"

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def __getitem__(self, sample: Sample) -> tuple[Any, int]:
        """Return an image, a sound or an array, and the label of what has none."""
        source = sample.source
        if isinstance(source, np.ndarray):
            return source, OOD
        if isinstance(source, str):
            file: Any = Path(source)
        else:
            file = io.BytesIO(source.read() if isinstance(source, Member) else source)
        return open_image(file, name=sample.name) if self.kind == "image" else read_audio(file, sample.name), OOD


class Listing:
    """The samples that files, folders, patterns and "-" (a list on standard input) name, in order.

    A folder stands for the images (or the sounds, as the network takes them) below it; a tar file for those in it; an
    array for its rows; a parquet file for the rows of a column of image bytes, plain or as Hugging Face's
    {bytes, path}. What is not there, or cannot be read, is a sample with a problem. A file that is named twice, or
    named and in a folder that is named, comes once; each line of a list counts.

    Args:
        arguments: files, folders, patterns such as 'scans/**/*.png', or "-".
        inputs: what the network takes.
        column: the column of parquet files; by default the one that has a usual name, or that alone holds bytes.
        lines: the list that "-" stands for.
    """

    def __init__(
        self,
        arguments: Iterable[str],
        inputs: Inputs,
        *,
        column: str | None = None,
        lines: Iterable[str] | None = None,
    ) -> None:
        self.arguments, self.inputs, self.column, self.lines = list(arguments), inputs, column, lines
        self.kind: Kind = "audio" if isinstance(inputs.transform, AudioTransform) else "image"
        self.listed = 0
        self._ended = self._counted = False
        self._extra = 0  # rows of arrays beyond the first
        self._shard_samples, self._shard_passed = 0, 0.0  # listed in tar and parquet files, and their bytes so far
        self._files, self._shard_bytes = 0, 0
        self._counting = paths(self.arguments, self.kind, ordered=False) if "-" not in self.arguments else None

    def __iter__(self) -> Iterator[Sample]:
        for path in paths(self.arguments, self.kind, lines=self.lines):
            for sample in [path] if isinstance(path, Sample) else self._in(path):
                self.listed += 1
                yield sample
        self._ended = True

    def count(self, seconds: float = 0.0) -> int | None:
        """Count for some time, and return how many samples there are; None: that is not known yet.

        In tar and parquet files it is estimated from their sizes. A list on standard input is known at its end.
        """
        end = time.monotonic() + seconds
        while not self._counted and self._counting is not None and time.monotonic() < end:
            path = next(self._counting, None)
            self._counted = path is None
            if isinstance(path, str) and path.lower().endswith(_SHARDS):
                self._shard_bytes += os.path.getsize(path) if os.path.isfile(path) else 0
            elif path is not None:
                self._files += 1
        if self._ended:
            return self.listed
        if not self._counted or (self._shard_bytes and not self._shard_passed):
            return None
        shards = self._shard_samples * self._shard_bytes / self._shard_passed if self._shard_passed else 0.0
        return max(self.listed, round(self._files + self._extra + shards))

    def _in(self, path: str) -> Iterator[Sample]:
        """Yield the samples of a file."""
        name = path.lower()
        try:
            if name.endswith(_ARRAYS):
                yield from self._in_array(path)
            elif self.inputs.transform is None:
                problem = f"the network takes floats {self.inputs.shape}; give an npz, npy or safetensors"
                yield Sample(path, problem=f"{path}: {problem}")
            elif name.endswith(_SHARDS):
                before, size = self._shard_passed, os.path.getsize(path)
                for sample, share in self._in_tar(path, size) if name.endswith(_TARS) else self._in_parquet(path):
                    self._shard_samples, self._shard_passed = self._shard_samples + 1, before + share * size
                    yield sample
                self._shard_passed = before + size
            else:
                yield Sample(path, path)
        except (DataError, OSError) as error:
            text = str(error) if isinstance(error, DataError) else f"{path}: {error.strerror}; check the path"
            yield Sample(path, problem=text)

    def _in_array(self, path: str) -> Iterator[Sample]:
        data = read_arrays(path)
        shape, transform = tuple(data.x.shape[1:]), self.inputs.transform
        if data.x.dtype == torch.uint8 and not isinstance(transform, ImageTransform):
            raise DataError(f"{path}: holds images, but the network takes floats {self.inputs.shape}; convert them")
        if data.x.dtype != torch.uint8 and shape != self.inputs.shape:
            raise DataError(f"{path}: its samples are {shape}, but the network takes {self.inputs.shape}")
        self._extra += len(data) - 1
        for i, row in enumerate(data.x.numpy()):
            yield Sample(f"{path}[{i}]", row)

    def _in_tar(self, path: str, size: int) -> Iterator[tuple[Sample, float]]:
        """Yield the images (or sounds) of a tar file in their order, and which share of the file was passed.

        Where it is not compressed, only headers are read here: whoever decodes a sample reads its bytes.
        """
        check_file(Path(path))
        wanted = endings(self.kind)
        try:
            tar, plain = tarfile.open(path, "r:"), True  # noqa: SIM115
        except tarfile.ReadError:
            tar, plain = _decompressed(path), False
        with tar:
            while (member := _next(tar, path)) is not None:
                name = member.name.removeprefix("./")
                if not member.isreg() or suffix_of(name) not in wanted or any(map(is_system, name.split("/"))):
                    continue
                sample = Sample(f"{path}/{name}", Member(path, member.offset_data, member.size))
                if member.size > _LARGEST:
                    sample = Sample(sample.name, problem=f"{sample.name}: {member.size} bytes are too many; remove it")
                elif not plain or member.issparse():
                    sample = Sample(sample.name, _content(tar, member, path))
                yield sample, (member.offset_data + member.size) / size if plain else 0.0
            if plain and any(Member(path, tar.offset, min(tarfile.BLOCKSIZE, size - tar.offset)).read()):
                raise DataError(f"{path}: is damaged at byte {tar.offset}, so that its rest is lost; get it again")

    def _in_parquet(self, path: str) -> Iterator[tuple[Sample, float]]:
        """Yield the rows of a parquet file, and the share that was passed; bytes are read when they are needed."""
        check_file(Path(path))
        need("pyarrow.parquet", "pyarrow", "parquet")
        try:
            file = _open_parquet(path)
            schema, about = file.schema_arrow, file.metadata
        except Exception as error:  # a damaged file can raise anything
            raise DataError(f"{path}: not a readable parquet file ({error}); get it again") from error
        column = self._column(path, schema)
        row = 0
        for group in range(about.num_row_groups):
            rows = _Rows(path, file, group, column)
            for i in range(about.row_group(group).num_rows):
                yield Sample(f"{path}[{row}]", functools.partial(rows.read, i)), (row + 1) / about.num_rows
                row += 1

    def _column(self, path: str, schema: Any) -> str:
        """Return the column of bytes, as a path: "image", or "image.bytes" of Hugging Face's {bytes, path}."""
        types = need("pyarrow.types", "pyarrow", "parquet")
        is_bytes = lambda kind: types.is_binary(kind) or types.is_large_binary(kind)  # noqa: E731
        columns = {field.name: field.name for field in schema if is_bytes(field.type)}
        structs = {field.name: field.type for field in schema if types.is_struct(field.type)}
        for name, kind in structs.items():
            if kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type):
                columns[name] = f"{name}.bytes"
        guesses = [self.column] if self.column else [*SAMPLE_NAMES, *(columns if len(columns) == 1 else ())]
        column = next((columns[name] for name in guesses if name in columns), None)
        if column is None:
            what = (
                f"has no column {self.column!r} of bytes" if self.column else "which column holds the bytes is unclear"
            )
            raise DataError(f"{path}: {what}; name one of its columns {', '.join(schema.names)} (--column)")
        return column


def _open_parquet(path: str) -> Any:
    parquet = need("pyarrow.parquet", "pyarrow", "parquet")
    return parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)  # a row group may be large


class _Rows:
    """The bytes in one row group of a parquet file; rows are asked for in order.

    Another process, which it is sent to, opens the file anew and reads the group from its start.
    """

    def __init__(self, path: str, file: Any, group: int, column: str) -> None:
        self.path, self.file, self.group, self.column = path, file, group, column
        self.start, self.problem = 0, ""
        self.values: list[Any] = []
        self.reading: Iterator[Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Rows, (self.path, None, self.group, self.column)

    def batches(self) -> Iterator[Any]:
        """Read the group, a few rows at a time."""
        file = self.file or _open_parquet(self.path)
        return file.iter_batches(_AT_ONCE, row_groups=[self.group], columns=[self.column], use_threads=False)

    def read(self, i: int) -> bytes:
        """Return the bytes in a row."""
        try:
            if self.reading is None:
                self.reading = self.batches()
            while not self.problem and i >= self.start + len(self.values):
                self.start += len(self.values)
                self.values = next(self.reading).column(0).to_pylist()
        except Exception as error:  # a damaged file can raise anything
            self.problem = f"its part of the parquet file cannot be read ({error}); get it again"
        if self.problem:
            raise DataError(self.problem)
        value = self.values[i - self.start]
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None:
            raise DataError("holds no bytes; remove the row, or write the file's content into it")
        return bytes(content)


def _decompressed(path: str) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r|*")
    except Exception as error:  # a damaged file can raise anything
        raise DataError(f"{path}: not a readable tar file ({error}); get it again") from error


def _next(tar: tarfile.TarFile, path: str) -> tarfile.TarInfo | None:
    """Return the next header; tarfile would keep them all."""
    try:
        member = tar.next()
        tar.members.clear()  # type: ignore[attr-defined]
        return member
    except Exception as error:  # a damaged file can raise anything
        raise DataError(f"{path}: cannot be read to its end ({error}); get it again") from error


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> bytes:
    try:
        file = tar.extractfile(member)
        assert file is not None
        return file.read()
    except Exception as error:  # a damaged file can raise anything
        raise DataError(f"{path}: cannot be read to its end ({error}); get it again") from error


# --- Paths ------------------------------------------------------------------------------------------------------------


def paths(
    arguments: Iterable[str], kind: Kind, *, ordered: bool = True, lines: Iterable[str] | None = None
) -> Iterator[str | Sample]:
    """Yield the paths of files that arguments name, see `Listing`; what is not there is a sample with its problem."""
    seen: dict[str, None] = {}
    for argument in dict.fromkeys(arguments):
        if argument == "-":
            for line in sys.stdin if lines is None else lines:
                name = line.rstrip("\n").removesuffix("\r")
                if name.strip() and name != "-":
                    yield from _found(name, kind, ordered)
            continue
        key = os.path.normpath(os.path.expanduser(argument))
        seen[key] = None
        for item in _found(argument, kind, ordered):
            if len(seen) == 1 or isinstance(item, Sample) or not _reached(item, kind, key, seen):
                yield item


def _reached(path: str, kind: Kind, asked: str, seen: dict[str, None]) -> bool:
    """Tell whether another argument has named a file, or a folder that it was listed in."""
    key = os.path.normpath(path)
    if key in seen and key != asked:
        return True
    while suffix_of(path) in endings(kind) and not is_system(os.path.basename(key)):
        key, below = os.path.dirname(key) or ".", key
        if key in seen and key != asked:
            return True
        if key in (".", below):
            break
    return False


def _found(name: str, kind: Kind, ordered: bool) -> Iterator[str | Sample]:
    """Yield the paths that a name or a pattern stands for."""
    path = os.path.expanduser(name)
    exists = os.path.exists(path)
    matches = iter([path]) if exists else matching(path, ordered) if glob.has_magic(path) else iter(())
    some = False
    for match in matches:
        some = True
        if os.path.isdir(match):
            yield from _below(Path(match), kind, ordered)
        else:
            yield match
    if not some:
        yield Sample(name, problem=_lost(name))


def _lost(name: str) -> str:
    what = "no file fits this pattern" if glob.has_magic(name) else "there is no such file or folder"
    return f"{name}: {what}; check it"


def check_there(arguments: Sequence[str]) -> None:
    """Raise an error if all arguments name what is not there; a folder may still hold nothing."""
    for argument in arguments:
        path = os.path.expanduser(argument)
        if argument == "-" or os.path.exists(path) or (glob.has_magic(path) and any(matching(path, ordered=False))):
            return
    if arguments:
        raise DataError(_lost(arguments[0]))


def _below(folder: Path, kind: Kind, ordered: bool) -> Iterator[str | Sample]:
    """Yield the images or sounds below a folder."""
    wanted, some = endings(kind), False
    others: Counter[str] = Counter()
    problems: list[DataError] = []
    prefix = str(folder / "x")[:-1]
    for path in walk(folder, ordered=ordered, onerror=problems.append):
        ending = suffix_of(path)
        if ending in wanted:
            some = True
            yield f"{prefix}{path}"
        elif ending in others or len(others) < _KINDS:
            others[ending] += 1
    yield from map(_unreadable, problems)
    kinds = Counter({f"*{end}" if end else "without an ending": count for end, count in others.items()})
    notes = left_out(folder, kinds) if ordered else []
    if not some and not problems:
        hint = [f"name tar or parquet files by a pattern, such as '{prefix}*{end}'" for end in _SHARDS if others[end]]
        yield _unreadable(nothing_in(folder, kind, notes + hint))


def _unreadable(error: DataError) -> Sample:
    return Sample(str(error).partition(": ")[0], problem=str(error))


def matching(pattern: str, ordered: bool = True) -> Iterator[str]:
    """Yield the files and folders that fit a pattern, each once, in order, as they are found; not what is in a folder.

    `*`, `?` and `[...]` stand for parts of a name that does not begin with a dot, `**` for any folders.
    """
    parts = [part for i, part in enumerate(pattern.replace(os.sep, "/").split("/")) if part or not i]
    parts += ["*"] * (parts[-1] == "**")
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    prefix = "".join(f"{part}/" for part in parts[:fixed])
    yield from _matching(prefix, parts[fixed:], {0}, frozenset(), ordered)


def _matching(
    prefix: str, parts: list[str], places: set[int], above: frozenset[tuple[int, int]], ordered: bool
) -> Iterator[str]:
    """Yield what fits below a folder; `places` are the parts that names in it may fit."""
    places = {j for i in places for j in _from(parts, i)}
    try:
        info = os.stat(prefix or ".")
        here = (info.st_dev, info.st_ino)
        for name, is_folder in entries(prefix or ".", ordered) if here not in above else ():
            after = {i + (parts[i] != "**") for i in places if _fits(name, is_folder, parts[i])}
            if len(parts) in after:
                yield f"{prefix}{name}"  # of a folder, all that is in it
            elif is_folder and after:
                yield from _matching(f"{prefix}{name}/", parts, after, above | {here}, ordered)
    except OSError:
        return  # as for the shell, what cannot be read is not there


def _from(parts: list[str], i: int) -> Iterator[int]:
    """Yield the places from one on that are reached by leaving out `**`."""
    while i < len(parts):
        yield i
        if parts[i] != "**":
            return
        i += 1


def _fits(name: str, is_folder: bool, part: str) -> bool:
    if name.startswith(".") and not part.startswith("."):
        return False
    return is_folder if part == "**" else fnmatch.fnmatchcase(name, part)
