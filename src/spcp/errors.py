"""What users hand in and cannot be used: one sentence that names the input and the cure."""

from __future__ import annotations

import importlib
from types import ModuleType


class InputError(ValueError):
    """Something of the user's (a file, a name, a setting) cannot be used; the message says what to do."""


class TrainingError(RuntimeError):
    """A run that cannot go on; the message says where it stopped and what is left."""


def need(module: str, package: str, extra: str = "data") -> ModuleType:
    """Import an optional dependency, or say what to install.

    >>> need("json", "json").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'spcp[{extra}]'") from error
