"""What is declared is what is tried; and what `make dist` looks for, it finds. `make dist` itself takes minutes."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from distribution import INSTRUCTION_SETS, wrong_in_sdist, wrong_in_wheel

from spcp import compiled

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

FILES = {"setup.py", "docs/index.md", "tests/test_a.py", "src/spcp/a.py", "src/spcp/data/pixels.c", "src/spcp/py.typed"}
ABOUT = "spcp-1.0.dist-info/METADATA"
LIBRARIES = {f"spcp/data/_pixels_{name}.so" for name in INSTRUCTION_SETS}
WHEEL = {"spcp/a.py", "spcp/data/pixels.c", "spcp/py.typed", "spcp.libs/libgomp.so", ABOUT, *LIBRARIES}


def test_a_wheel_is_the_package_with_its_libraries_and_nothing_else() -> None:
    assert wrong_in_wheel(WHEEL, FILES, x86_64=True) == []
    assert wrong_in_wheel(WHEEL - {"spcp/py.typed"}, FILES, x86_64=True) == ["wheel: spcp/py.typed is missing"]
    for name in ("tests/test_a.py", "docs/index.md", "spcp/notes.txt"):
        assert wrong_in_wheel({*WHEEL, name}, FILES, x86_64=True) == [f"wheel: {name} does not belong there"]


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_a_wheel_has_every_instruction_set_of_its_kind_of_processor(name: str) -> None:
    uncompiled = [f"wheel: spcp/data/pixels.c was not compiled for {name}"]
    wheel = WHEEL - {f"spcp/data/_pixels_{name}.so"}
    assert wrong_in_wheel(wheel, FILES, x86_64=True) == uncompiled
    assert wrong_in_wheel(wheel, FILES, x86_64=False) == (uncompiled if name == "default" else [])
    assert INSTRUCTION_SETS == compiled.INSTRUCTION_SETS


def test_an_sdist_has_sources_and_tests() -> None:
    names = {*FILES, "LICENSE", "pyproject.toml"}
    assert wrong_in_sdist(names - {"docs/index.md"}, FILES) == []
    for name in ("setup.py", "tests/test_a.py", "src/spcp/data/pixels.c"):
        assert wrong_in_sdist(names - {name}, FILES) == [f"sdist: {name} is missing"]


def test_every_python_that_is_declared_is_tried() -> None:
    declared = set(re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"])))
    assert f">={min(declared, key=lambda own: int(own[2:]))}" == PROJECT["requires-python"]
    for name in (".github/workflows/ci.yml", "CONTRIBUTING.md"):
        assert declared <= set(re.findall(r"\b3\.\d+\b", (ROOT / name).read_text())), name


def test_the_readme_says_what_is_needed() -> None:
    torch = next(own for own in PROJECT["dependencies"] if own.startswith("torch"))
    needs = f"Python {PROJECT['requires-python'][2:]} or newer, torch {torch.removeprefix('torch>=')} or newer"
    assert needs in (ROOT / "README.md").read_text()


EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def closure(extra: str) -> set[str]:
    """Return the names of all distributions that an extra brings, but for what these need."""
    names = set()
    for requirement in EXTRAS[extra]:
        others = re.fullmatch(r"spcp\[(.+)\]", requirement)
        if others:
            names |= {name for other in others[1].split(",") for name in closure(other)}
        else:
            names.add(re.split(r"[><=; \[]", requirement)[0])
    return names


def test_the_readme_names_every_extra_and_no_other() -> None:
    install = (ROOT / "README.md").read_text().partition("## Install")[2]
    used = {name for names in re.findall(r"'\.\[(.+?)\]'", install) for name in names.split(",")}
    named = used | {name for name in re.findall(r"`(\w+)`", install) if name in EXTRAS}
    assert named == set(EXTRAS) - {"dev", "docs", "integrations"}  # which are for work on the package


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_documented_installation_suffices_for_the_examples(path: Path) -> None:
    """What a script imports is in the extra that the README names; the Trainer wants accelerate, which it imports."""
    there = closure("examples") | {"torch", "numpy", "spcp"}
    distributions = importlib.metadata.packages_distributions()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"spcp"}:
            brought = {own.lower().replace("_", "-") for own in distributions.get(name, [name])}
            assert brought & there, f"{path.name} imports {name}, which '.[examples]' does not bring"
    assert "accelerate" in closure("examples")
    assert "pip install '.[examples]'" in (ROOT / "README.md").read_text()


def test_the_oldest_versions_are_tried_of_all_that_has_a_bound(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    file = ".venv-lowest/constraints.txt"
    subprocess.run(["make", "-s", file], cwd=tmp_path, check=True)
    wanted = {*PROJECT["dependencies"], *(own for extra in EXTRAS.values() for own in extra if ">=" in own)}
    lowest = {re.sub(r"\[.*\]", "", own).replace(">=", "==") for own in wanted}
    assert sorted(lowest) == sorted((tmp_path / file).read_text().splitlines())
    assert "ray==2.60" in lowest
