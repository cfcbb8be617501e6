from __future__ import annotations

import contextlib
import json
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from spcp.runs import Run

from . import Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")

MODEL = """
from torch import nn

def build(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.ReLU(), nn.Linear(16, num_classes))
"""


@pytest.fixture
def model_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"model_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return f"{name}:build"


def test_a_model_is_trained_and_adopted(run: Spcp, photos: Path, model_name: str, tmp_path: Path) -> None:
    data = ["--id", photos / "id", "--size", 16]
    result = run("train", *data, "--model", model_name, "--epochs", 1, "--out", "runs/trained")
    assert result.code == 0, result.err
    code = ["--model", model_name]
    for command in (["detect", photos / "ood", "--run", "runs/trained"], ["calibrate", "runs/trained"]):
        assert (run(*command).code, run(*command, *code).code) == (2, 0)
    torch.manual_seed(1)
    model = __import__(model_name.split(":")[0]).build(2)
    save_file(model.state_dict(), "weights.safetensors")
    adopted = run("adopt", model_name, "--weights", "weights.safetensors", *data, "--out", "runs/adopted")
    assert adopted.code == 0, adopted.err
    network = Run.open("runs/adopted", network=model_name).load().network
    x = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(network(x), model(x))
    report = run("patterns", "runs/adopted", "--out", "patterns", "--json", *code)
    assert json.loads(report.out)[0]["arm"].startswith("plain")


def test_a_name_that_was_trusted_elsewhere_is_not_trusted_here(
    run: Spcp, photos: Path, model_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with a run and the code it asks for: the code runs only if the same call names it."""
    module, mine = model_name.split(":")[0], tmp_path / "runs" / "mine"
    data = ["--id", photos / "id", "--size", 16]
    assert run("adopt", model_name, *data, "--out", mine).code == 0
    assert run("detect", photos / "ood", "--run", mine, "--model", model_name).code == 0
    del sys.modules[module]
    foreign = tmp_path / "foreign"
    shutil.copytree(mine, foreign)
    (tmp_path / f"{module}.py").unlink()
    (foreign / f"{module}.py").write_text(f"__import__('pathlib').Path('ran').touch()\n{MODEL}")
    monkeypatch.chdir(foreign)
    monkeypatch.setenv("SPCP_CACHE", str(foreign))
    for name in ("models.json", "trusted.json"):  # what a cache of somebody else's could hold
        (foreign / name).write_text(json.dumps({model_name: True}))
    commands = (
        ["detect", photos / "ood", "--run", foreign],
        ["detect", photos / "ood", "--run", foreign / "detector.safetensors"],
        ["eval", foreign],
        ["calibrate", foreign],
        ["patterns", foreign, "--out", tmp_path / "patterns"],
        ["report", foreign, "--out", tmp_path / "report"],
    )
    for command in commands:
        result = run(*command)
        assert (result.code, f"{model_name}: is code, which a file asks to run" in result.err) == (2, True), result.err
    assert not (foreign / "ran").exists()
    other = run("detect", photos / "ood", "--run", foreign, "--model", "spcp.networks:cnn")
    assert (other.code, "name that one" in other.err) == (2, True)
    assert not (foreign / "ran").exists()
    assert run("detect", photos / "ood", "--run", foreign, "--model", model_name).code == 0
    assert (foreign / "ran").exists()


def test_libraries_are_not_looked_for_in_the_current_folder(tmp_path: Path) -> None:
    """Not even while a model is named: its package is installed, so the folder is not searched."""
    for name in ("numpy", "torch", "typer", "rich", "safetensors", "spcp", "sitecustomize", "triton", "soundfile"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')")
    named = "import sys; from spcp.networks import load_model; load_model('spcp.networks:cnn', 3, (1, 12, 12)); "
    python = [sys.executable, "-P"]  # as the script `spcp`: without the current folder
    subprocess.run([*python, "-m", "spcp.cli", "methods"], check=True, capture_output=True, cwd=tmp_path)
    found = subprocess.run([*python, "-c", f"{named} print(sys.path)"], check=True, capture_output=True, cwd=tmp_path)
    assert not (tmp_path / "ran").exists()
    assert str(tmp_path).encode() not in found.stdout


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(1))",
            "more after its last",
        ),
        (
            "nn.Sequential(nn.Flatten(), nn.Linear(700, 8), nn.ReLU(), nn.Linear(8, 2))",
            "cannot be run on samples (3, 16",
        ),
        ("nn.Sequential(nn.Flatten())", "cannot be run"),
        ("nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, 5))", "has 5 outputs"),
        ("3", "returns a int"),
    ],
)
def test_models_that_cannot_be_adopted(
    run: Spcp, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"wrong_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"from torch import nn\ndef build():\n    return {body}\n")
    result = run("adopt", f"{name}:build", "--id", photos / "id", "--size", 16, "--out", "out")
    assert (result.code, message in result.err) == (2, True), result.err
    assert not (tmp_path / "out").exists()


BROKEN = """
print("importing")
from torch import Tensor, nn

class Chatty(nn.Sequential):
    def forward(self, x):
        print("forward")
        if self.training and BREAKS and isinstance(x, Tensor):  # not when it is traced
            return x.no_such_thing
        return super().forward(x)

BREAKS = False

def chatty(num_classes):
    print("building")
    return Chatty(nn.Flatten(), nn.Linear(768, 16), nn.ReLU(), nn.Linear(16, num_classes))

def breaks(num_classes):
    global BREAKS
    BREAKS = True
    return chatty(num_classes)

def fails():
    raise KeyError("weights.bin")

def wants(num_classes, depth):
    return None
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"broken_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(BROKEN)
    (tmp_path / f"{name}_too.py").write_text("import a_library_that_is_missing")
    monkeypatch.chdir(tmp_path)
    return name


def test_what_a_model_prints_is_no_result(run: Spcp, photos: Path, broken: str) -> None:
    code = f"{broken}:chatty"
    result = run("adopt", code, "--id", photos / "id", "--size", 16, "--out", "run")
    assert (result.code, result.out) == (0, ""), result.err
    assert {"importing", "building", "forward"} <= set(result.err.split())
    detected = run("detect", photos / "ood", "--run", "run", "--model", code)
    assert "forward" in detected.err
    assert len(detected.rows()) == 30
    assert detected.out.startswith("file,is_ood")
    assert len(json.loads(run("calibrate", "run", "--model", code, "--json").out)) == 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fails", "fails failed: KeyError: 'weights.bin' ({file}, line 24, in fails)"),
        ("wants", "needs num_classes, depth; write a function that needs `num_classes` or nothing"),
        ("nothing", "cannot be called (module '{module}' has no attribute 'nothing')"),
    ],
)
def test_the_errors_of_a_builder_are_its_own(
    run: Spcp, photos: Path, broken: str, tmp_path: Path, function: str, message: str
) -> None:
    result = run("adopt", f"{broken}:{function}", "--id", photos / "id", "--size", 16, "--out", "run")
    assert result.code == 2
    assert message.format(file=tmp_path / f"{broken}.py", module=broken) in result.err
    assert "bug in spcp" not in result.err
    assert not (tmp_path / "run").exists()


def test_a_model_that_fails_in_training_is_named(run: Spcp, photos: Path, broken: str, tmp_path: Path) -> None:
    result = run("train", "--id", photos / "id", "--size", 16, "--model", f"{broken}:breaks", "--out", "run")
    assert result.code == 2
    assert f"{tmp_path / broken}.py, line 9, in forward: AttributeError" in result.err
    assert "not from spcp" in result.err


def test_modules_that_are_not_there(run: Spcp, photos: Path, broken: str, tmp_path: Path) -> None:
    """The sentence says which module is missing, and where it was looked for."""
    given = ["--id", photos / "id", "--size", 16, "--out", "run"]
    result = run("adopt", "no_such_module.models:build", *given)
    assert result.code == 2
    assert f"there is no module 'no_such_module' in {tmp_path} or among the packages of {sys.prefix}" in result.err
    other = run("adopt", f"{broken}_too:build", *given)
    assert other.code == 2
    assert f"{broken}_too cannot be imported: ModuleNotFoundError: No module named 'a_library" in other.err


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def test_files_that_may_run_code_are_not_read(
    run: Spcp, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of torch.export whose weights are a pickle, in spellings that a filter would miss, and a checkpoint."""
    monkeypatch.chdir(tmp_path)
    data = ["--id", photos / "id", "--size", 16, "--out", tmp_path / "out"]
    x = torch.randn(2, 3, 16, 16)
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 2))
    torch.export.save(torch.export.export(model, (x,)), "plain.pt2")
    for i, flag in enumerate(('"use_pickle": true', '"use_pickle":true', '"use_pickle": 1')):
        with zipfile.ZipFile("plain.pt2") as plain, zipfile.ZipFile(f"{i}.pt2", "w") as hostile:
            for entry in plain.namelist():
                content = plain.read(entry)
                if entry.endswith("_weights_config.json"):
                    content = re.sub(rb'"use_pickle": *false', flag.encode(), content)
                elif "/weights/weight_" in entry:
                    content = pickle.dumps(Bomb())
                hostile.writestr(entry, content)
    with contextlib.suppress(Exception):
        torch.export.load("0.pt2")
    assert Path("ran").exists(), "these files do nothing to torch's own loader; then they test nothing here"
    Path("ran").unlink()
    Path("model.pt").write_bytes(pickle.dumps(Bomb()))
    for name in ("plain.pt2", "0.pt2", "1.pt2", "2.pt2", "model.pt"):
        result = run("adopt", name, *data)
        assert (result.code, f"{name}: may run code" in result.err) == (2, True), result.err
        weights = run("train", *data, "--epochs", 1, "--weights", name)
        assert (weights.code, f"{name}: " in weights.err) == (2, True), weights.err
    assert not Path("ran").exists()
    assert not Path("out").exists()
