"""Options and arguments that several commands have, and how their texts are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from typer import Argument, Option

from ..errors import InputError
from ..files import read_json
from .app import verbosity
from .output import note

if TYPE_CHECKING:
    from ..engines.runs import Engine
    from ..runs import Run

T = TypeVar("T")

LATEST = "the latest in runs/"


def option(help_: str, *names: str, panel: str | None = None) -> Any:
    """Describe an option, in a panel of --help; its names are by default the parameter's."""
    return Option(*names, help=help_, rich_help_panel=panel)


data_option = partial(option, panel="Data")
method_option = partial(option, panel="Method")
training_option = partial(option, panel="Training")
runs_option = partial(option, panel="Many runs")

Json = Annotated[bool, option("Print JSON.", "--json")]
Runs = Annotated[list[Path], Argument(help="Folders of runs.", show_default=False)]
Scores = Annotated[str | None, option("Names, separated by commas; default: all that apply.", "--scores", "-s")]
Truncate = Annotated[bool, option("Truncate contributions, if the network was trained so.", "--truncate/--no-truncate")]
Root = Annotated[Path | None, data_option("Folder of the data sets; default: $SPCP_DATA, else data/.")]
Model = Annotated[str | None, option("The code that builds the run's network: package.module:function.")]
ScoreName = Annotated[
    str | None,
    option(
        "See `spcp scores`; auto: the best, given OOD validation data; auto-proxies: without it, the best on outliers "
        "made of ID samples; default: consensus.",
        "--score",
        "-s",
    ),
]
BadFiles = Annotated[
    Literal["raise", "skip"], data_option("Files that cannot be read: raise stops at the first, skip leaves them out.")
]
Alpha = Annotated[float, option("Largest false alarm rate: the share of ID samples that may be flagged as OOD.")]


@dataclass(frozen=True)
class EngineOptions:
    """Where many runs are trained, and how many at a time."""

    jobs: Annotated[int | None, runs_option("Runs at a time, each a process; default: one a core, or a GPU.")] = None
    threads: Annotated[int, runs_option("Threads of each run; numbers are the same to the bit for the same.")] = 1
    engine: Annotated[
        str, runs_option("local: this machine; ray: a Ray cluster, whose machines share the runs' folder.")
    ] = "local"
    address: Annotated[str | None, runs_option("Of a Ray cluster, host:port or auto; default: start one here.")] = None

    def engine_of(self) -> Engine:
        """Return the engine that was asked for."""
        from ..engines.runs import Engine

        return Engine(self.engine, self.jobs, self.threads, self.address, verbosity.verbose)


def latest_run(run: Path | None, file: str = "config.json", model: str | None = None) -> Path:
    """Return the given folder, or that of the latest run in runs/ that has the file and whose network can be built.

    A network that is code needs `model` to name the same; only if no other run is there, such a one is returned.
    """
    if run is not None:
        return run
    candidates = sorted(Path("runs").glob(f"**/{file}"), key=lambda path: path.stat().st_mtime, reverse=True)
    if not candidates:
        what = "run" if file == "config.json" else "calibrated run"
        raise InputError(f"there is no {what} in runs/. Make one (spcp train, spcp calibrate), or name its folder.")
    folders = [path.parent for path in candidates]
    latest = next((folder for folder in folders if _can_be_built(folder, model)), folders[0])
    note(f"run: {latest}")
    for folder in folders[: folders.index(latest)]:
        note(f"skipped: {folder}, whose network is code; for that run name it with --run, and the code with --model")
    return latest


def _can_be_built(folder: Path, model: str | None) -> bool:
    """Tell whether a run's network is one by name, or the code that `model` names."""
    from ..networks import is_code

    try:
        settings = read_json(folder / "config.json", "")
    except InputError:
        return True  # whoever opens it reports what is wrong
    if not isinstance(settings, dict) or "custom_network" in settings:
        return False
    network = str(settings.get("network"))
    return network == model if model or is_code(network) else True


def _only_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the runs among the folders that a pattern such as runs/* matches."""
    runs = [path for path in paths if (path / "config.json").exists()]
    if not runs or not all(path.is_dir() for path in paths):
        return list(paths)  # whoever opens them reports what is wrong
    for path in paths:
        if path not in runs:
            note(f"skipped: {path}, which is not a run")
    return runs


def open_runs(paths: Sequence[Path], model: str | None) -> list[Run]:
    """Open runs; `model` names the code of those whose network is code."""
    from ..runs import Run

    return [Run.open(path, network=model) for path in _only_runs(paths)]


def check_alpha(alpha: float) -> None:
    """Raise an error for an impossible rate, before anything is trained."""
    if not 0 < alpha < 1:
        raise InputError(f"--alpha {alpha:g}: must lie between 0 and 1, such as 0.05 for 5 % false alarms")


def names(text: str | None) -> list[str] | None:
    """Split names at commas.

    >>> names("energy, knn")
    ['energy', 'knn']
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str, option: str, kind: Callable[[str], T], example: str, *, distinct: bool = True) -> list[T]:
    """Split numbers at commas.

    >>> numbers("0, 0.5,1", "--grid", float, "0.1,0.5")
    [0.0, 0.5, 1.0]
    """
    try:
        values = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"{option} {text}: must be numbers separated by commas, such as {example}") from error
    if distinct and len(set(values)) < len(values):
        raise InputError(f"{option} {text}: give each number once")
    return values


def named_paths(values: Sequence[str], option: str) -> dict[str, str]:
    """Read NAME=PATH, or a path whose last part is the name.

    >>> named_paths(["cars=photos/cars", "bats"], "--ood")
    {'cars': 'photos/cars', 'bats': 'bats'}
    """
    paths: dict[str, str] = {}
    for value in values:
        name, separator, path = value.partition("=")
        if not separator or Path(value).expanduser().exists():
            name, path = Path(value).stem, value
        if not name or not path or name in paths or name == "mean":
            raise InputError(f'{option} {value}: must be NAME=PATH; names must differ, and "mean" is reserved')
        paths[name] = path
    return paths


def key_values(values: Sequence[str]) -> dict[str, Any]:
    """Read KEY=VALUE, with VALUE as in JSON (numbers, true, false, null) or else as a word.

    >>> key_values(["tau=0.04", "kind=s"])
    {'tau': 0.04, 'kind': 's'}
    """
    pairs: dict[str, Any] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise InputError(f"--option {value}: must be KEY=VALUE, such as tau=0.04")
        try:
            pairs[key] = json.loads(text)
        except ValueError:
            pairs[key] = text
    return pairs
