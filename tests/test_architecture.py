"""Data flows one way: no module imports from a room to its right, and no modules import each other in a circle."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "spcp"

# The rooms from left to right, as docs/architecture.md lists them from top to bottom. A module may import from its own
# room and from those before it.
ROOMS = (
    *("errors", "files", "tables", "journal", "progress", "compiled"),
    *("contributions", "environment", "data", "networks", "methods"),
    *("fingerprint", "model", "processes", "moments", "bank", "conformal", "scores", "metrics"),
    *("exported", "export", "detector", "choice"),
    *("config", "runs", "training", "evaluation", "calibration", "shipping", "detection", "engines", "tuning"),
    *("monitoring", "comparison", "integrations", "report", "experiments", "demo", "serving", "cli", "__main__"),
)


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below `spcp`; a package is its `__init__`."""
    names = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


MODULES = modules()


def imports(name: str, path: Path) -> set[str]:
    """The modules of the package that a module imports, anywhere in it."""
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names if alias.name.split(".")[0] == "spcp"]
            found |= {target.partition(".")[2] for target in targets}
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "spcp"):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module or "").split(".")[0 if node.level else 1 :]
            for alias in node.names:
                whole = ".".join(part for part in (*base, alias.name) if part)
                found.add(whole if whole in MODULES else ".".join(part for part in base if part))
    return found & MODULES.keys() - {name, ""}  # the package itself is lazy, and holds the version


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {""}))
def test_imports_go_to_the_left(name: str) -> None:
    room = name.split(".")[0]
    assert room in ROOMS, "a new room: say in ROOMS where it stands"
    wrong = [target for target in imports(name, MODULES[name]) if ROOMS.index(target.split(".")[0]) > ROOMS.index(room)]
    assert not wrong, f"{name} imports {', '.join(wrong)}, to its right"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {}
    for name, path in MODULES.items():
        # A package's __init__ gathers its modules' names; they may ask it for nothing that they bring themselves.
        graph[name] = {target for target in imports(name, path) if not (path.stem == "__init__" and name in target)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_page_lists_every_file_in_this_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    listed = page.partition("## File by file")[2].partition("\ntests/")[0]
    assert tuple(re.findall(r"^  (\w+)(?:/|\.py) ", listed, re.MULTILINE)) == ROOMS
    named = set(re.findall(r"\w+\.(?:py|c|csv)\b", listed))
    files = {path for path in SOURCE.rglob("*.*") if path.suffix in (".py", ".c", ".csv")}
    assert named <= {path.name for path in files}
    by_folder = ("scores", "cli")  # one file a score, one file a command
    missing = [path for path in files if path.name not in named and path.parent.name not in by_folder]
    assert all(path.name.startswith("__") for path in missing), missing
