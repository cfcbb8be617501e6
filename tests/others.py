"""Other people's libraries, which tests use where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from types import ModuleType

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def imported(name: str) -> ModuleType:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed: run `make integrations`")
    return importlib.import_module(name)
