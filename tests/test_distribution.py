"""What is declared is what is tried; and what `make dist` looks for, it finds. `make dist` itself takes minutes."""

import re
import tomllib
from pathlib import Path

from distribution import wrong_in_sdist, wrong_in_wheel

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

FILES = {"setup.py", "docs/index.md", "tests/test_a.py", "src/spcp/a.py", "src/spcp/data/pixels.c", "src/spcp/py.typed"}
ABOUT = "spcp-1.0.dist-info/METADATA"
WHEEL = {"spcp/a.py", "spcp/data/pixels.c", "spcp/data/_pixels_avx2.so", "spcp/py.typed", "spcp.libs/libgomp.so", ABOUT}


def test_a_wheel_is_the_package_with_its_libraries_and_nothing_else() -> None:
    assert wrong_in_wheel(WHEEL, FILES) == []
    assert wrong_in_wheel(WHEEL - {"spcp/py.typed"}, FILES) == ["wheel: spcp/py.typed is missing"]
    uncompiled = wrong_in_wheel(WHEEL - {"spcp/data/_pixels_avx2.so"}, FILES)
    assert uncompiled == ["wheel: spcp/data/pixels.c was not compiled"]
    for name in ("tests/test_a.py", "docs/index.md", "spcp/notes.txt"):
        assert wrong_in_wheel({*WHEEL, name}, FILES) == [f"wheel: {name} does not belong there"]


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
