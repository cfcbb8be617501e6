"""Many runs: the same to the bit however they are spread, whatever happens to the processes that train them."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import training_run
from test_progress import terminal

from spcp import Engine, Run, train, tune
from spcp.data import Benchmark
from spcp.engines import runs
from spcp.engines.cluster import connect
from spcp.engines.job import RESTARTS, Job
from spcp.engines.runs import cores, results, run_jobs
from spcp.errors import InputError, TrainingError
from spcp.files import read_tensors
from spcp.training import loop
from spcp.training.state import TrainingState

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")

RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
HERE, POOL, CLUSTER = Engine(), Engine(jobs=2), Engine("ray", jobs=2)
APART = [pytest.param(POOL, id="pool"), pytest.param(CLUSTER, id="ray", marks=RAY)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Keep one cluster for all tests, which find it by themselves."""
    if importlib.util.find_spec("ray") is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent))  # where the jobs below are
        with connect(cores=2):
            yield


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Tune in this process, one run after the other."""
    folder = tmp_path_factory.mktemp("here")
    return folder, _tuned(folder, HERE)


def _tuned(folder: Path, engine: Engine) -> Any:
    config = training_run.config("spcp", 2)
    return tune(config, folder, grid=(0.0, 0.5), seeds=(0, 1), benchmark=training_run.benchmark(48), engine=engine)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "last.safetensors")[0]


def _check_same(one: Path, other: Path) -> None:
    weights = _weights(other)
    assert all(torch.equal(value, weights[name]) for name, value in _weights(one).items())
    histories = [[record | {"seconds": 0} for record in Run.open(folder).history] for folder in (one, other)]
    assert histories[0] == histories[1]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("engine", APART)
def test_every_engine_trains_the_same_to_the_bit(engine: Engine, tuned: tuple[Path, Any], tmp_path: Path) -> None:
    here, expected = tuned
    tuning = _tuned(tmp_path, engine)
    assert [row | {"folder": ""} for row in tuning.rows] == [row | {"folder": ""} for row in expected.rows]
    for row in expected.rows:
        folder = Path(row["folder"])
        _check_same(folder, tmp_path / folder.relative_to(here))
        (environment,) = Run.open(tmp_path / folder.relative_to(here)).environment
        assert environment["threads"] == 1
        assert environment == Run.open(folder).environment[0]


def _train(benchmark: Benchmark, folder: Path, epochs: int, die_at: int = 0) -> int:
    """Train in a process that dies in a step the first time; return from which epoch on this one trained.

    Steps take a second while a file "slow" is beside the folder.
    """
    loop.LOOK = 0.0  # so that every step may be saved
    began = len(Run.open(folder).history) if (folder / "config.json").exists() else 0
    mark, add = folder.with_suffix(".tried"), TrainingState.add

    def slow_add(self: TrainingState, *arguments: torch.Tensor) -> None:
        if (folder.parent / "slow").exists():
            time.sleep(1.0)
        add(self, *arguments)

    if die_at and not mark.exists():
        mark.touch()
        training_run.prepare_to_die("step", die_at)
    elif not die_at:
        TrainingState.add = slow_add  # type: ignore[method-assign]
    try:
        train(training_run.config("spcp", epochs), folder, benchmark=benchmark)
    finally:
        TrainingState.add = add  # type: ignore[method-assign]
    return began


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("engine", APART)
def test_a_run_whose_process_was_killed_goes_on(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has two steps an epoch, and dies in the third epoch; the other run is not disturbed."""
    corners = training_run.benchmark(48)
    jobs = [
        Job(name, _train, (tmp_path / name, 4, die_at), tmp_path / name, 4) for name, die_at in (("a", 6), ("b", 0))
    ]
    assert results(run_jobs(jobs, engine, shared=corners)) == [2, 0]
    if engine is POOL:
        assert "a: its process was killed (SIGKILL); another one goes on from its last state" in capsys.readouterr().err
    with Engine().limited():  # to the threads of the others
        train(training_run.config("spcp", 4), tmp_path / "whole", benchmark=corners)
    for name in ("a", "b"):
        _check_same(tmp_path / "whole", tmp_path / name)


def _die(shared: Any, folder: Path) -> None:
    with (folder / "tries").open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("engine", APART[:1])
def test_a_job_that_kills_every_process_fails_in_the_end(engine: Engine, tmp_path: Path) -> None:
    jobs = [Job("deadly", _die, (tmp_path,)), Job("good", _add, (1, 2))]
    deadly, good = run_jobs(jobs, engine, shared=3)
    assert (tmp_path / "tries").read_text() == "x" * (RESTARTS + 1)
    assert deadly.problem is not None
    assert re.match(r"its process was killed \(SIGKILL\), 4 times; .* take fewer --jobs", deadly.problem)
    assert (deadly.code, good.result) == (1, 6)


def _add(shared: int, *numbers: int) -> int:
    print("what a model prints")
    logging.getLogger("spcp").warning("%d numbers", len(numbers))
    return shared + sum(numbers)


def _fail(shared: Any, error: Exception) -> None:
    raise error


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("engine", [pytest.param(HERE, id="here"), *APART])
def test_a_failure_does_not_stop_the_others(
    engine: Engine, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [
        Job("bad", _fail, (InputError("x.png: is no image; remove it"),)),
        Job("one", _add, (1,)),
        Job("two", _add, (2, 3)),
        Job("three", _add, (4,)),
    ]
    ends = run_jobs(jobs, engine, shared=10)
    assert [(end.job.name, end.result) for end in ends] == [("bad", None), ("one", 11), ("two", 15), ("three", 14)]
    assert (ends[0].problem, ends[0].code) == ("x.png: is no image; remove it", 2)
    out, err = capfd.readouterr()
    assert "bad: failed: x.png: is no image; remove it" in err
    if engine is not HERE:
        assert out == ""
        assert all(f"{name}: started" in err for name in ("bad", "one", "two", "three"))
        assert "two: done, 0:0" in err
        messages = [record.getMessage() for record in caplog.records]
        assert sorted(message.partition(": ")[2] for message in messages) == ["1 numbers", "2 numbers"]  # each once
        assert "two: 2 numbers" in messages
    with pytest.raises(
        InputError, match=r"1 of 4 runs failed; the others are done\. .*same command.*\n  bad: x.png: is"
    ):
        results(ends)
    with pytest.raises(InputError, match=r"^x.png: is no image; remove it$"):
        results(ends[:1])
    worse = run_jobs([*jobs[:1], Job("worse", _fail, (TrainingError("a: the loss is not finite"),))], HERE)
    with pytest.raises(TrainingError, match=r"2 of 2 runs failed\. .*\n  bad: .*\n  worse: a: the loss is not finite"):
        results(worse)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("engine", APART)
def test_ctrl_c_saves_all_runs_and_the_same_call_goes_on(engine: Engine, tmp_path: Path) -> None:
    corners, names = training_run.benchmark(48), ("a", "b")
    jobs = [Job(name, _train, (tmp_path / name, 12), tmp_path / name, 12) for name in names]
    (tmp_path / "slow").touch()

    def interrupt() -> None:
        while not all((tmp_path / name / "state.safetensors").exists() for name in names):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which processes of pytest-xdist ignore
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_jobs(jobs, engine, shared=corners)
    finally:
        watcher.join()
        signal.signal(signal.SIGINT, before)
    (tmp_path / "slow").unlink()
    states = [read_tensors(tmp_path / name / "state.safetensors")[1] for name in names]
    assert all((0, 0) < (int(state["epoch"]), int(state["step"])) < (12, 0) for state in states)
    assert not any((tmp_path / name / ".lock").exists() for name in names)  # they have ended
    assert not list(tmp_path.rglob("*.part"))
    assert results(run_jobs(jobs, engine, shared=corners)) == [int(state["epoch"]) for state in states]
    with Engine().limited():  # to the threads of the others
        train(training_run.config("spcp", 12), tmp_path / "whole", benchmark=corners)
    for name in names:
        _check_same(tmp_path / "whole", tmp_path / name)


def test_a_terminal_shows_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    corners = training_run.benchmark(48)
    jobs = [Job(name, _train, (tmp_path / name, 2), tmp_path / name, 2) for name in ("a", "b", "c")]
    (tmp_path / "slow").touch()  # or all may be done before the table is drawn once
    monkeypatch.setattr(runs, "LOOK", 0.1)
    run_jobs(jobs, POOL, shared=corners)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stderr.getvalue())
    for words in ("epochs", "2 running, 1 waiting", "1/2", "3 done", "a: done, 0:0"):
        assert words in shown
    assert "started" not in shown


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Engine("spark"), "--engine spark: there is no such engine; choose local or ray"),
        (lambda: Engine(jobs=0), "--jobs 0: must be at least 1"),
        (lambda: Engine(threads=0), "--threads 0: must be at least 1"),
        (lambda: Engine(address="auto"), "--address auto: is that of a Ray cluster; add --engine ray"),
    ],
)
def test_invalid_engines(make: Callable[[], Engine], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"--engine ray: this needs Ray: pip install 'spcp\[ray\]'"):
        run_jobs([Job("one", _add, (1,))], CLUSTER, shared=1)


def test_data_that_cannot_be_sent(tmp_path: Path) -> None:
    jobs = [Job("one", _add), Job("two", _add)]
    with pytest.raises(InputError, match=r"the data cannot be sent to other processes \(.*\); take --jobs 1"):
        run_jobs(jobs, POOL, shared=lambda: None)


def test_jobs_fit_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert [cores(threads) for threads in (1, 2, 4, 8)] == [6, 3, 1, 1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cores() == 1
