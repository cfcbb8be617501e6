"""The app, and the decorator that makes a function one of its commands."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TextIO, get_type_hints

import typer
from typer import Option

from .. import progress

app = typer.Typer(
    name="spcp",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]spcp demo[/bold]. Exit codes: 0 success, 1 failure, 2 invalid input, 3 unreadable inputs.",
)


@dataclass
class Verbosity:
    """The options that every command has."""

    quiet: Annotated[bool, Option("--quiet", "-q", help="Show nothing but results and problems.")] = False
    verbose: Annotated[bool, Option("--verbose", "-v", help="Show more, and tracebacks of errors.")] = False


class Output(Verbosity):
    """How much a command shows, and where its results go."""

    results: TextIO = sys.stdout


verbosity = Output()  # of the command that runs


def command(name: str, group: typer.Typer | None = None, panel: str | None = None) -> Callable[[Any], Any]:
    """Make a function a command.

    A parameter whose type is a dataclass of annotated options stands for all its fields, so that commands share
    options by sharing the dataclass. Every command has the options of `Verbosity` too.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        groups: dict[str, Any] = {p.name: p.annotation for p in parameters if dataclasses.is_dataclass(p.annotation)}

        def run(*, quiet: bool, verbose: bool, **values: Any) -> None:
            verbosity.quiet, verbosity.verbose = quiet, verbose
            progress.quiet = quiet
            logging.getLogger("spcp").setLevel("ERROR" if quiet else "DEBUG" if verbose else "WARNING")
            for key, kind in groups.items():
                values[key] = kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            verbosity.results = sys.stdout
            try:
                with contextlib.redirect_stdout(sys.stderr):  # what a user's model prints is no result
                    function(**values)
                verbosity.results.flush()
            except BrokenPipeError:  # the reader, such as head, has closed the pipe
                os.dup2(os.open(os.devnull, os.O_WRONLY), verbosity.results.fileno())

        options = [o for p in parameters for o in (_fields(groups[p.name]) if p.name in groups else [p])]
        options += _fields(Verbosity)
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
        )
        run.__annotations__ = {option.name: option.annotation for option in options}
        (group or app).command(name, rich_help_panel=panel)(run)
        return function

    return decorate


def _fields(kind: type) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__  # which has to be looked up

        print(__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train classifiers that detect out-of-distribution (OOD) inputs; evaluate, calibrate and use them."""
