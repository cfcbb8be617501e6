"""What a run was computed with is on record, and the processor decides nothing but the speed."""

from __future__ import annotations

import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matrix
import processors
import pytest
import timing
import torch
import training_run

from spcp import compiled, config_for, environment, training
from spcp.cli import demo
from spcp.config import Config
from spcp.contributions import native
from spcp.data import native as pixels

KERNELS = Path(native.__file__).parent
LIBRARIES = {"_kernels": KERNELS, "_pixels": Path(pixels.__file__).parent}  # where each is
LOOK = """
import json, torch
from spcp.contributions import clip_contributions, contribution_quantile, native
from spcp.data import native as pixels
from spcp.environment import environment
torch.manual_seed(0)
h, W, b = torch.randn(130, 64), torch.randn(600, 64), torch.randn(600)
numbers = [clip_contributions(x, W, b, 0.5).double().sum().item() for x in (h[:3], h)]
numbers.append(contribution_quantile(h, W, 0.9).double().sum().item())
images, ones = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8), torch.ones(3)
numbers.append(pixels.crop(images, None, None, 0, 0.1 * ones, 0.3 * ones).double().sum().item())
libraries = [each._library and each._library._name for each in (native, pixels)]
print(json.dumps({"libraries": libraries, "numbers": numbers, **environment()}))
"""


def look(**changes: str) -> dict[str, Any]:
    """What a new process computes with."""
    free = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    code = subprocess.run([sys.executable, "-c", LOOK], env=free | changes, capture_output=True, check=True)
    return json.loads(code.stdout)


@pytest.mark.skipif(not native.available(), reason="no C compiler when spcp was installed")
@pytest.mark.parametrize("limit", compiled.INSTRUCTION_SETS)
def test_kernels_are_chosen_at_run_time(limit: str) -> None:
    """Kernels built for more than the processor may run stay unused, and all give the same numbers."""
    if not list(KERNELS.glob(f"_kernels_{limit}*")):
        pytest.skip(f"no kernels for {limit} on this kind of processor")
    usual = look()
    if compiled.INSTRUCTION_SETS.index(limit) > compiled.INSTRUCTION_SETS.index(usual["kernels"]):
        pytest.skip(f"this processor has no {limit}, and torch would use it all the same")
    limited = look(ATEN_CPU_CAPABILITY=limit)
    assert limited["kernels"] == limit
    loaded = [Path(path).name.partition(".")[0] for path in limited["libraries"]]
    assert loaded == [f"{stem}_{limit}" for stem in LIBRARIES]
    assert limited["numbers"] == pytest.approx(usual["numbers"], rel=1e-5)


@pytest.mark.skipif(not native.available(), reason="no C compiler when spcp was installed")
def test_the_next_best_library_is_loaded_if_one_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "instruction_set", lambda: "avx2")
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]  # the tree may hold the libraries of other Pythons too
    shutil.copy(KERNELS / f"_kernels_default{suffix}", tmp_path)
    (tmp_path / f"_kernels_avx2{suffix}").write_bytes(b"damaged")
    stem = tmp_path / "_kernels"
    with pytest.warns(UserWarning, match=r"spcp runs without _kernels_avx2\..*, more slowly: .* Install it anew"):
        library = compiled.load_library(stem, {"spcp_clip": []})
    assert library is not None
    assert compiled.instruction_set_of(library) == "default"
    with pytest.warns(UserWarning, match="spcp runs without") as warned:
        assert compiled.load_library(stem, {"spcp_of_another_version": []}) is None
    assert len(warned) == 2
    assert compiled.load_library(tmp_path / "_other", {}) is None


@pytest.mark.skipif(not native.available(), reason="no C compiler when spcp was installed")
def test_libraries_hold_no_wider_instructions(tmp_path: Path) -> None:
    """What is loaded on a processor without AVX-512, or without AVX, has no such instruction anywhere."""
    for name, wide in (("default", ("%ymm", "%zmm")), ("avx2", ("%zmm",))):
        paths = [path for stem, folder in LIBRARIES.items() for path in folder.glob(f"{stem}_{name}.*")]
        for path in paths:
            try:
                code = subprocess.run(["objdump", "-d", str(path)], capture_output=True, text=True, check=True).stdout
            except FileNotFoundError:
                pytest.skip("objdump is not installed")
            assert "mulss" in code or "mulps" in code  # it was read
            assert not [register for register in wide if register in code], path.name


def test_a_run_records_what_it_was_computed_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, data = training_run.config("spcp", 3), training_run.benchmark(48)
    run = training.train(config, tmp_path / "r", benchmark=data, until=1)
    (record,) = run.environment
    assert record == {"epoch": 0, **environment.environment()}
    assert record["threads"] == torch.get_num_threads()
    assert run.config.precision == training_run.PRECISION
    training.train(config, run.folder, benchmark=data, until=2)
    assert len(run.environment) == 1  # on the same machine
    monkeypatch.setattr("spcp.environment.version", lambda: "9.9")
    training.train(config, run.folder, benchmark=data)
    first, second = run.environment
    assert (first["epoch"], second["epoch"], second["spcp"]) == (0, 2, "9.9")
    assert first["spcp"] != "9.9"


def test_the_kernels_on_record_are_those_that_were_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in compiled.INSTRUCTION_SETS:
        monkeypatch.setattr(native, "_library", SimpleNamespace(_name=f"/a_b/_kernels_{name}.cpython-311.so"))
        assert environment.environment()["kernels"] == name
    monkeypatch.setattr(native, "_library", None)
    assert environment.environment()["kernels"] == "not compiled"


def test_the_version_on_record_names_the_commit() -> None:
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        pytest.skip("not a clone")
    head = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    assert f" at {commit}" in str(environment.environment()["spcp"])


def test_limits_and_processes_are_on_record_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert environment.environment().keys() == environment.KINDS.keys()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    record = environment.environment()
    assert (record["onednn_limit"], record["processes"]) == ("avx2", 2)


def test_a_limit_that_is_set_now_is_not_asked_of_older_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    config, data = training_run.config("plain", 1), training_run.benchmark(48)
    run = training.train(config, tmp_path / "r", benchmark=data)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    (record,) = run.environment
    assert "onednn_limit" not in record


def test_the_default_precision_does_not_depend_on_the_processor() -> None:
    assert Config().precision == "32-true"
    assert config_for("cifar10", "spcp").precision == "32-true"


@pytest.mark.parametrize("method", ["plain", "spcp", "cider"])
def test_accuracy_is_that_of_the_network_as_it_is_used(tmp_path: Path, method: str) -> None:
    """In float32, though it was trained in bfloat16, which would decide some samples otherwise."""
    data = training_run.benchmark()
    config = training_run.config(method, 2, precision="bf16-mixed", warmup=0)
    run = training.train(config, tmp_path / "r", benchmark=data)
    model = run.load()
    ((x, y),) = data.loader("val", batch_size=40)
    with torch.no_grad():
        accuracy = (model.outputs(x).predictions == y).float().mean()
    assert run.history[-1]["val_accuracy"] == pytest.approx(float(accuracy))


def test_bfloat16_is_not_announced(tmp_path: Path) -> None:
    arguments = ["train", "-b", "digits", "-m", "plain", "--epochs", "1", "--width", "4", "--precision", "bf16-mixed"]
    done = subprocess.run(
        [sys.executable, "-m", "spcp.cli", *arguments, "--quiet", "--out", str(tmp_path / "r")],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert not re.search("bfloat16|bf16|AMP|precision", done.stderr)  # though it may say that the detector is blind


def test_benchmarks_print_the_versions() -> None:
    record = environment.environment()
    assert f"kernels {record['kernels']}, spcp {record['spcp']}, torch {record['torch']}, " in timing.machine()


RESULTS = Path(__file__).parent.parent / "docs" / "results"


def test_published_results_say_what_they_were_computed_with() -> None:
    tables = {str(path.relative_to(RESULTS)): json.loads(path.read_text()) for path in RESULTS.rglob("*.json")}
    outcomes = {name: table["about"] for name, table in tables.items() if "about" in table}
    assert outcomes
    for name, about in outcomes.items():
        assert isinstance(about.get("precision"), str), name
        record = about.get("environment", {})
        assert not [key for key, kind in environment.KINDS.items() if not isinstance(record.get(key), kind)], name


def test_a_setting_of_the_matrix_inherits_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in matrix.CHANGED:
        monkeypatch.setenv(name, "inherited")
    for setting in matrix.SETTINGS:
        variables = matrix.environment_of(setting)
        assert {name: variables[name] for name in variables if name in matrix.CHANGED} == {
            name: value for name, value in setting.variables.items() if name in matrix.CHANGED
        }
        assert {"OMP_NUM_THREADS": "1", **setting.variables}.items() <= variables.items()
        assert setting.variables.keys() <= {"OMP_NUM_THREADS", *matrix.CHANGED}


def test_a_demo_that_is_free_is_not_limited_by_itself() -> None:
    _, limited, free = processors.arms().values()
    assert demo.PORTABLE.items() <= limited.items()
    assert not demo.PORTABLE.items() & processors.FREE.items()
    if torch.backends.cpu.get_cpu_capability().lower() in compiled.INSTRUCTION_SETS:
        assert demo.PORTABLE.keys() <= free.keys()


def test_the_demo_computes_alike_on_every_processor() -> None:
    """It limits torch to AVX2 before torch is imported, unless the user has chosen otherwise."""
    code = """
from spcp.cli.demo import limit_instructions
limit_instructions()
import torch
print(torch.backends.cpu.get_cpu_capability())
"""
    free = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    for given, expected in (
        ({}, ("AVX2", "DEFAULT", "NO AVX")),
        ({"ATEN_CPU_CAPABILITY": "default"}, ("DEFAULT", "NO AVX")),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code], env=free | given, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() in expected
