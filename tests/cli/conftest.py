from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spcp import cli

from . import SMALL, Result, Spcp


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Spcp:
    """Run `spcp` in this process."""
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))

    def command(*arguments: object, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "argv", ["spcp", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        code = end.value.code
        assert isinstance(code, int)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Result(code, out, err)

    return command


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw two classes, noise that is bright in its left or right half, and plain images, which are OOD."""
    folder = tmp_path_factory.mktemp("photos")
    for name in ("id/left", "id/right", "ood"):
        (folder / name).mkdir(parents=True)
    for i in range(400):
        pixels = np.random.default_rng(i).integers(0, 90, (16, 16, 3), dtype=np.uint8)
        pixels[:, 8 * (i % 2) : 8 * (i % 2) + 8] += 150
        Image.fromarray(pixels).save(folder / "id" / ("left", "right")[i % 2] / f"{i}.png")
    for i in range(30):
        Image.fromarray(np.full((16, 16, 3), 255 * (i % 2), dtype=np.uint8)).save(folder / "ood" / f"{i}.png")
    return folder


@pytest.fixture(scope="session")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on folders of images, by the command line alone."""
    folder = tmp_path_factory.mktemp("run") / "photos"
    data = ["--id", photos / "id", "--ood", f"plain={photos / 'ood'}", "--ood-val", "gaussian"]
    arguments = ["train", *data, *SMALL, "--rho-norm", 0.3, "--out", folder, "--quiet"]
    done = subprocess.run([sys.executable, "-m", "spcp.cli", *map(str, arguments)], capture_output=True, text=True)
    # --quiet shows nothing but problems. Inverted images of a class look like the other, so it may be blind to them.
    said = [line for line in done.stderr.splitlines() if "blind to some inputs" not in line]
    assert (done.returncode, done.stdout, said) == (0, "", [])
    return folder
