"""The options that name data, and the description of a user's data in the folder of a run."""

from __future__ import annotations

import contextlib
import json
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..errors import InputError
from .options import BadFiles, Root, data_option, named_paths, numbers
from .output import note

if TYPE_CHECKING:
    from ..data import Benchmark

BENCHMARKS = "digits, cifar10, cifar100, imagenet200, imagenet, or a TOML file."
DESCRIPTION = "benchmark.toml"  # in the folder of a run on a user's data


@dataclass(frozen=True)
class DataOptions:
    """A benchmark by name, or a user's data."""

    benchmark: Annotated[str | None, data_option(BENCHMARKS, "--benchmark", "-b")] = None
    root: Root = None
    id_: Annotated[
        Path | None, data_option("Your ID data: a folder with a folder for each class, or arrays.", "--id")
    ] = None
    ood: Annotated[list[str], data_option("OOD data to test on, NAME=PATH; may be repeated.")] = field(
        default_factory=list
    )
    near: Annotated[list[str], data_option("Near-OOD data to test on, NAME=PATH; may be repeated.")] = field(
        default_factory=list
    )
    ood_val: Annotated[str, data_option("OOD data for choosing settings: none, gaussian, uniform, or NAME=PATH.")] = (
        "none"
    )
    size: Annotated[int | None, data_option("Height and width of the images in pixels.")] = None
    label: Annotated[str | None, data_option("A regular expression whose group is the class in a path.")] = None
    split: Annotated[
        str | None, data_option("Shares of training, validation and test data of each class; default: 0.8,0.1,0.1.")
    ] = None
    bad: BadFiles = "raise"

    @property
    def name(self) -> str:
        """Return what folders of runs are named after."""
        return self.id_.resolve().stem if self.id_ else Path(self.benchmark or "digits").stem

    def source(self, folder: Path) -> str:
        """Return what `load_benchmark` takes: a name, or the path of a description."""
        if self.id_ is not None:
            return str((folder / DESCRIPTION).resolve())
        name = self.benchmark or "digits"
        return str(Path(name).expanduser().resolve()) if name.endswith(".toml") else name

    @contextlib.contextmanager
    def described_in(self, folder: Path, flip: bool = True, network: str | None = None) -> Iterator[Benchmark | None]:
        """Read a user's data (None: a benchmark by name), and keep its description in the folder if a run follows.

        The data of a run may have been moved, so its description may differ in the paths. A pretrained network gets its
        images as it was trained on them.
        """
        text = self._description(flip, network or "")
        warnings.filterwarnings("ignore", message=".*(: left out: |, so it is no class)")  # the summary has it
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; name a folder (--out)")
        if text is None:
            yield self._named()
            return
        from ..files import written

        path = folder / DESCRIPTION
        previous = path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
        if (folder / "config.json").exists() if previous is None else _but_for_paths(previous) != _but_for_paths(text):
            raise InputError(
                f"{folder}: holds a run on other data, or with other --ood, --size, ...; choose another folder (--out)"
            )
        benchmark = _read(text)  # before anything is written
        with written(path) as file:
            file.write(text.encode())
        try:
            yield benchmark
        except InputError:
            if previous is not None:  # it is other data
                with written(path) as file:
                    file.write(previous.encode())
            raise
        finally:
            if [entry.name for entry in folder.iterdir()] == [path.name]:  # there is no run
                path.unlink()
                folder.rmdir()

    def _named(self) -> Benchmark | None:
        """Read the data of a TOML file; None for any other benchmark."""
        from ..data import load_benchmark

        if not (self.benchmark or "").endswith(".toml"):
            return None
        return _shown(load_benchmark(self.source(Path())))

    def _description(self, flip: bool, network: str) -> str | None:
        """Return a description of a user's data as TOML, see `spcp.data.read_benchmark`; None for a benchmark."""
        if self.id_ is None:
            given: dict[str, Any] = {"--ood": self.ood, "--near": self.near, "--size": self.size, "--label": self.label}
            given |= {"--no-flip": not flip, "--ood-val": self.ood_val != "none", "--split": self.split}
            given |= {"--bad": self.bad == "skip"}
            wrong = next((option for option, value in given.items() if value), None)
            if wrong:
                raise InputError(
                    f"{wrong}: applies to your data only; name it with --id, or write it into the TOML file"
                )
            return None
        if self.benchmark is not None:
            raise InputError("--id and --benchmark: give one of them")
        noise = self.ood_val if self.ood_val in ("gaussian", "uniform") else None
        ood_val = [] if noise or self.ood_val == "none" else [self.ood_val]
        shares = self.split and numbers(self.split, "--split", float, "0.6,0.2,0.2", distinct=False)
        sections: dict[str, dict[str, Any]] = {
            "id": {"path": _absolute(self.id_), "label": self.label, "split": shares},
            "ood": {
                "far": _paths(self.ood, "--ood"),
                "near": _paths(self.near, "--near"),
                "val": noise or _paths(ood_val, "--ood-val"),
            },
            "transform": {**self._preprocessing(network), "flip": None if flip else False},
        }
        lines = [f"name = {_toml(self.name)}"] + ['bad = "skip"'] * (self.bad == "skip")
        for section, values in sections.items():
            entries = [f"{key} = {_toml(value)}" for key, value in values.items() if value not in (None, {})]
            lines += [f"[{section}]", *entries] if entries else []
        return "\n".join(lines) + "\n"

    def _preprocessing(self, network: str) -> dict[str, Any]:
        """Return the size, and what else a pretrained network wants; another size keeps the share that is cropped."""
        if ":" not in network:
            return {"size": self.size}
        from ..networks import is_pretrained, preprocessing_of

        if not is_pretrained(network):
            return {"size": self.size}
        wanted = preprocessing_of(network)
        if self.size is not None:
            wanted |= {"crop": self.size, "resize": round(self.size * wanted["resize"] / wanted["crop"])}
        return wanted


def _read(text: str) -> Benchmark:
    from ..data import read_benchmark

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / DESCRIPTION
        path.write_text(text, encoding="utf-8")
        try:
            return _shown(read_benchmark(path))
        except InputError as error:
            raise InputError(str(error).removeprefix(f"{path}: ")) from error


def _shown(benchmark: Benchmark) -> Benchmark:
    """Show what is in a user's data, before anything is made of it."""
    note(benchmark.summary())
    return benchmark


def _but_for_paths(text: str) -> Any:
    """Return what a description says, but for the name and the paths of the data, and whether bad files are skipped."""
    try:
        table = tomllib.loads(text)
        table["id"] |= {"path": ""}
        groups = {key: value for key, value in table.get("ood", {}).items() if isinstance(value, dict)}
        ood = table.get("ood", {}) | {key: sorted(groups[key]) for key in groups}
        return table | {"name": "", "bad": "", "ood": ood}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        return text


def _absolute(path: str | Path) -> str:
    absolute = str(Path(path).expanduser().resolve())
    if any("\ud800" <= character <= "\udfff" for character in absolute):
        raise InputError(f"{absolute}: its name is not UTF-8, as the description of a run's data has to be; rename it")
    return absolute


def _paths(values: list[str], option: str) -> dict[str, str]:
    return {name: _absolute(path) for name, path in named_paths(values, option).items()}


def _toml(value: Any) -> str:
    """Write a value as TOML: a table inline, anything else as JSON has it."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(entry)}' for key, entry in value.items())} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML wants escaped, too
