"""The errors that users meet: one sentence that names the input, what is wrong with it, and what to do."""

from __future__ import annotations

import difflib
import importlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

LARGEST = sys.float_info.max  # of finite numbers
Rule = tuple[type, float, float]  # what a number must be: int or float, from, to


class InputError(ValueError):
    """The user's input (a file, a name, a setting) is invalid; the message says what to do."""


class TrainingError(RuntimeError):
    """A run cannot continue; the message says where it stopped and what is left."""


class ProcessError(RuntimeError):
    """One of several processes that work together has ended, and with it all of them."""


def raised_in(error: BaseException) -> str | None:
    """Return the place in a user's code that an error comes from; None where that is this package.

    Libraries do not count: whoever called them did.
    """
    package = Path(__file__).parent
    libraries = [Path(path) for key, path in sysconfig.get_paths().items() if key in ("stdlib", "purelib", "platlib")]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(package):
            return None
        if path.exists() and not any(path.is_relative_to(library) for library in libraries):
            return f"{path}, line {frame.lineno}, in {frame.name}"
    return None


def explained(error: Exception) -> tuple[str, int]:
    """Return what to tell a user about an error, and the exit code: 2 for invalid input, 1 for any other failure.

    >>> explained(InputError("photos: is a file; name a folder"))
    ('photos: is a file; name a folder', 2)
    """
    if isinstance(error, InputError):
        return str(error), 2
    if isinstance(error, TrainingError | ProcessError | ImportError):
        return str(error), 1
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror or error}. Check the path, its permissions and the free space.", 1
    what = f"{type(error).__name__}: {error}".rstrip(".")
    place = raised_in(error)
    if place:
        return f"{place}: {what}. This comes from that file, not from spcp; --verbose shows the traceback.", 2
    return f"{what}. This is a bug in spcp; --verbose shows the traceback.", 1


def reason(error: BaseException) -> str:
    """Return the first line of what an error of another library says, for a sentence that quotes it.

    >>> reason(ValueError("no such node" + chr(10) + "at line 3"))
    'no such node'
    """
    lines = (line.strip().rstrip(".:;") for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:200]


def check_numbers(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise an `InputError` for the first value that is missing, not a number, or out of its range.

    >>> check_numbers({"epochs": 0}, {"epochs": (int, 1, 100)})
    Traceback (most recent call last):
    spcp.errors.InputError: epochs = 0 must be a whole number, from 1 to 100
    """
    for name, (kind, low, high) in rules.items():
        value = values.get(name)
        right = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
        if not right or not low <= value <= high:  # type: ignore[operator]
            what = "a whole number" if kind is int else "a number"
            limit = f"at least {low:g}" if high >= LARGEST else f"from {low:g} to {high:g}"
            raise InputError(f"{name} = {value!r:.60} must be {what}" + (f", {limit}" if low > -LARGEST else ""))


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question after the closest of the names, to end a clause about one that does not exist; or nothing.

    >>> did_you_mean("enrgy", ["msp", "energy"])
    " (did you mean 'energy'?)"
    """
    close = difflib.get_close_matches(name.lower(), names, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def need(module: str, package: str, extra: str = "data") -> ModuleType:
    """Import an optional dependency, or raise an error that says what to install.

    >>> need("json", "json").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'spcp[{extra}]'") from error
