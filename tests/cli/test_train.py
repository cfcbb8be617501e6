from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from formats import write_image
from others import imported

from spcp import runs
from spcp.data import load_benchmark
from spcp.files import read_tensors, write_tensors
from spcp.runs import Run, adopt

from . import SMALL, TRAINING, Result, Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def test_a_run_holds_all_that_is_needed(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "inputs.json", "benchmark.toml", "last.safetensors", "detector.safetensors"} <= names
    run = Run.open(trained)
    assert (run.config.method, run.config.truncation.rho_norm) == ("spcp", 0.3)
    assert (run.config.network, run.config.epochs) == ("cnn", 2)
    assert run.benchmark().class_names == ("left", "right")


def test_the_same_command_continues(run: Spcp, trained: Path, photos: Path) -> None:
    before = (trained / "last.safetensors").stat().st_mtime_ns
    data = ["--id", photos / "id", "--ood", f"plain={photos / 'ood'}", "--ood-val", "gaussian"]
    result = run("train", *data, *SMALL, "--rho-norm", 0.3, "--out", trained)
    assert result.code == 0
    assert (trained / "last.safetensors").stat().st_mtime_ns == before
    other = run("train", "--id", photos / "id", *SMALL, "--out", trained)
    assert other.code == 2
    assert "other data" in other.err


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a GPU computes in float16")
def test_a_precision_that_is_not_computed_is_refused(run: Spcp, tmp_path: Path) -> None:
    result = run("train", "-b", "digits", "--epochs", 1, "--precision", "16-mixed", "--out", tmp_path / "r")
    assert result.code == 2
    assert "precision 16-mixed: cannot be computed on this device, bf16-mixed can; choose that" in result.err
    assert not (tmp_path / "r").exists()


def test_the_same_command_keeps_a_calibration_of_the_same_weights(
    run: Spcp, trained: Path, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    assert run("calibrate", folder, "--score", "msp", "--alpha", 0.1).code == 0
    train = ["train", "--id", photos / "id", "--ood", f"plain={photos / 'ood'}", "--ood-val", "gaussian", *SMALL]
    train += ["--rho-norm", 0.3, "--out", folder]
    result = run(*train)
    assert (result.code, f"to replace it: spcp calibrate {folder}" in result.err) == (0, True)
    assert Run.open(folder).detector().alpha == 0.1
    detector = folder / "detector.safetensors"
    for other in (detector.read_bytes()[:-1], b""):  # damaged
        detector.write_bytes(other)
        assert run(*train).code == 0
        assert Run.open(folder).detector().alpha == 0.05
    tensors, notes = read_tensors(folder / "last.safetensors")
    tensors["classifier.bias"] += 1  # trained further
    write_tensors(folder / "last.safetensors", tensors, notes)
    assert not Run.open(folder).is_calibrated
    assert "calibrated on" in run(*train).err


def test_rho_norm_follows_the_number_of_classes(run: Spcp, photos: Path, tmp_path: Path) -> None:
    result = run("train", "--id", photos / "id", *SMALL, "--out", tmp_path / "r")
    assert "rho_norm: 0.2 by default" in result.err
    assert Run.open(tmp_path / "r").config.truncation.rho_norm == 0.2
    (tmp_path / "photos.toml").write_text(f"[id]\npath = '{photos / 'id'}'\n[transform]\nsize = 16\n")
    assert run("train", "-b", tmp_path / "photos.toml", *TRAINING, "--out", tmp_path / "t").code == 0
    assert Run.open(tmp_path / "t").config.truncation.rho_norm == 0.2


def test_a_refused_command_leaves_a_run_alone(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    adopt("cnn", folder, load_benchmark("digits"))
    before = sorted(path.name for path in folder.iterdir())
    result = run("train", "--id", photos / "id", *SMALL, "--out", folder)
    assert (result.code, "other data" in result.err) == (2, True)
    assert sorted(path.name for path in folder.iterdir()) == before
    (tmp_path / "file").write_text("")
    assert "is a file" in run("train", "--id", photos / "id", *SMALL, "--out", tmp_path / "file").err


def test_embeddings_get_a_network_that_takes_them(run: Spcp, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 3
    np.savez(tmp_path / "id.npz", embeddings=(rng.normal(size=(400, 16)) + y[:, None]).astype(np.float32), labels=y)
    result = run("train", "--id", tmp_path / "id.npz", "--epochs", 1, "--out", tmp_path / "r")
    assert result.code == 0, result.err
    assert Run.open(tmp_path / "r").config.network == "mlp"
    np.save(tmp_path / "new.npy", rng.normal(size=(5, 16)).astype(np.float32))
    assert len(run("detect", tmp_path / "new.npy", "--run", tmp_path / "r").rows()) == 5


def few(folder: Path, count: int) -> Path:
    """Write a few images in five classes."""
    for i in range(count):
        write_image(folder / "abcde"[i % 5] / f"{i}.png", (16, 16), seed=i)
    return folder


def test_the_sizes_of_the_parts_are_shown_before_training(run: Spcp, tmp_path: Path) -> None:
    folder = few(tmp_path / "id", 250)
    result = run("train", "--id", folder, *SMALL, "--epochs", 1, "--split", "0.6,0.2,0.2", "-o", tmp_path / "r")
    assert result.code == 0
    for line in ("id: 5 classes", "train      150  60 % of each class", "val         50  20 % of each class"):
        assert line in result.err
    assert result.err.index("test        50") < result.err.index("epoch 1/1")
    assert [len(part) for part in Run.open(tmp_path / "r").benchmark().sets().values()] == [150, 50, 50]
    assert "no threshold" not in result.err
    toml = (tmp_path / "r" / "benchmark.toml").rename(tmp_path / "b.toml")
    result = run("train", "-b", toml, *TRAINING, "--epochs", 1, "-o", tmp_path / "t")
    assert result.err.index("val         50  20 % of each class") < result.err.index("epoch 1/1")
    for split in ("0.6,0.2", "much,of,it"):
        result = run("train", "--id", folder, *SMALL, "--split", split, "-o", tmp_path / "wrong")
        assert (result.code, "split" in result.err) == (2, True)


def test_too_few_to_calibrate_is_said_before_training(run: Spcp, tmp_path: Path) -> None:
    result = run("train", "--id", few(tmp_path / "id", 100), *SMALL, "--epochs", 1, "-o", tmp_path / "r")
    warning = (
        "spcp: this run will have no threshold: it has 10 validation samples, and alpha = 0.05 needs 21, 11 more; add "
        "samples, give --split 0.5,0.25,0.25, or take --alpha 0.12\n"
    )
    assert result.err.index(warning) < result.err.index("epoch 1/1")
    assert result.code == 0
    refused = run("calibrate", tmp_path / "r")
    assert refused.code == 2
    assert "10 held-out ID samples are too few for alpha = 0.05; at least 21 are needed" in refused.err
    assert run("calibrate", tmp_path / "r", "--alpha", 0.12).code == 0
    result = run("train", "--id", tmp_path / "id", *SMALL, "--split", "0.5,0.25,0.25", "-o", tmp_path / "more")
    assert "no threshold" not in result.err
    assert (tmp_path / "more" / "detector.safetensors").exists()


@pytest.mark.filterwarnings("default:.*cannot be read and are left out")
def test_bad_files_are_left_out_if_asked_for(
    run: Spcp, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    folder, out = tmp_path / "photos" / "id", tmp_path / "r"
    (folder / "left" / "0.png").write_bytes(b"no")
    train = ["train", "--id", folder, "--ood", f"plain={tmp_path / 'photos' / 'ood'}", *SMALL, "-o", out]
    result = run(*train)
    assert (result.code, "0.png: not a readable image" in result.err, out.exists()) == (2, True, False)
    with monkeypatch.context() as once:  # a warning shown twice does not count here, so look at what reads
        once.setattr(runs, "load_benchmark", lambda *_, **__: pytest.fail("the data is read again to calibrate"))
        result = run(*train, "--bad", "skip")
    assert (result.code, "calibrated on" in result.err) == (0, True)
    assert result.err.count("spcp: id: 1 of 400 files cannot be read and are left out: ") == 1
    assert sum(len(part) for part in Run.open(out).benchmark().sets().values()) == 429
    (tmp_path / "photos" / "ood" / "1.png").write_bytes(b"no")
    described = out / "benchmark.toml"
    described.write_text(described.read_text().replace('bad = "skip"\n', "").replace(str(folder), str(photos / "id")))
    for command in (["eval", out, "-s", "energy"], ["calibrate", out]):
        assert run(*command).code == 2
        assert run(*command, "--bad", "skip").code == 0
    assert run("calibrate", out, "--bad", "skip").rows()[-1]["samples"] == "29"
    tune = ["tune", "--id", folder, *SMALL, "--grid", "0.2", "-o", tmp_path / "t"]
    assert run(*tune).code == 2
    assert run(*tune, "--bad", "skip").code == 0


def test_a_network_that_guesses_is_named(
    run: Spcp, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = "is no better than guessing, so scores mean little"
    assert run("train", "--id", photos / "id", *SMALL, "--no-flip", "-o", tmp_path / "good").code == 0
    assert said not in caplog.text
    run("train", "--id", few(tmp_path / "id", 250), *SMALL, "-o", tmp_path / "noise")
    assert caplog.text.count(said) == 1
    model = "nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes))"
    (tmp_path / "fresh_model.py").write_text(f"from torch import nn\ndef build(num_classes):\n    return {model}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spcp.bank.FeatureBank.accuracy", lambda _: 0.5)
    run("adopt", "fresh_model:build", "--id", photos / "id", "--size", 16, "-o", tmp_path / "adopted")
    assert caplog.text.count(said) == 2
    assert caplog.text.count("the network has random weights: its normalisation layers are as they were made") == 1


def test_rho_norm_goes_with_every_method(
    run: Spcp, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["train", "--id", photos / "id", *SMALL]
    assert run(*data, "-m", "logitnorm", "--rho-norm", 0.2, "--option", "tau=0.1").code == 0
    config = Run.open("runs/id-logitnorm-spcp-0").config
    assert (config.method, config.truncation.rho_norm, config.options) == ("logitnorm", 0.2, {"tau": 0.1})
    assert run(*data, "-m", "logitnorm").code == 0
    assert Run.open("runs/id-logitnorm-0").config.truncation.rho_norm == 0
    assert run(*data, "-m", "fixed", "--option", "initial_threshold=2").code == 0
    assert Run.open("runs/id-fixed-0").config.truncation.initial_threshold == 2


def test_the_network_fits_the_images_and_their_number(run: Spcp, photos: Path, tmp_path: Path) -> None:
    """A network for small images is not trained on large ones, and a new network on few photos is advised against."""
    given = ["--id", photos / "id", "--out", tmp_path / "run", "--epochs", 1]
    result = run("train", *given, "--size", 80, "--network", "resnet18", "--width", 2)
    assert result.code == 2
    assert "resnet18: is for images of 32 pixels, and those of id have 80" in result.err
    assert "resnet18_224; choose that network" in result.err
    assert not (tmp_path / "run").exists()
    result = run("train", *given, "--size", 80, "--width", 2)
    assert result.code == 0, result.err
    assert Run.open(tmp_path / "run").config.network == "resnet18_224"
    assert "images are few to train resnet18_224 from scratch; a pretrained network" in result.err
    assert "--network timm:resnet18.a1_in1k" in result.err


def test_two_processes_do_not_train_one_run(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    """The second is told who does. A killed one blocks nobody; who only reads is not asked to wait."""
    folder = shutil.copytree(trained, tmp_path / "run")
    train = ["train", "--id", photos / "id", "--ood", f"plain={photos / 'ood'}", "--ood-val", "gaussian", *SMALL]
    train += ["--rho-norm", 0.3, "--out", folder]
    code = f"import sys; from pathlib import Path; from spcp.files import locked\nwith locked(Path({str(folder)!r})):"
    command = [sys.executable, "-c", f"{code} print(1, flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        before = {path: path.read_bytes() for path in folder.iterdir()}
        for arguments in (train, ["calibrate", folder]):
            refused = run(*arguments)
            assert (refused.code, refused.out) == (2, "")
            assert f"process {other.pid} on " in refused.err.splitlines()[-1]
        assert {path: path.read_bytes() for path in folder.iterdir()} == before
        assert run("detect", photos / "ood", "--run", folder).code == 0
        other.kill()
    assert run(*train).code == 0
    assert not (folder / ".lock").exists()


def test_a_run_goes_on_after_its_folders_were_moved(run: Spcp, photos: Path, tmp_path: Path) -> None:
    """The same command with the new paths continues it; other data is refused, and changes nothing."""
    first, second = tmp_path / "first", tmp_path / "moved" / "renamed"
    shutil.copytree(photos, first)

    def train(data: Path, out: Path, *more: object) -> Result:
        return run("train", "--id", data / "id", "--ood", f"plain={data / 'ood'}", *SMALL, "--out", out, *more)

    assert train(first, tmp_path / "a").code == 0
    second.parent.mkdir()
    first.rename(second)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "b" / "detector.safetensors").unlink()
    before = (tmp_path / "b" / "last.safetensors").stat().st_mtime_ns
    missing = run("calibrate", tmp_path / "b")
    assert (missing.code, "there is no such file or folder" in missing.err) == (2, True)
    assert train(second, tmp_path / "b").code == 0
    assert (tmp_path / "b" / "last.safetensors").stat().st_mtime_ns == before
    assert run("calibrate", tmp_path / "b").code == 0
    other = tmp_path / "other"
    shutil.copytree(photos, other)
    (other / "id" / "left").rename(other / "id" / "centre")
    contents = {path: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    refused = train(other, tmp_path / "b")
    assert refused.code == 2
    assert "its run is on data with other classes" in refused.err
    assert {path: path.read_bytes() for path in (tmp_path / "b").iterdir()} == contents
    assert train(second, tmp_path / "b", "--near", f"other={other / 'ood'}").code == 2


def test_a_described_benchmark_may_be_moved(run: Spcp, photos: Path, tmp_path: Path) -> None:
    description = "[id]\npath = 'photos/id'\n[transform]\nsize = 16\n"
    for place in ("here", "there"):
        shutil.copytree(photos, tmp_path / place / "photos")
        (tmp_path / place / "mine.toml").write_text(description)
    out = ("--out", tmp_path / "r")
    assert run("train", "-b", tmp_path / "here" / "mine.toml", *TRAINING, *out).code == 0
    shutil.rmtree(tmp_path / "here")
    assert run("train", "-b", tmp_path / "there" / "mine.toml", *TRAINING, *out).code == 0
    assert len(Run.open(tmp_path / "r").history) == 2


def test_training_is_logged_where_asked(run: Spcp, photos: Path, tmp_path: Path) -> None:
    result = run("train", "--id", photos / "id", *SMALL, "--out", tmp_path / "r", "--log", "wandb")
    assert (result.code, "no logger 'wandb'; there are tensorboard, mlflow" in result.err) == (2, True)
    assert not (tmp_path / "r" / "config.json").exists()
    imported("tensorboard")
    assert run("train", "--id", photos / "id", *SMALL, "--out", tmp_path / "r", "--log", "tensorboard").code == 0
    assert list((tmp_path / "r" / "tensorboard").glob("events.*"))


def test_several_seeds(run: Spcp, photos: Path, tmp_path: Path) -> None:
    arguments = ["train", "--id", photos / "id", *SMALL, "--seeds", "3,1", "--jobs", 2, "-o", tmp_path / "several"]
    result = run(*arguments)
    assert result.code == 0
    for seed in (3, 1):
        folder = tmp_path / "several" / f"seed-{seed}"
        own = Run.open(folder)
        assert (own.config.seed, own.environment[0]["threads"], own.is_calibrated) == (seed, 1, True)
        assert own.benchmark().class_names == ("left", "right")
        assert f"run: {folder}\n" in result.err
        assert f" validation samples: {folder / 'detector.safetensors'}\n" in result.err
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert run(*arguments).code == 0
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}  # neither is repeated


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seed", 1, "--seeds", "1,2"], "--seed and --seeds: give one of them"),
        (["--seeds", ","], "--seeds: names no seed; give some, such as 0,1,2"),
        (["--jobs", 2], "--jobs: is for several runs; name their seeds (--seeds 0,1,2)"),
        (["--engine", "ray"], "--engine: is for several runs"),
        (["--address", "a:1", "--seeds", "1,2"], "--address a:1: is that of a Ray cluster; add --engine ray"),
    ],
)
def test_options_of_several_runs(run: Spcp, options: list[object], words: str) -> None:
    result = run("train", *options)
    assert result.code == 2
    assert words in result.err
