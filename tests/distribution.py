"""Builds the wheel and the sdist, looks into them, and uses the wheel as a newcomer would.

    python tests/distribution.py [--full] [WHEEL]

The files go to `dist/`. What is used is the wheel alone, in a new environment in a temporary folder, with the README's
snippet and the command line. `--full` runs the demo as it is, which takes minutes; else it is cut short. A wheel that
is there already is looked into and used as it is.

A wheel is not tied to the processor it was built on: it holds the kernels for several instruction sets, and
`spcp.compiled` loads those that the processor at hand can run.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
INSTRUCTION_SETS = ("default", "avx2", "avx512")  # as in `spcp.compiled`; the first on every kind of processor
QUICK = ("--seeds", "1", "--epochs", "1")  # of the demo

# What the README's snippet takes for granted.
BEFORE = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs, train_loader = 20, [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)]
x_validation, x_new = torch.randn(100, 4), torch.randn(50, 4)
"""
AFTER = """
assert detection.is_ood.shape == (50,)
for native in (spcp.contributions.native, importlib.import_module("spcp.data.native")):
    assert native.available(), f"{native.__name__}: its compiled library cannot be loaded"
print(spcp.__file__)
"""


def main() -> None:
    """Build, look, use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="run the whole demo")
    parser.add_argument("wheel", nargs="?", type=Path, help="default: build one, and an sdist")
    options = parser.parse_args()
    wheel, sdist = (options.wheel.resolve(), None) if options.wheel else build(ROOT / "dist")
    files = tracked()
    wrong = wrong_in_wheel(names_in_wheel(wheel), files, x86_64=wheel.stem.endswith(("x86_64", "amd64")))
    if sdist:
        wrong += wrong_in_sdist(names_in_sdist(sdist), files)
    if wrong:
        sys.exit("\n".join(wrong))
    with tempfile.TemporaryDirectory() as folder:
        use(wheel, Path(folder), () if options.full else QUICK)
    print(f"{wheel.name} is fine")


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel, made from the sdist, and the sdist."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def names_in_wheel(path: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        return set(wheel.namelist())


def names_in_sdist(path: Path) -> set[str]:
    """The files of an sdist, without its one folder."""
    with tarfile.open(path) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def tracked() -> set[str]:
    """The files that belong to the project."""
    return set(run("git", "ls-files").splitlines())


def wrong_in_sdist(names: set[str], files: set[str]) -> list[str]:
    """What the sdist lacks: of the package with its C sources, of the tests, and of what it takes to build it."""
    own = {name for name in files if name.startswith(("src/", "tests/"))}
    return [f"sdist: {name} is missing" for name in sorted({*own, "LICENSE", "pyproject.toml", "setup.py"} - names)]


def wrong_in_wheel(names: set[str], files: set[str], *, x86_64: bool) -> list[str]:
    """What the wheel lacks or has too much: it is the package, its compiled libraries, and what is said about it."""
    own = {name.removeprefix("src/") for name in files if name.startswith("src/")}
    wrong = [f"wheel: {name} is missing" for name in sorted(own - names)]
    libraries = {name for name in names if name.endswith((".so", ".pyd")) or name.startswith("spcp.libs/")}
    for source in sorted(name for name in own if name.endswith(".c")):
        folder, _, file = source.removesuffix(".c").rpartition("/")
        for kind in INSTRUCTION_SETS if x86_64 else INSTRUCTION_SETS[:1]:
            if not any(name.startswith(f"{folder}/_{file}_{kind}.") for name in libraries):
                wrong.append(f"wheel: {source} was not compiled for {kind}")
    about = {name for name in names if re.match(r"spcp-[^/]+\.dist-info/", name)}
    return wrong + [f"wheel: {name} does not belong there" for name in sorted(names - own - libraries - about)]


def use(wheel: Path, folder: Path, demo: tuple[str, ...]) -> None:
    """Install the wheel into a new environment, and run there what the README shows."""
    venv.create(folder / "venv", with_pip=True)
    bin = folder / "venv" / "bin"
    run(bin / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", f"{wheel}[cli,demo]")

    version = run(bin / "spcp", "--version", cwd=folder).strip()
    assert wheel.name.startswith(f"spcp-{version}-"), f"{wheel.name} says that it is {version}"
    tags = run("git", "tag", "--points-at", "HEAD").split()
    assert not tags or f"v{version}" in tags, f"version {version} of {tags}"

    snippet = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    (folder / "snippet.py").write_text(f"{BEFORE}\n{snippet}\nimport importlib\n{AFTER}")
    place = run(bin / "python", "snippet.py", cwd=folder)
    assert Path(place.strip()).is_relative_to(folder / "venv"), f"used {place}, not the wheel"

    run(bin / "spcp", "demo", *demo, cwd=folder)
    assert (folder / "demo" / "report" / "report.html").exists()
    (detector,) = (folder / "demo").glob("**/detector.safetensors")
    picture = shutil.copy(ROOT / "docs" / "showcase.png", folder)
    (result,) = json.loads(run(bin / "spcp", "detect", picture, "--run", detector, "--json", cwd=folder))
    assert result["is_ood"] in (True, False), result


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Standard output of a command; what goes wrong is shown, and ends this one."""
    print("$", *command, file=sys.stderr, flush=True)
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
