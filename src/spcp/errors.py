"""The errors that users meet: one sentence that names the input, what is wrong with it, and what to do."""

from __future__ import annotations

import importlib
from types import ModuleType


class InputError(ValueError):
    """The user's input (a file, a name, a setting) is invalid; the message says what to do."""


class TrainingError(RuntimeError):
    """A run cannot continue; the message says where it stopped and what is left."""


def need(module: str, package: str, extra: str = "data") -> ModuleType:
    """Import an optional dependency, or raise an error that says what to install.

    >>> need("json", "json").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'spcp[{extra}]'") from error
