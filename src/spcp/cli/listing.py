"""`spcp data`, `spcp methods` and `spcp detectors`: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from .app import Json, app, command, note, show

data_app = typer.Typer(no_args_is_help=True, help="Data sets: which there are, fetch them, check them.")
app.add_typer(data_app, name="data", rich_help_panel="What there is")

Root = Annotated[Path | None, Option(help="Where data sets are; default: $SPCP_DATA, else data/.")]
Names = Annotated[list[str], Argument(help="See `spcp data list`.", show_default=False)]


@command("list", data_app)
def list_command(root: Root = None, as_json: Json = False) -> None:
    """Data sets that can be fetched, and whether they are there."""
    from ..data import SOURCES
    from ..data.download import data_root

    folder = data_root(root)
    rows = []
    for name, source in SOURCES.items():
        there = (folder / source.result).is_dir() and any((folder / source.result).iterdir())
        size = sum(remote.size for remote in source.files) / 1e6
        rows.append({"name": name, "MB": round(size, 1), "there": "yes" if there else "", "homepage": source.homepage})
    show(rows, as_json, f"below {folder}")
    note("benchmarks: digits (embedded), cifar10, cifar100, imagenet200, imagenet, or a TOML file of your own")


@command("download", data_app)
def download_command(names: Names, root: Root = None) -> None:
    """Fetch data sets, with checksums; what was cut short goes on from there."""
    from ..data import download
    from .app import state

    for name in names:
        print(download(name, root, quiet=state.quiet))


@command("verify", data_app)
def verify_command(names: Names, root: Root = None) -> None:
    """See whether data sets are as they were fetched; exit code 1 if not."""
    from ..data import verify

    problems = [problem for name in names for problem in verify(name, root)]
    for problem in problems:
        print(problem)
    if problems:
        raise typer.Exit(1)
    note(f"{', '.join(names)}: as fetched")


@command("methods", panel="What there is")
def methods_command(as_json: Json = False) -> None:
    """Training methods, with their papers."""
    from ..methods import METHODS, TRUNCATING, CrossEntropy

    rows = []
    for name, (kind, _) in METHODS.items():
        paper = "" if kind is CrossEntropy and name not in TRUNCATING else kind.paper  # plain training has none
        rows.append({"method": name, "detector": kind.score, "paper": paper})
    show(rows, as_json)


@command("detectors", panel="What there is")
def detectors_command(as_json: Json = False) -> None:
    """Detectors, with their formulas and papers."""
    from ..scores import SCORES

    rows = []
    for name, (kind, _) in SCORES.items():
        learns = {"train": "training set", "val": "validation set"}.get(kind.fitted_on or "", "")
        rows.append({"detector": name, "formula": kind.formula, "learns_from": learns, "paper": kind.paper})
    show(rows, as_json)
