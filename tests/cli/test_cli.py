"""The command line as its users see it: what goes in, what comes out, and the exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import spcp
from spcp import cli, training
from spcp.methods import METHODS
from spcp.scores import SCORES

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


class Said(NamedTuple):
    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out)))


Spcp = Callable[..., Said]


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Spcp:
    """Runs `spcp` in this process."""
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))

    def command(*arguments: object, stdin: str = "") -> Said:
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
        return Said(code, out, err)

    return command


def paint(path: Path, seed: int, bright: int) -> None:
    """A noisy picture, bright in its left or right half."""
    pixels = np.random.default_rng(seed).integers(0, 90, (16, 16, 3), dtype=np.uint8)
    pixels[:, 8 * bright : 8 * bright + 8] += 150
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that are easily told apart, and something odd."""
    folder = tmp_path_factory.mktemp("photos")
    for i in range(400):
        paint(folder / "known" / ("left", "right")[i % 2] / f"{i}.png", i, i % 2)
    for i in range(30):
        pixels = np.full((16, 16, 3), 255 * (i % 2), dtype=np.uint8)
        (folder / "odd").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "odd" / f"{i}.png")
    return folder


SMALL = ("--network", "cnn", "--width", 4, "--size", 16, "--epochs", 2, "--batch-size", 50)
SMALL += ("--precision", os.environ.get("SPCP_TEST_PRECISION", "32-true"))  # the test matrix asks for bf16-mixed too


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on folders of one's own, by the command line alone."""
    folder = tmp_path_factory.mktemp("run") / "own"
    known = ["--id", photos / "known", "--ood", f"plain={photos / 'odd'}", "--ood-val", "gaussian"]
    arguments = ["train", *known, *SMALL, "--rho-norm", 0.3, "--out", folder, "--quiet"]
    done = subprocess.run([sys.executable, "-m", "spcp.cli", *map(str, arguments)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # --quiet is quiet
    return folder


def test_help_teaches_and_is_light() -> None:
    code = (
        "import sys; sys.argv = ['spcp', '--help']\nfrom spcp import cli\n"
        "try: cli.main()\nfinally: print('HEAVY', [n for n in ('torch', 'numpy', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("demo", "train", "eval", "tune", "calibrate", "detect", "patterns", "report", "data", "methods"):
        assert f" {command} " in done.stdout, command
    assert "HEAVY []" in done.stdout


def test_version_and_no_arguments(run: Spcp) -> None:
    assert run("--version") == (0, f"{spcp.__version__}\n", "")
    assert "Usage: spcp [OPTIONS] COMMAND" in run().out


def test_a_run_holds_all_that_is_needed(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "inputs.json", "benchmark.toml", "last.safetensors", "detector.safetensors"} <= names
    config = training.read_config(trained)
    assert (config.method, config.options["rho_norm"], config.network, config.epochs) == ("spcp", 0.3, "cnn", 2)
    assert training.benchmark_of(trained).class_names == ("left", "right")


def test_the_same_command_goes_on(run: Spcp, trained: Path, photos: Path) -> None:
    before = (trained / "last.safetensors").stat().st_mtime_ns
    known = ["--id", photos / "known", "--ood", f"plain={photos / 'odd'}", "--ood-val", "gaussian"]
    said = run("train", *known, *SMALL, "--rho-norm", 0.3, "--out", trained)
    assert said.code == 0
    assert (trained / "last.safetensors").stat().st_mtime_ns == before
    other = run("train", "--id", photos / "known", *SMALL, "--out", trained)
    assert other.code == 2
    assert "other data" in other.err


def test_detect_reads_files_folders_patterns_and_lists(run: Spcp, trained: Path, photos: Path) -> None:
    known, odd = photos / "known" / "left", photos / "odd"
    said = run("detect", known, odd, "--run", trained)
    rows = said.rows()
    assert said.code == 0
    assert len(rows) == 230
    assert {row["class"] for row in rows} <= {"left", "right"}
    assert sum(row["verdict"] == "odd" for row in rows[:200]) <= 30  # known: 5 % in expectation
    for row in rows:  # the verdict is the p-value's
        assert (row["verdict"] == "odd") == (float(row["p_value"]) <= 0.05)
    patterns = run("detect", f"{known}/1*.png", "--run", trained).rows()
    assert {row["file"] for row in patterns} == {
        row["file"] for row in rows if Path(row["file"]).name.startswith("1") and "left" in row["file"]
    }
    listed = run("detect", "-", "--run", trained, stdin="\n".join(row["file"] for row in patterns)).rows()
    assert listed == patterns
    (one,) = json.loads(run("detect", known / "0.png", "--run", trained, "--json").out)
    assert one["file"] == str(known / "0.png")
    assert one["score"] == pytest.approx(float(next(row for row in rows if row["file"] == one["file"])["score"]))


def test_detect_needs_one_file_alone(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    """Neither the run nor the data: it is all in the detector's file."""
    alone = shutil.copy(trained / "detector.safetensors", tmp_path / "mine.safetensors")
    picture = shutil.copy(photos / "known" / "left" / "0.png", tmp_path)
    there, here = (run("detect", picture, "--run", place).rows() for place in (trained, alone))
    assert here == there


def test_detect_judges_what_can_be_read(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes((photos / "odd" / "0.png").read_bytes()[:50])
    for name in ("a.png", "c.png"):
        shutil.copy(photos / "known" / "left" / "0.png", tmp_path / name)
    said = run("detect", tmp_path, "--run", trained)
    assert said.code == 1
    assert [row["verdict"] == "unreadable" for row in said.rows()] == [False, True, False]
    assert "1 could not be read" in said.err
    only = run("detect", tmp_path / "b.png", "--run", trained)
    assert (only.code, only.rows()[0]["verdict"]) == (1, "unreadable")


def test_detect_takes_the_latest_run(
    run: Spcp, trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nothing = run("detect", photos / "odd")
    assert nothing.code == 2
    assert "spcp train" in nothing.err
    shutil.copytree(trained, tmp_path / "runs" / "mine")
    said = run("detect", photos / "odd")
    assert said.code == 0
    assert "run: runs/mine" in said.err
    (tmp_path / "runs" / "mine" / "detector.safetensors").unlink()
    bare = run("detect", photos / "odd", "--run", "runs/mine")
    assert bare.code == 2
    assert "spcp calibrate runs/mine" in bare.err
    assert "no calibrated run" in run("detect", photos / "odd").err


def test_eval_prints_what_evaluate_finds(run: Spcp, trained: Path, tmp_path: Path) -> None:
    expected = spcp.evaluate(trained, detectors=["energy", "msp"])
    said = run("eval", trained, "-d", "energy,msp", "--out", tmp_path / "all.csv")
    assert [row["detector"] for row in said.rows()] == ["energy", "energy", "msp", "msp"]
    for row in said.rows():
        found = expected.get(row["detector"], row["group"], row["set"])
        assert float(row["AUROC"]) == pytest.approx(found["auroc"], abs=0.005)
    assert "share of ID that is flagged" in said.err  # the convention
    written = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert float(written[0]["aupr_in"]) == pytest.approx(expected.rows[0]["aupr_in"])
    assert json.loads(run("eval", trained, "-d", "energy", "--json").out)[0]["fpr95_id"] >= 0


def test_calibrate_says_what_it_flags(run: Spcp, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    said = run("calibrate", folder, "--alpha", 0.1, "--detector", "msp")
    assert [row["set"] for row in said.rows()] == ["test", "far/plain"]
    detector, inputs = spcp.decision.load_decision(folder)
    assert (detector.alpha, inputs.class_names) == (0.1, ("left", "right"))
    few = run("calibrate", folder, "--alpha", 0.001)
    assert few.code == 2
    assert "at least 999 are needed" in few.err


def test_tune_chooses_on_validation_data(run: Spcp, photos: Path, tmp_path: Path) -> None:
    arguments = ["tune", "--id", photos / "known", *SMALL, "--grid", "0,0.2,1", "--seeds", "0,1", "-o", tmp_path / "t"]
    said = run(*arguments)
    rows = said.rows()
    assert [row["rho_norm"] for row in rows] == ["0.0", "0.2", "1.0"]
    best = max(rows, key=lambda row: float(row["validation_auroc"]))
    assert [row["chosen"] for row in rows] == ["*" if row is best else "" for row in rows]
    assert f"rho_norm {float(best['rho_norm']):g}" in said.err
    weights = list((tmp_path / "t").rglob("last.safetensors"))
    assert len(weights) == 6
    times = {path: path.stat().st_mtime_ns for path in weights}
    assert run(*arguments).rows() == rows
    assert times == {path: path.stat().st_mtime_ns for path in weights}  # nothing was trained again
    assert training.read_config(tmp_path / "t" / "rho_norm-0" / "seed-1").method == "plain"


MODEL = """
from torch import nn

def build(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.ReLU(), nn.Linear(16, num_classes))
"""


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return f"{name}:build"


def test_a_model_of_ones_own(run: Spcp, photos: Path, own_model: str, tmp_path: Path) -> None:
    data = ["--id", photos / "known", "--size", 16]
    said = run("train", *data, "--model", own_model, "--epochs", 1, "--out", "runs/own")
    assert said.code == 0, said.err
    assert run("detect", photos / "odd", "--run", "runs/own").code == 0
    torch.manual_seed(1)
    model = __import__(own_model.split(":")[0]).build(2)
    save_file(model.state_dict(), "weights.safetensors")
    adopted = run("adopt", own_model, "--weights", "weights.safetensors", *data, "--out", "runs/adopted")
    assert adopted.code == 0, adopted.err
    network, _ = training.load_network("runs/adopted")
    x = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(network(x), model(x))
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, "model.pt2")
    exported = run("adopt", "model.pt2", *data, "--out", "runs/exported")
    assert exported.code == 0, exported.err
    same = [run("detect", photos / "odd", "--run", f"runs/{name}").rows() for name in ("adopted", "exported")]
    for left, right in zip(*same, strict=True):
        assert left["verdict"] == right["verdict"]
        assert float(left["score"]) == pytest.approx(float(right["score"]), abs=1e-4)
    report = run("patterns", "runs/adopted", "--out", "patterns", "--json")
    assert json.loads(report.out)[0]["arm"].startswith("plain")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "-b", "cifar11"], "did you mean cifar10"),
        (["train", "-m", "spcpp"], "no method 'spcpp'; there are plain"),
        (["train", "--id", "nowhere"], "nowhere: there is no such file or folder"),
        (["train", "--network", "resnet19"], "no network 'resnet19'"),
        (["train", "--option", "tau"], "must be KEY=VALUE"),
        (["train", "-m", "plain", "--rho-norm", "1"], "choose spcp"),
        (["train", "--rho-norm", "much"], "--rho-norm much: must be a number, or auto"),
        (["train", "--epochs", "0"], "epochs = 0"),
        (["train", "--alpha", "5"], "--alpha 5: must lie between 0 and 1"),
        (["train", "--precision", "foo"], "Precision 'foo' is invalid"),
        (["train", "--ood", "cars=cars"], "name it with --id"),
        (["train", "--model", "no.such:thing"], "cannot be imported"),
        (["train", "--weights", "model.pth"], "is a pickle"),
        (["tune", "-m", "plain"], "has no rho_norm to tune"),
        (["tune", "--grid", "a,b"], "numbers with commas"),
        (["eval", "nowhere"], "nowhere/config.json: there is no such file"),
        (["calibrate", "nowhere"], "nowhere/config.json: there is no such file"),
        (["detect", "nowhere.png"], "nowhere.png: there is no such file or folder"),
        (["detect", "*.png"], "no file fits"),
        (["report", "nowhere"], "nowhere/config.json"),
        (["reproduce", "everything"], "no experiment 'everything'; there are cifar10"),
        (["data", "download", "cifar11"], "There is no data set 'cifar11'"),
        (["train", "--no-such-option"], "No such option"),
        (["nothing"], "No such command"),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_code_2(
    run: Spcp, arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = run(*arguments)
    assert said.code == 2
    assert says in " ".join(said.err.split())
    assert said.out == ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # nothing half-written


def test_what_there_is(run: Spcp) -> None:
    methods, detectors = run("methods").rows(), json.loads(run("detectors", "--json").out)
    assert [row["method"] for row in methods] == list(METHODS)
    assert [row["detector"] for row in detectors] == list(SCORES)
    assert all(row["paper"] for row in detectors)
    assert "cifar10" in [row["name"] for row in run("data", "list").rows()]


def test_verify_fails_with_1(run: Spcp, tmp_path: Path) -> None:
    said = run("data", "verify", "mnist", "--root", tmp_path)
    assert said.code == 2  # nothing was fetched


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left", "x"), 1)])
def test_what_goes_wrong_elsewhere(run: Spcp, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    said = run("methods")
    assert said.code == code
    assert said.err.startswith("spcp: ")


def test_a_reader_that_has_seen_enough() -> None:
    command = f"{sys.executable} -m spcp.cli detectors | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("detector,formula")


def test_a_terminal_gets_a_table(run: Spcp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out = run("methods").out
    assert "┃" in out
    assert "\x1b[3" not in out  # no colours


def test_the_share_that_is_cut_follows_the_number_of_classes(run: Spcp, photos: Path, tmp_path: Path) -> None:
    said = run("train", "--id", photos / "known", *SMALL, "--out", tmp_path / "r")
    assert "rho_norm: 0.2 by default" in said.err
    assert training.read_config(tmp_path / "r").options["rho_norm"] == 0.2
    (tmp_path / "own.toml").write_text(f"[id]\npath = '{photos / 'known'}'\n[transform]\nsize = 16\n")
    small = [own for own in SMALL if own not in ("--size", 16)]
    assert run("train", "-b", tmp_path / "own.toml", *small, "--out", tmp_path / "t").code == 0
    assert training.read_config(tmp_path / "t").options["rho_norm"] == 0.2


def test_what_was_learned_from_is_not_calibrated_on(run: Spcp, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    whole = len(training.benchmark_of(folder).val or ())
    for arguments, count in (
        (["-d", "energy"], whole),
        (["-d", "react"], whole // 2),
        (["-d", "gen", "--search"], whole // 2),
    ):
        assert run("calibrate", folder, *arguments).code == 0
        assert len(spcp.decision.load_decision(folder)[0].sorted_scores) == count


def test_seeds_on_own_data_are_taken_together(run: Spcp, photos: Path, tmp_path: Path) -> None:
    """Each run has its own description of the data, but it is the same data."""
    data = ["--id", photos / "known", "--ood", f"plain={photos / 'odd'}", *SMALL]
    runs = [tmp_path / f"{method}-{seed}" for method in ("plain", "spcp") for seed in (0, 1)]
    for folder in runs:
        method, seed = folder.name.split("-")
        assert run("train", *data, "-m", method, "--seed", seed, "--out", folder).code == 0
    (tmp_path / "no-run").mkdir()
    said = run("report", *runs, tmp_path / "no-run", "--out", tmp_path / "report", "-d", "energy,msp")
    assert "left out" in said.err
    assert said.out == f"{tmp_path / 'report' / 'report.html'}\n"
    rows = list(csv.DictReader((tmp_path / "report" / "results.csv").read_text().splitlines()))
    assert {(row["arm"], row["seed"]) for row in rows} == {
        (arm, seed) for arm in ("plain", "SPCP (rho_norm 0.2)") for seed in ("0", "1")
    }
    assert run("train", *data, "--size", 12, "-m", "plain", "--out", tmp_path / "smaller").code == 0
    mixed = run("report", runs[0], tmp_path / "smaller", "--out", tmp_path / "mixed")
    assert mixed.code == 2
    assert "is on other data" in mixed.err
    assert not (tmp_path / "mixed").exists()


def test_names_and_folders_of_all_kinds(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    source = photos / "known" / "left" / "0.png"
    for name in ("a[1].png", "b c.png", "sub/deep/d.PNG", "é.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tmp_path / name)
    rows = run("detect", tmp_path, "--run", trained).rows()
    assert {Path(row["file"]).name for row in rows} == {"a[1].png", "b c.png", "d.PNG", "é.png"}
    assert len({row["score"] for row in rows}) == 1
    assert len(run("detect", f"{tmp_path}/*.png", "--run", trained).rows()) == 3
    assert len(run("detect", tmp_path / "a[1].png", "--run", trained).rows()) == 1


def test_arrays_are_judged_row_by_row(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    picture = photos / "known" / "left" / "0.png"
    pixels = np.stack([np.asarray(Image.open(picture))] * 3).transpose(0, 3, 1, 2)
    np.savez(tmp_path / "some.npz", images=pixels)
    (tmp_path / "bad.npz").write_bytes(b"no array")
    said = run("detect", tmp_path / "some.npz", tmp_path / "bad.npz", picture, "--run", trained)
    rows = said.rows()
    assert said.code == 1
    assert [row["file"].rpartition("/")[2] for row in rows] == [
        "some.npz[0]",
        "some.npz[1]",
        "some.npz[2]",
        "bad.npz",
        "0.png",
    ]
    assert [row["verdict"] == "unreadable" for row in rows] == [False, False, False, True, False]
    assert float(rows[0]["score"]) == pytest.approx(float(rows[4]["score"]), abs=1e-5)


def test_a_refused_command_leaves_a_run_alone(run: Spcp, trained: Path, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    training.adopt("cnn", folder, spcp.data.load_benchmark("digits"))
    before = sorted(path.name for path in folder.iterdir())
    said = run("train", "--id", photos / "known", *SMALL, "--out", folder)
    assert (said.code, "other data" in said.err) == (2, True)
    assert sorted(path.name for path in folder.iterdir()) == before
    (tmp_path / "file").write_text("")
    assert "is a file" in run("train", "--id", photos / "known", *SMALL, "--out", tmp_path / "file").err


def test_files_do_not_run_code(
    run: Spcp, trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that somebody else's file asks for is not built; nor is a library found in the current folder."""
    folder = tmp_path / "foreign"
    shutil.copytree(trained, folder)
    config = json.loads((folder / "config.json").read_text()) | {"network": "evil:boom", "width": None}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("evil.py", "numpy.py"):
        (tmp_path / name).write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    said = run("calibrate", folder)
    assert (said.code, "is code" in said.err) == (2, True)
    subprocess.run([sys.executable, "-m", "spcp.cli", "methods"], check=True, capture_output=True, cwd=photos)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("body", "says"),
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
    run: Spcp, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"wrong_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"from torch import nn\ndef build():\n    return {body}\n")
    said = run("adopt", f"{name}:build", "--id", photos / "known", "--size", 16, "--out", "out")
    assert (said.code, says in said.err) == (2, True), said.err
    assert not (tmp_path / "out").exists()


def test_programs_that_cannot_be_adopted(run: Spcp, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.pt2").write_bytes(b"no archive")
    with zipfile.ZipFile(tmp_path / "pickle.pt2", "w") as archive:
        archive.writestr("m/data/weights/model_weights_config.json", '{"config": {"w": {"use_pickle": true}}}')
    for name in ("bad", "pickle", "none"):
        said = run("adopt", tmp_path / f"{name}.pt2", "--id", photos / "known", "--size", 16, "--out", tmp_path / "out")
        assert said.code == 2
        assert f"{name}.pt2: " in said.err
    assert not (tmp_path / "out").exists()


def test_embeddings_get_a_network_that_takes_them(run: Spcp, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 3
    np.savez(tmp_path / "known.npz", embeddings=(rng.normal(size=(400, 16)) + y[:, None]).astype(np.float32), labels=y)
    said = run("train", "--id", tmp_path / "known.npz", "--epochs", 1, "--out", tmp_path / "r")
    assert said.code == 0, said.err
    assert training.read_config(tmp_path / "r").network == "mlp"
    np.save(tmp_path / "new.npy", rng.normal(size=(5, 16)).astype(np.float32))
    assert len(run("detect", tmp_path / "new.npy", "--run", tmp_path / "r").rows()) == 5
