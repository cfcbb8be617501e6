from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import spcp
from spcp import cli
from spcp.cli.app import command
from spcp.errors import TrainingError

from . import Spcp

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


def test_help_teaches_and_is_light() -> None:
    code = (
        "import sys; sys.argv = ['spcp', '--help']\nfrom spcp import cli\n"
        "try: cli.main()\nfinally: print('HEAVY', [n for n in ('torch', 'numpy', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = (
        "train",
        "tune",
        "eval",
        "calibrate",
        "detect",
        "export",
        "demo",
        "report",
        "patterns",
        "methods",
        "scores",
        "data",
    )
    for name in names:
        assert f" {name} " in done.stdout, name
    assert "2 invalid input" in done.stdout
    assert "HEAVY []" in done.stdout


def test_version_and_no_arguments(run: Spcp) -> None:
    assert run("--version") == (0, f"{spcp.__version__}\n", "")
    assert "Usage: spcp [OPTIONS] COMMAND" in run().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "-b", "cifar11"], "did you mean cifar10"),
        (["train", "-m", "spcpp"], "no method 'spcpp'; there are plain"),
        (["train", "--id", "nowhere"], "nowhere: there is no such file or folder"),
        (["train", "--network", "resnet19"], "no network 'resnet19'"),
        (["train", "--option", "tau"], "must be KEY=VALUE"),
        (["train", "-m", "plain", "--rho-norm", "1"], "choose the method spcp"),
        (["train", "--rho-norm", "much"], "--rho-norm much: must be a number, or auto"),
        (["train", "--epochs", "0"], "epochs = 0"),
        (["train", "--alpha", "5"], "--alpha 5: must lie between 0 and 1"),
        (["train", "--precision", "foo"], "Precision 'foo' is invalid"),
        (["train", "--ood", "cars=cars"], "name it with --id"),
        (["train", "--model", "no.such:thing"], "there is no module 'no'"),
        (["train", "--weights", "model.pth"], "is a pickle"),
        (["train", "--id", "x", "-b", "digits"], "--id and --benchmark: give one of them"),
        (["train", "--model", "a:b", "--network", "cnn"], "--model and --network: give one of them"),
        (["train", "--id", "x", "--ood", "mean=x"], '"mean" is reserved'),
        (["train", "--id", "caf\udce9"], "its name is not UTF-8"),
        (["tune", "--seeds", "0,0"], "--seeds 0,0: give each number once"),
        (["eval", "run", "--which", "first"], "--which first: must be last or best"),
        (["tune", "-m", "plain"], "has no rho_norm to tune"),
        (["tune", "--grid", "a,b"], "numbers separated by commas"),
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
def test_bad_input_gets_a_message_and_exit_code_2(
    run: Spcp, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.code == 2
    assert message in " ".join(result.err.split())
    assert result.out == ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # nothing half-written


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left", "x"), 1),
        (TrainingError("the loss is not finite"), 1),
        (ImportError("this needs timm"), 1),
        (ZeroDivisionError("by zero"), 2),  # as if it came from here, a user's file
    ],
)
def test_failures_have_exit_codes(run: Spcp, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    result = run("methods")
    assert result.code == code
    assert result.err.startswith("spcp: ")
    assert (f"{__file__}, line" in result.err) == isinstance(error, ZeroDivisionError)


def test_a_bug_is_called_one(run: Spcp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spcp.cli.methods.show", None)
    result = run("methods")
    assert (result.code, "This is a bug in spcp; --verbose shows the traceback" in result.err) == (1, True)
    assert "Traceback" not in result.err


def test_a_closed_pipe_is_no_error() -> None:
    script = f"{sys.executable} -m spcp.cli scores | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("score,formula")


def test_a_terminal_gets_a_table(run: Spcp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out = run("methods").out
    assert "┃" in out
    assert "\x1b[3" not in out  # no colours


def test_options_of_a_dataclass_become_options_of_the_command() -> None:
    group, taken = typer.Typer(), []

    @dataclass(frozen=True)
    class Pair:
        left: Annotated[int, typer.Option(help="Left.")] = 1
        right: Annotated[list[str], typer.Option(help="Right.")] = field(default_factory=list)

    def pair_command(name: str, pair: Pair, last: bool = False) -> None:
        taken.append((name, pair, last))

    pair_command.__annotations__ = {"name": str, "pair": Pair, "last": bool}
    command("pair", group)(pair_command)
    CliRunner().invoke(group, ["x", "--right", "a", "--right", "b", "--last"])
    assert taken == [("x", Pair(1, ["a", "b"]), True)]
