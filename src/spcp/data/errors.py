"""What goes wrong with data: one sentence that names the input and the cure."""

from __future__ import annotations

import importlib
from types import ModuleType


class DataError(ValueError):
    """The user's data cannot be used as it is; the message names the file and what to do."""


def need(module: str, package: str, extra: str = "data") -> ModuleType:
    """Import an optional dependency, or say what to install.

    >>> need("json", "json").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'spcp[{extra}]'") from error
