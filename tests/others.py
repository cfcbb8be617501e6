"""Other people's libraries, which tests use where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import pytest


def imported(name: str) -> ModuleType:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed: run `make integrations`")
    return importlib.import_module(name)
