"""`spcp data list`, `spcp data download` and `spcp data verify`."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument

from .app import app, command, verbosity
from .options import Json, Root
from .output import note, result, show

data_app = typer.Typer(no_args_is_help=True, help="List, download and verify data sets.")
app.add_typer(data_app, name="data", rich_help_panel="List")

Names = Annotated[list[str], Argument(help="See `spcp data list`.", show_default=False)]


@command("list", data_app)
def list_command(root: Root = None, as_json: Json = False) -> None:
    """List the data sets that can be downloaded, and whether they are there."""
    from ..data import SOURCES
    from ..data.downloads import data_root

    folder = data_root(root)
    rows = []
    for name, source in SOURCES.items():
        there = (folder / source.result).is_dir() and any((folder / source.result).iterdir())
        size = sum(remote.size for remote in source.files) / 1e6
        rows.append({"name": name, "MB": round(size, 1), "there": "yes" if there else "", "homepage": source.homepage})
    show(rows, as_json, f"in {folder}")
    note("benchmarks: digits (embedded), cifar10, cifar100, imagenet200, imagenet, or a TOML file")


@command("download", data_app)
def download_command(names: Names, root: Root = None) -> None:
    """Download data sets and verify their checksums; an interrupted download continues."""
    from ..data import download

    for name in names:
        result(download(name, root, quiet=verbosity.quiet))


@command("verify", data_app)
def verify_command(names: Names, root: Root = None) -> None:
    """Verify that data sets are as they were downloaded; exit code 1 if not."""
    from ..data import verify

    problems = [problem for name in names for problem in verify(name, root)]
    for problem in problems:
        result(problem)
    if problems:
        raise typer.Exit(1)
    note(f"{', '.join(names)}: verified")
