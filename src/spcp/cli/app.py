"""The app, the options that every command has, and how results are shown."""

from __future__ import annotations

import csv
import inspect
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import progress
from ..errors import InputError

LATEST = "the latest below runs/"


@dataclass
class State:
    """What the options that every command has are set to."""

    quiet: bool = False
    verbose: bool = False


state = State()
_COMMON: Mapping[str, Any] = {
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but results and problems.")],
    "verbose": Annotated[bool, typer.Option("--verbose", "-v", help="Show more, and where errors come from.")],
}


def command(name: str, group: typer.Typer | None = None, panel: str | None = None) -> Callable[[Any], Any]:
    """Make a function a command, with --quiet and --verbose besides its own options."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any, quiet: bool, verbose: bool, **kwargs: Any) -> None:
            state.quiet, state.verbose = quiet, verbose
            progress.quiet = quiet
            logging.getLogger("spcp").setLevel("ERROR" if quiet else "DEBUG" if verbose else "WARNING")
            try:
                function(*args, **kwargs)
                sys.stdout.flush()
            except BrokenPipeError:  # whoever reads has seen enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

        own = inspect.signature(function, eval_str=True).parameters.values()
        more = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
            for key, kind in _COMMON.items()
        ]
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        run.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in own} | dict(_COMMON)
        (group or app).command(name, rich_help_panel=panel)(run)
        return function

    return decorate


app = typer.Typer(
    name="spcp",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]spcp demo[/bold]. Exit codes: 0 fine, 1 failed, 2 mend the input.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__  # which has to be looked up

        print(__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Classifiers that say so when they meet something unlike their training data: train, detect, decide, ship."""


Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


def note(text: str) -> None:
    """Something that is not a result, on standard error, unless --quiet."""
    if not state.quiet:
        print(text, file=sys.stderr, flush=True)


def show(rows: Sequence[Mapping[str, Any]], as_json: bool = False, title: str = "") -> None:
    """Rows on standard output: JSON if asked for, a table on a terminal, CSV elsewhere."""
    if as_json:
        print(json.dumps([{key: _plain(value) for key, value in row.items()} for row in rows], indent=1))
        return
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if not sys.stdout.isatty():
        writer = csv.DictWriter(sys.stdout, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left")
    for key in keys:
        numbers = all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(key.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        style = {"odd": "bold yellow", "unreadable": "red"}.get(str(row.get("verdict")), "")
        table.add_row(*(Text(_short(row.get(key))) for key in keys), style=style)
    Console().print(table)


def _plain(value: Any) -> Any:
    """As JSON has it, which knows no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else "" if value is None else value


def _short(value: Any) -> str:
    if isinstance(value, float):
        return (
            f"{value:.4f}"
            if 1e-4 <= abs(value) < 1
            else f"{value:.2f}"
            if value == 0 or abs(value) >= 1
            else f"{value:.1e}"
        )
    return "" if value is None else str(_cell(value))


def latest_run(run: Path | None, file: str = "config.json") -> Path:
    """The run that is named, or the latest below runs/."""
    if run is not None:
        return run
    found = list(Path("runs").glob(f"**/{file}"))
    if not found:
        what = "calibrated run" if file == "detector.safetensors" else "run"
        raise InputError(f"there is no {what} below runs/; make one (spcp train, spcp calibrate), or name its folder")
    chosen = max(found, key=lambda path: path.stat().st_mtime).parent
    note(f"run: {chosen}")
    return chosen


def only_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs among what a pattern such as runs/* matches."""
    found = [path for path in paths if (path / "config.json").exists()]
    for path in paths:
        if path not in found and path.is_dir() and found:
            note(f"left out: {path}, which is no run")
    return found if found and all(path.is_dir() for path in paths) else list(paths)


def pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """NAME=PATH, or a path whose last part is the name.

    >>> pairs(["cars=photos/cars", "bats"], "--ood")
    {'cars': 'photos/cars', 'bats': 'bats'}
    """
    found: dict[str, str] = {}
    for value in values:
        name, separator, path = value.partition("=")
        if not separator or Path(value).expanduser().exists():
            name, path = Path(value).stem, value
        if not name or not path or name in found or name == "mean":
            raise InputError(f'{option} {value}: must be NAME=PATH, each name once, and none of them "mean"')
        found[name] = path
    return found


def settings(values: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE as JSON has it: numbers, true, false, null; anything else is a word.

    >>> settings(["tau=0.04", "kind=s"])
    {'tau': 0.04, 'kind': 's'}
    """
    found: dict[str, Any] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise InputError(f"--option {value}: must be KEY=VALUE, such as tau=0.04")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def whole_numbers(text: str, option: str) -> list[int]:
    """Different whole numbers with commas between them.

    >>> whole_numbers("0,1", "--seeds")
    [0, 1]
    """
    try:
        found = [int(own) for own in text.split(",") if own.strip()]
    except ValueError as error:
        raise InputError(f"{option} {text}: must be whole numbers with commas between them, such as 0,1,2") from error
    if len(set(found)) < len(found):
        raise InputError(f"{option} {text}: each number once")
    return found


def numbers(text: str, option: str) -> list[float]:
    """Numbers with commas between them.

    >>> numbers("0, 0.5,1", "--grid")
    [0.0, 0.5, 1.0]
    """
    try:
        return [float(own) for own in text.split(",") if own.strip()]
    except ValueError as error:
        raise InputError(f"{option} {text}: must be numbers with commas between them, such as 0.1,0.5,1") from error
