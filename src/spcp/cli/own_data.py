"""One's own data on the command line: its options, and its description in the folder of a run."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..errors import InputError
from .app import pairs

if TYPE_CHECKING:
    from ..data import Benchmark

DATA = "Data"
BenchmarkName = Annotated[
    str | None,
    Option(
        "--benchmark",
        "-b",
        help="digits, cifar10, cifar100, imagenet200, imagenet, or a TOML file.",
        rich_help_panel=DATA,
    ),
]
Root = Annotated[
    Path | None, Option(help="Where data sets are; default: $SPCP_DATA, else data/.", rich_help_panel=DATA)
]
Known = Annotated[
    Path | None,
    Option("--id", help="Your own known data: a folder of class folders, arrays, ...", rich_help_panel=DATA),
]
Odd = Annotated[
    list[str], Option("--ood", help="Odd data to test on, NAME=PATH; may be given again.", rich_help_panel=DATA)
]
Near = Annotated[list[str], Option("--near", help="Odd data close to what is known, NAME=PATH.", rich_help_panel=DATA)]
OddVal = Annotated[
    str,
    Option(
        "--ood-val", help="Odd data for choosing settings: none, gaussian, uniform, or NAME=PATH.", rich_help_panel=DATA
    ),
]
Size = Annotated[int | None, Option(help="Side of the images in pixels.", rich_help_panel=DATA)]
Label = Annotated[str | None, Option(help="A regular expression that finds the class in a path.", rich_help_panel=DATA)]
Flip = Annotated[
    bool, Option("--flip/--no-flip", help="Mirror images in training; not for text or signs.", rich_help_panel=DATA)
]


@contextlib.contextmanager
def described(folder: Path, text: str | None) -> Iterator[Benchmark | None]:
    """The benchmark of one's own data, whose description is kept in the folder, if a run comes of it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder (--out)")
    if text is None:
        yield None
        return
    from ..data import read_benchmark
    from ..files import written

    path = folder / "benchmark.toml"
    there = path.read_text() if path.exists() else None
    if there != text and (there is not None or (folder / "config.json").exists()):
        raise InputError(
            f"{folder}: holds a run on other data, or on the same given otherwise (--ood, --size, ...); choose another "
            "folder (--out)"
        )
    with tempfile.TemporaryDirectory() as temporary:  # first see whether the data can be used
        first = Path(temporary) / "own.toml"
        first.write_text(text)
        try:
            benchmark = read_benchmark(first)
        except InputError as error:
            raise InputError(str(error).removeprefix(f"{first}: ")) from error
    with written(path) as file:
        file.write(text.encode())
    try:
        yield benchmark
    finally:
        if [own.name for own in folder.iterdir()] == [path.name]:  # nothing came of it
            path.unlink()
            folder.rmdir()


def _absolute(path: str | Path) -> str:
    """A path as TOML has it."""
    return _quoted(str(Path(path).expanduser().resolve()))


def _quoted(text: str) -> str:
    """A string as TOML has it."""
    return json.dumps(text, ensure_ascii=False)


def _table(values: list[str], option: str) -> str:
    """NAME=PATH, ... as a table of TOML."""
    own = ", ".join(f"{_quoted(key)} = {_absolute(path)}" for key, path in pairs(values, option).items())
    return f"{{ {own} }}"


def own_data(
    known: Path | None,
    ood: list[str],
    near: list[str],
    ood_val: str,
    size: int | None,
    label: str | None,
    flip: bool,
    benchmark: str | None,
) -> str | None:
    """A description (TOML, see `spcp.data.read_benchmark`) of one's own data; None for a benchmark by name."""
    if known is None:
        given = {"--ood": ood, "--near": near, "--size": size, "--label": label, "--no-flip": not flip}
        given["--ood-val"] = ood_val != "none"
        wrong = next((name for name, value in given.items() if value), None)
        if wrong:
            raise InputError(f"{wrong}: is for your own data; name it with --id")
        return None
    if benchmark is not None:
        raise InputError("--id and --benchmark: give one of them")
    lines = [f"name = {_quoted(known.resolve().stem)}", "[id]", f"path = {_absolute(known)}"]
    lines += [] if label is None else [f"label = {_quoted(label)}"]
    lines += ["[ood]"]
    lines += [f"far = {_table(ood, '--ood')}"] if ood else []
    lines += [f"near = {_table(near, '--near')}"] if near else []
    if ood_val in ("gaussian", "uniform"):
        lines += [f"val = {json.dumps(ood_val)}"]
    elif ood_val != "none":
        lines += [f"val = {_table([ood_val], '--ood-val')}"]
    lines += ["[transform]"] if size is not None or not flip else []
    lines += [] if size is None else [f"size = {size}"]
    lines += [] if flip else ["flip = false"]
    return "\n".join(lines) + "\n"
