from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

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


def test_a_model_is_trained_adopted_and_exported(run: Spcp, photos: Path, model_name: str, tmp_path: Path) -> None:
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
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, "model.pt2")
    exported = run("adopt", "model.pt2", *data, "--out", "runs/exported")
    assert exported.code == 0, exported.err
    same = {"adopted": model_name, "exported": "model.pt2"}
    rows = [run("detect", photos / "ood", "-r", f"runs/{key}", "--model", name).rows() for key, name in same.items()]
    for left, right in zip(*rows, strict=True):
        assert left["is_ood"] == right["is_ood"]
        assert float(left["score"]) == pytest.approx(float(right["score"]), abs=1e-4)
    report = run("patterns", "runs/adopted", "--out", "patterns", "--json", *code)
    assert json.loads(report.out)[0]["arm"].startswith("plain")


def test_files_do_not_run_code(
    run: Spcp, trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that somebody else's file asks for is not built; nor is a library in the current folder."""
    folder = tmp_path / "foreign"
    shutil.copytree(trained, folder)
    config = json.loads((folder / "config.json").read_text()) | {"network": "evil:boom", "width": None}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("evil.py", "numpy.py"):
        (tmp_path / name).write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    result = run("calibrate", folder)
    assert (result.code, "is code" in result.err) == (2, True)
    subprocess.run([sys.executable, "-m", "spcp.cli", "methods"], check=True, capture_output=True, cwd=photos)
    assert not (tmp_path / "ran").exists()


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


def test_programs_that_cannot_be_adopted(run: Spcp, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.pt2").write_bytes(b"no archive")
    with zipfile.ZipFile(tmp_path / "pickle.pt2", "w") as archive:
        archive.writestr("m/data/weights/model_weights_config.json", '{"config": {"w": {"use_pickle": true}}}')
    for name in ("bad", "pickle", "none"):
        result = run("adopt", tmp_path / f"{name}.pt2", "--id", photos / "id", "--size", 16, "--out", tmp_path / "out")
        assert result.code == 2
        assert f"{name}.pt2: " in result.err
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
