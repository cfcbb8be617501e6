"""Every table and figure by name, at the budget that runs in seconds; and what their numbers mean."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import html
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from spcp import Engine, SPCPLinear, Truncation, __version__, cli, experiments, fit_threshold
from spcp.config import Config
from spcp.contributions import positive_share
from spcp.data import DataError, load_benchmark
from spcp.errors import InputError, TrainingError
from spcp.experiments import (
    BUDGETS,
    EXPERIMENTS,
    Lab,
    Outcome,
    Record,
    Row,
    findings,
    judged,
    lab,
    page,
    paper,
    reproduce,
)
from spcp.experiments.catalogue import Claim, label, rows_of
from spcp.experiments.lab import CHOSEN, ON_NOISE
from spcp.experiments.measures import Measure, Values, measure
from spcp.experiments.outcome import Cell, Support, judge
from spcp.files import read_tensors, write_tensors
from spcp.runs import Run

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As `reproduce` has it: other numbers of threads round otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All share their runs."""
    return tmp_path_factory.mktemp("reproduce")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", name, "--budget", "smoke", "--seeds", "1", "--out", str(folder), "--jobs", "1", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["spcp", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == 0, err
    shown = list(csv.DictReader(io.StringIO(out)))
    made = folder / "smoke" / name
    outcome = Outcome.read((made / "outcome.json").read_text())
    assert {row["row"] for row in shown} == set(outcome.rows)
    for row in shown:  # the paper's table: a line a method, a column a measure
        numbers = [value for key, value in row.items() if key not in ("row", "seeds") and not key.endswith(" paper")]
        assert numbers
        assert np.isfinite([float(number) for number in numbers if number]).all()
    records = list(csv.DictReader(io.StringIO((made / "results.csv").read_text())))
    assert len(records) == len(outcome.cells)
    assert not outcome.claims  # nothing is learnt in four steps
    assert not outcome.findings
    assert outcome.about["command"] == f"spcp reproduce {name} --budget smoke --seeds 1"
    page, text = html.unescape((made / "report.html").read_text()), (made / "report.md").read_text()
    assert outcome.title in page
    assert outcome.title in text
    assert all((made / "figures" / f"{kind}.svg").exists() for kind in EXPERIMENTS[name].figures)
    assert not any(row["paper_mean"] or row["difference"] for row in records)  # digits are no benchmark of the paper's
    assert any(row["paper_elsewhere_mean"] for row in records) == bool(EXPERIMENTS[name].tables)
    assert ("the paper's on " in text) == bool(EXPERIMENTS[name].tables)


class TestRecords:
    """What is left of runs whose weights are gone."""

    @pytest.fixture(scope="class")
    @staticmethod
    def records(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The records of all runs that the tests above trained, without anything else."""
        kept = tmp_path_factory.mktemp("records")
        for path in folder.rglob("record.json"):
            (kept / path.relative_to(folder)).parent.mkdir(parents=True)
            shutil.copy(path, kept / path.relative_to(folder))
        return kept

    @pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "overhead"])  # which trains nothing
    def test_experiments_need_no_weights(
        self, name: str, folder: Path, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lab, "train", lambda *args, **kwargs: pytest.fail("trained"))
        monkeypatch.setattr(lab, "measure", lambda *args: pytest.fail("scored"))
        options = {"seeds": 1, "trained_only": True, "log": lambda _: None}
        outcome = reproduce(name, "smoke", tmp_path, records=records, **options)  # type: ignore[arg-type]
        with_weights = Outcome.read((folder / "smoke" / name / "outcome.json").read_text())
        assert json.loads(outcome.json())["cells"] == json.loads(with_weights.json())["cells"]
        assert outcome.findings == with_weights.findings
        same = ("rho_norm", "grid", "images", "training loss of the plain network")
        facts = json.loads(outcome.json())["about"]
        assert {key: facts.get(key) for key in same} == {key: with_weights.about.get(key) for key in same}
        assert not any(path.name != "record.json" for path in records.rglob("*") if path.is_file())

    def test_the_machine_is_the_one_that_trained(self, records: Path, tmp_path: Path) -> None:
        shutil.copytree(records, tmp_path / "records")
        path = tmp_path / "records/smoke/runs/digits/plain/seed-0/record.json"
        path.write_text(path.read_text().replace('"device":"', '"device":"another than '))
        options = {"seeds": 1, "trained_only": True, "log": lambda _: None}
        outcome = reproduce("audio", "smoke", tmp_path, records=tmp_path / "records", **options)  # type: ignore[arg-type]
        assert "another than" not in outcome.about["machine"]  # tones
        outcome = reproduce("scores", "smoke", tmp_path, records=tmp_path / "records", **options)  # type: ignore[arg-type]
        assert outcome.about["machine"].count("another than") == 1
        assert len(outcome.about["trained with"]) == 2  # plain and SPCP

    def test_they_are_small(self, records: Path) -> None:
        sizes = [path.stat().st_size for path in records.rglob("record.json")]
        assert len(sizes) > 10
        assert max(sizes) < 40_000

    def test_they_say_what_was_measured_by_what(self, records: Path) -> None:
        record = Record.read(records / "smoke/runs/digits/plain/seed-0/record.json")
        assert record.config.method == "plain"
        assert [epoch["epoch"] for epoch in record.history] == [0, 1]
        assert record.sizes["train"] == 200
        for measured in record.measured.values():
            assert measured["version"].startswith(__version__)
            datetime.date.fromisoformat(measured["date"])
        assert record.environment[0]["torch"] == torch.__version__

    def test_only_what_they_lack_is_trained(self, records: Path, tmp_path: Path) -> None:
        shutil.copytree(records, tmp_path / "records")
        folder = tmp_path / "records/smoke/runs/digits/plain/seed-0"
        record = Record.read(folder / "record.json")
        del record.measured["itp trained"]
        record.write(folder / "record.json")
        options = {"seeds": 1, "records": tmp_path / "records", "log": lambda _: None}
        with pytest.raises(InputError, match="the records of itp lack its measures"):
            reproduce("itp", "smoke", tmp_path, only=["ITP"], trained_only=True, **options)  # type: ignore[arg-type]
        outcome = reproduce("itp", "smoke", tmp_path, trained_only=True, **options)  # type: ignore[arg-type]
        assert outcome.about["missing"] == "Recorded without these measures: ITP."
        reproduce("itp", "smoke", tmp_path, **options)  # type: ignore[arg-type]
        assert [path.parent.parent.name for path in tmp_path.rglob("last.safetensors")] == ["plain"]

    def test_other_settings_and_data_are_refused(self, records: Path, tmp_path: Path) -> None:
        row = Row("Energy", benchmark="digits")
        options = {"seeds": 1, "records": records / "smoke", "log": lambda _: None}
        for changes, words in (
            ({"settings": {"digits": {"width": 16, "epochs": 2, "images": 200}}}, "trained with width = 8, not 16"),
            ({"samples": 50}, "was measured with 100 samples of val, not 50"),
        ):
            other = dataclasses.replace(BUDGETS["smoke"], **changes)
            with pytest.raises(InputError, match=words):
                Lab(other, tmp_path, **options).record(row, 0)  # type: ignore[arg-type]

    def test_without_the_data_they_stand_for_themselves(
        self, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing(*_: object) -> None:
            raise DataError("no data here")

        monkeypatch.setattr(lab, "load_benchmark", missing)
        outcome = reproduce(
            "ablation-beta", "smoke", tmp_path, seeds=1, trained_only=True, records=records, log=lambda _: None
        )
        assert outcome.about["images"] == 200

    def test_a_damaged_one_is_named(self, records: Path, tmp_path: Path) -> None:
        path = tmp_path / "runs/digits/plain/seed-0/record.json"
        path.parent.mkdir(parents=True)
        for text in ("{", "[]", '{"settings": {}}', '{"settings": 3}'):
            path.write_text(text)
            with pytest.raises(InputError, match=r"record\.json: .*; delete it"):
                Lab(BUDGETS["smoke"], tmp_path, seeds=1, trained_only=True).record(Row("", benchmark="digits"), 0)

    def test_all_is_measured_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Whatever is asked of a run later, its weights are not needed: with every head, and every rho_norm."""
        runs = Lab(BUDGETS["smoke"], tmp_path / "smoke", seeds=1, log=lambda _: None)
        asked = {name: rows_of(name, runs) for name in EXPERIMENTS if EXPERIMENTS[name].measure != "time"}
        trained = [Row("", benchmark="digits"), Row("", "spcp", {"rho_norm": 1.0}, benchmark="digits")]
        trained += [Row("", "logitnorm", {"rho_norm": 1.0}, benchmark="digits")]
        for row in trained:
            runs.run(row, 0)
        for arguments, code, words in (
            (["--measure"], 0, "records of 3 runs, which need no weights any more"),
            (["itp", "--measure"], 2, "leave out itp"),
            (["--measure", "--budget", "huge"], 2, "no budget 'huge'"),
        ):
            options = ["reproduce", "--budget", "smoke", "--out", str(tmp_path), *arguments]
            monkeypatch.setattr(sys, "argv", ["spcp", *options])
            with pytest.raises(SystemExit) as end:
                cli.main()
            assert end.value.code == code
            assert words in " ".join(capsys.readouterr().err.split())
        for path in tmp_path.rglob("last.safetensors"):
            path.unlink()
        monkeypatch.setattr(lab, "measure", lambda *args: pytest.fail("scored"))
        runs.trained_only = True
        for row in trained:
            for name, rows in asked.items():
                for one in rows:
                    if one.method == row.method:
                        for value in BUDGETS["smoke"].grid:
                            runs._chosen["digits", CHOSEN] = value
                            same = dataclasses.replace(one, settings=row.settings, benchmark="digits")
                            assert measure(EXPERIMENTS[name].measure, runs, [same])[label(same)], (name, one)
            for how in (CHOSEN, ON_NOISE):
                assert 0 <= runs.validation(row, 0, how) <= 1


def test_what_is_done_is_not_done_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = reproduce("itp", "smoke", folder, seeds=1, log=lambda _: None)
    monkeypatch.setattr(lab, "train", lambda *args, **kwargs: pytest.fail("trained again"))
    monkeypatch.setattr(lab, "measure", lambda *args: pytest.fail("scored again"))
    again = reproduce("itp", "smoke", folder, seeds=1, log=lambda _: None)
    assert again.cells == first.cells


def test_several_runs_at_a_time_come_to_the_same(folder: Path, tmp_path: Path) -> None:
    """The fixed threshold is where that of SPCP ends, whose rho_norm is chosen among the runs of a grid."""
    expected = reproduce("fixed-threshold", "smoke", folder, seeds=1, log=lambda _: None)
    outcome = reproduce("fixed-threshold", "smoke", tmp_path, seeds=1, engine=Engine(jobs=2), log=lambda _: None)
    assert outcome.cells == expected.cells
    paths = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("record.json"))
    assert {path.parts[3].partition(",")[0] for path in paths} == {"fixed", "spcp"}
    for path in paths:
        one, other = Record.read(tmp_path / path), Record.read(folder / path)
        assert one.weights == other.weights
        assert one.measured == {name: other.measured[name] for name in one.measured}


def test_a_run_that_fails_does_not_stop_those_that_do_not_need_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = lab.train

    def fails(config: Config, *args: object, **kwargs: object) -> Run:
        if config.truncation.rho_norm == 0.3:
            raise TrainingError("the loss is not finite")
        return train(config, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(lab, "train", fails)
    failed = r"1 of 3 runs failed; the others are done.*\n  digits/spcp,rho_norm=0.3/seed-0: the loss is not finite"
    with pytest.raises(TrainingError, match=failed):
        reproduce("itp", "smoke", tmp_path, seeds=1, log=lambda _: None)
    done = {path.parent.parent.name for path in tmp_path.rglob("last.safetensors")}
    assert done == {"plain", "spcp,rho_norm=1"}
    monkeypatch.setattr(lab, "train", train)
    again = reproduce("itp", "smoke", tmp_path, seeds=1, log=lambda _: None)
    assert again.cells == reproduce("itp", "smoke", folder, seeds=1, log=lambda _: None).cells


def test_what_a_killed_call_left_in_a_run_that_is_done_is_removed(folder: Path) -> None:
    """It was killed after it had written the weights, while it wrote the state."""
    row, runs = Row("Energy", benchmark="digits"), Lab(BUDGETS["smoke"], folder / "smoke", seeds=1, log=lambda _: None)
    left = runs.run(row, 0).folder / ".state.safetensors.0123abcd.part"
    left.write_bytes(b"half of a state")
    runs.run(row, 0)
    assert not left.exists()


def test_a_stopped_run_is_resumed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Lab(BUDGETS["smoke"], folder / "smoke", seeds=1, log=lambda _: None)
    row = Row("Energy", benchmark="digits")
    expected = whole.measured(row, 0, "energy")
    runs = Lab(BUDGETS["smoke"], tmp_path, seeds=1, log=lambda _: None)
    train = lab.train
    monkeypatch.setattr(lab, "train", lambda *args, **kwargs: train(*args, **kwargs, until=1))
    assert len(runs.run(row, 0).history) == 1
    monkeypatch.setattr(lab, "train", train)
    assert runs.measured(row, 0, "energy") == expected


def test_some_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUDGETS, "smoke", dataclasses.replace(BUDGETS["smoke"], verdicts=True))
    outcome = reproduce("cifar10", "smoke", folder, only=["Energy", "SPCP"], seeds=1, log=lambda _: None)
    assert outcome.rows == ("Energy", "SPCP")
    assert outcome.about["command"].endswith("--only Energy,SPCP --seeds 1")
    pairs = {(gain.row, gain.other) for claim in outcome.claims for gain in claim.gains}
    assert pairs == {("SPCP", "Energy")}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "cifar1000"}, "no experiment 'cifar1000'; there are cifar10, "),
        ({"name": "itp", "budget": "huge"}, "no budget 'huge'; there are full, cpu"),
        ({"name": "itp", "only": ["XYZ"]}, "itp: has no row 'XYZ'; there are ITP, SPCP"),
        ({"name": "itp", "seeds": 0}, "seeds = 0"),
        ({"name": "audio", "budget": "full", "root": "."}, "kinetics-sound.toml: is not there"),
        ({"name": "audio", "budget": "small", "root": "."}, "free-spoken-digits/recordings: is not there; get it from"),
    ],
)
def test_invalid_input(options: dict[str, object], words: str, folder: Path) -> None:
    with pytest.raises(InputError, match=words):
        reproduce(**({"budget": "smoke", "folder": folder, "log": lambda _: None} | options))  # type: ignore[arg-type]


# The paper's section 4.1 and appendix C. rho_norm: the choice for SPCP, and for SPCP on top of LogitNorm.
PAPER = {
    "cifar10": {"network": "resnet18", "batch_size": 128, "rho_norm": (3.0, 3.0), "subset": None},
    "cifar100": {"network": "resnet18", "batch_size": 128, "rho_norm": (0.5, 0.5), "subset": None},
    "imagenet200": {"network": "resnet18_224", "batch_size": 256, "rho_norm": (0.4, 2.0), "subset": 16},
}
SHARED = {"epochs": 100, "lr": 0.1, "min_lr": 1e-6, "momentum": 0.9, "weight_decay": 5e-4, "warmup": 0}
SHARED |= {"images": None, "augment": "full", "schedule": "cosine", "precision": "32-true", "width": None}
METHODS = {  # what their authors, or OpenOOD, have otherwise; the rest is as above
    "logitnorm": {},
    "t2fnorm": {},
    "vos": {},
    "mos": {},
    "snn": {},
    "cider": {"batch_size": 512, "lr": 0.5, "warmup": 10, "weight_decay": 1e-4},
    "umap": {"batch_size": 256, "weight_decay": 1e-4},
}
OPTIONS = {("cider", "cifar100"): {"momentum": 0.5}, ("snn", "cifar100"): {"share": 0.05}}
OPTIONS |= {("snn", "imagenet200"): {"share": 0.35}}


@pytest.mark.parametrize("benchmark", PAPER)
def test_full_is_the_papers_setting(benchmark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, expected = Lab(BUDGETS["full"], tmp_path), PAPER[benchmark]
    assert runs.seeds == (0, 1, 2)
    assert runs.rho_norm(benchmark) == expected["rho_norm"][0]
    for seed in runs.seeds:
        for row, rho_norm in ((Row("Vanilla"), 0.0), (Row("SPCP", "spcp"), expected["rho_norm"][0])):
            config = runs.config(dataclasses.replace(row, benchmark=benchmark), seed)
            assert config.seed == seed
            for name, value in {**SHARED, "network": expected["network"], "batch_size": expected["batch_size"]}.items():
                assert getattr(config, name) == value, name
            assert config.truncation.rho_norm == rho_norm
            if rho_norm:
                truncation = config.truncation
                assert (truncation.beta, truncation.subset, truncation.stages) == (0.999, expected["subset"], "both")
                assert truncation.initial_threshold in (None, 1000)  # None is 1000
    monkeypatch.setattr(runs, "run", lambda row, seed: Run(tmp_path, Config()))
    for method, departures in METHODS.items():
        config = runs.config(Row("", method, benchmark=benchmark), 0)
        wanted = {**SHARED, "network": expected["network"], "batch_size": expected["batch_size"], **departures}
        if benchmark == "imagenet200":
            wanted["warmup"] = round(wanted["warmup"] * 100 / 90)  # OpenOOD's share of its 90 epochs
        assert {name: getattr(config, name) for name in wanted} == wanted, method
        assert config.options == OPTIONS.get((method, benchmark), {}), method
    both = runs.config(Row("", "logitnorm", {"rho_norm": CHOSEN}, benchmark=benchmark), 0)
    assert both.truncation.rho_norm == expected["rho_norm"][1]
    assert both.truncation.beta == 0.999


def test_full_has_the_papers_networks_and_benchmarks(tmp_path: Path) -> None:
    runs = Lab(BUDGETS["full"], tmp_path)
    backbones = {runs.config(row, 0).network for row in rows_of("backbones", runs)}
    assert backbones == {"resnet18", "wideresnet28", "densenet100"}
    assert {row.benchmark for row in rows_of("itp", runs)} == {"cifar10", "imagenet200"}
    panels = {(row.benchmark, row.paper_backbone) for row in rows_of("sparse-patterns", runs)}
    assert len(panels) == 9  # appendix A: three data sets, three networks
    assert BUDGETS["full"].grid == (0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0, 3.0, 5.0)
    assert BUDGETS["full"].betas == (0.0, 0.9, 0.99, 0.999, 0.9999, 1.0)
    betas = {row.name: runs.config(row, 0).truncation.beta for row in rows_of("ablation-beta", runs)}
    assert betas == {f"beta={value:g}": value for value in BUDGETS["full"].betas}


def test_the_fixed_threshold_is_the_one_that_spcp_ended_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Lab(BUDGETS["full"], tmp_path)
    asked: list[Row] = []
    monkeypatch.setattr(runs, "record", lambda row, seed: asked.append(row) or Run(tmp_path, Config()))
    record = {"loss": 1.0, "accuracy": 0.5, "lr": 0.1, "seconds": 1.0, "truncated": 0.1}
    lines = [json.dumps({"epoch": i, "threshold": threshold, **record}) for i, threshold in enumerate((0.5, 0.25))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    config = runs.config(Row("Fixed", "fixed", benchmark="cifar10"), 1)
    assert (config.truncation.initial_threshold, config.truncation.beta) == (0.25, 1.0)
    assert [row.method for row in asked] == ["spcp"]


def test_a_run_with_other_settings_is_not_taken_for_this_one(folder: Path) -> None:
    other = dataclasses.replace(BUDGETS["smoke"], settings={"digits": {"width": 16, "epochs": 2, "images": 200}})
    with pytest.raises(InputError, match="was trained with width = 8, not 16; delete it"):
        Lab(other, folder / "smoke", seeds=1, log=lambda _: None).run(Row("Energy", benchmark="digits"), 0)


def test_other_data_is_scored_anew(tmp_path: Path) -> None:
    row = Row("Energy", benchmark="digits")
    measured = []
    for samples in (100, 50, 100):
        budget = dataclasses.replace(BUDGETS["smoke"], samples=samples)
        measured.append(Lab(budget, tmp_path, seeds=1, log=lambda _: None).measured(row, 0, "energy"))
    assert measured[0] == measured[2] != measured[1]


def test_other_weights_are_scored_anew(tmp_path: Path) -> None:
    """Whatever the times of the files: copies, clocks and restored backups set them as they like."""
    runs = Lab(BUDGETS["smoke"], tmp_path, seeds=1, log=lambda _: None)
    row = Row("Energy", benchmark="digits")
    first = runs.measured(row, 0, "msp")
    path = runs.run(row, 0).folder / "last.safetensors"
    kept = path.parent / "record.json"
    written = kept.stat().st_mtime_ns
    os.utime(path)  # newer than what was measured with it
    assert runs.measured(row, 0, "msp") == first
    assert kept.stat().st_mtime_ns == written
    tensors, notes = read_tensors(path)
    tensors["classifier.weight"] = tensors["classifier.weight"].flip(1)
    write_tensors(path, tensors, notes)
    os.utime(path, (1, 1))
    again = Lab(BUDGETS["smoke"], tmp_path, seeds=1, log=lambda _: None).measured(row, 0, "msp")
    assert again != first
    kept.write_text("{")
    assert Lab(BUDGETS["smoke"], tmp_path, seeds=1, log=lambda _: None).measured(row, 0, "msp") == again


class TestTrainedOnly:
    """`--trained`: publish what is there."""

    def test_rows_and_seeds_that_are_missing_are_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(BUDGETS, "smoke", dataclasses.replace(BUDGETS["smoke"], verdicts=True))
        quiet = {"log": lambda _: None}
        with pytest.raises(InputError, match="nothing of ablation-rho is trained there yet; leave out --trained"):
            reproduce("ablation-rho", "smoke", tmp_path, trained_only=True, **quiet)  # type: ignore[arg-type]
        runs = Lab(BUDGETS["smoke"], tmp_path / "smoke", **quiet)  # type: ignore[arg-type]
        for seed in (0, 1):
            runs.run(Row("", benchmark="digits"), seed)
        runs.run(Row("", "spcp", {"rho_norm": 1.0}, benchmark="digits"), 1)
        monkeypatch.setattr(lab, "train", lambda *args, **kwargs: pytest.fail("trained"))
        outcome = reproduce("ablation-rho", "smoke", tmp_path, trained_only=True, **quiet)  # type: ignore[arg-type]
        assert outcome.rows == ("rho_norm=0", "rho_norm=1")
        assert [outcome.seeds(row) for row in outcome.rows] == [(0, 1), (1,)]
        assert outcome.about["missing"] == "Not trained yet: rho_norm=0.3."
        assert outcome.about["grid"] == (1.0,)
        assert outcome.about["command"].endswith("--trained")
        assert not outcome.claims  # they are about the value that is chosen, and there is only one
        text = (tmp_path / "smoke/ablation-rho/report.md").read_text()
        assert "rho_norm 1, the only value trained so far" in text
        assert "| rho_norm=1 (1 of 2 seeds) |" in text
        assert "Not trained yet: rho_norm=0.3." in text
        assert Outcome.read((tmp_path / "smoke/ablation-rho/outcome.json").read_text()).cells[-1].seeds == (1,)

    def test_a_run_that_is_not_done_is_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        row, train = Row("", benchmark="digits"), lab.train
        with monkeypatch.context() as patched:
            patched.setattr(lab, "train", lambda *args, **kwargs: train(*args, **kwargs, until=1))
            Lab(BUDGETS["smoke"], tmp_path, seeds=1, log=lambda _: None).run(row, 0)
        assert Lab(BUDGETS["smoke"], tmp_path, seeds=1, trained_only=True).seeds_of(row) == ()

    @pytest.mark.parametrize(
        ("there", "choice"),
        [
            ({0.3: (0, 1, 2), 1.0: (1,)}, {"grid": (0.3, 1.0), "chosen on seeds": 1}),
            ({0.3: (0, 2), 1.0: (1,)}, {"grid": (0.3,), "chosen on seeds": 1}),  # none is shared: one that most have
        ],
    )
    def test_rho_norm_is_chosen_over_the_seeds_that_all_values_have(
        self,
        there: dict[float, tuple[int, ...]],
        choice: dict[str, Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        runs = Lab(BUDGETS["smoke"], tmp_path, seeds=3, trained_only=True, log=lambda _: None)
        areas = {(0.3, 0): 0.9, (0.3, 1): 0.5, (0.3, 2): 0.9, (1.0, 1): 0.6}
        monkeypatch.setattr(runs, "seeds_of", lambda row: there[row.settings["rho_norm"]])
        monkeypatch.setattr(runs, "validation", lambda row, seed, how: areas[row.settings["rho_norm"], seed])
        assert runs.rho_norm("digits") == choice["grid"][-1]
        assert runs.choices == {"digits": choice}
        runs.rho_norm("digits", how=ON_NOISE)
        assert runs.choices == {"digits": choice}  # noise is another question

    def test_what_needs_a_run_that_is_missing_is_missing(self, tmp_path: Path) -> None:
        runs = Lab(BUDGETS["smoke"], tmp_path, seeds=1, trained_only=True)
        for row in (Row("", "umap"), Row("", "fixed"), Row("", "spcp"), Row("", "logitnorm", {"rho_norm": CHOSEN})):
            assert runs.seeds_of(dataclasses.replace(row, benchmark="digits")) == ()


def test_the_papers_figure_stands_beside_ours_only_on_its_benchmark() -> None:
    values: Values = {"SPCP": {("id", "ACC"): {0: 90.0}}}
    for benchmark, beside in (("cifar10", True), ("digits", False)):
        found = experiments._published(EXPERIMENTS["cifar10"], [Row("SPCP", "spcp", benchmark=benchmark)], values)
        assert [bool(figures) for figures in found] == [beside, not beside]


@pytest.mark.parametrize(
    ("sets", "mean", "has_deviation"),
    [
        (("mnist", "svhn", "texture", "places365"), 20.54, True),
        (("mnist", "svhn", "texture"), 18.57, False),  # without 26.46 on Places365
    ],
)
def test_the_papers_mean_is_over_the_sets_that_are_here(
    sets: tuple[str, ...], mean: float, has_deviation: bool
) -> None:
    values: Values = {"SPCP": {(column, "FPR95"): {0: 1.0} for column in ("far", *sets)}}
    here, _ = experiments._published(EXPERIMENTS["cifar10"], [Row("SPCP", "spcp", benchmark="cifar10")], values)
    assert here["SPCP", "far", "FPR95"].mean == pytest.approx(mean, abs=0.005)
    assert (here["SPCP", "far", "FPR95"].std is not None) == has_deviation


def test_longer_training_warms_up_longer(tmp_path: Path) -> None:
    lab = Lab(BUDGETS["cpu"], tmp_path)
    rows = [row for row in rows_of("training-length", lab) if row.method == "plain"]
    configs = [lab.config(row, 0) for row in rows]
    assert [(config.epochs, config.warmup) for config in configs] == [(12, 2), (30, 5), (60, 10)]


def test_the_default_value_of_an_ablation_shares_its_run(tmp_path: Path) -> None:
    lab = Lab(BUDGETS["full"], tmp_path)
    for name, default in (("ablation-beta", "beta=0.999"), ("ablation-lambda0", "lambda_0=1000")):
        row = next(row for row in rows_of(name, lab) if row.name == default)
        assert row.settings == {}


def test_cifar100_also_has_the_papers_value_where_another_is_chosen(tmp_path: Path) -> None:
    names = {
        budget: [row.name for row in rows_of("cifar100", Lab(BUDGETS[budget], tmp_path))] for budget in ("cpu", "full")
    }
    assert "SPCP rho_norm=0.5" in names["cpu"]
    assert "SPCP rho_norm=0.5" not in names["full"]  # it is that of SPCP there


def test_gains_with_and_without_augmentation() -> None:
    def row(near: float, far: float, loss: float) -> dict[Measure, dict[int, float]]:
        return {("near", "AUROC"): {0: near}, ("far", "AUROC"): {0: far}, ("training", "loss"): {0: loss}}

    measured: Values = {
        "Vanilla": row(80, 90, 0.1),
        "SPCP": row(81, 92, 0.2),
        "Vanilla not augmented": row(70, 75, 0.0),
    }
    assert findings.augmentation(measured) == (
        "augmented: training loss 0.100; gain of AUROC over plain training: SPCP near +1.0, far +2.0 (one seed).",
        "not augmented: training loss 0.000.",
    )


def test_scores_that_use_the_head_again_have_a_row_for_each_head(tmp_path: Path) -> None:
    rows = {row.name: row for row in rows_of("compatibility", Lab(BUDGETS["smoke"], tmp_path))}
    for name in ("ASH", "GradNorm", "ReAct", "SCALE", "DICE"):
        assert (rows[f"{name}+SPCP"].head, rows[f"{name}+SPCP (plain head)"].head) == ("trained", "plain")
        assert rows[f"{name}+SPCP (plain head)"].paper == f"{name}+SPCP"


def test_logitnorm_that_did_not_learn_is_not_compared() -> None:
    accuracy = {"Energy": 90.0, "LogitNorm": 88.5, "LogitNorm+SPCP": 50.0, "Energy+SPCP": 50.0}
    cells = [Cell(row, "id", "ACC", (value, value), (0, 1)) for row, value in accuracy.items()]
    cells += [Cell(row, "far", "AUROC", (i, i + 1.0), (0, 1)) for i, row in enumerate(accuracy)]
    outcome = judged(Outcome("compatibility", "", "small", {}, tuple(cells), ()))
    texts = ["Energy detects better with SPCP", "Most post-hoc methods detect better with SPCP"]
    assert [claim.text for claim in outcome.claims] == texts
    told = "Not reported, because more than 2 points of accuracy are missing: LogitNorm+SPCP 50.0 %."
    assert page.lacking(outcome) == [told]
    assert [row["row"] for row in page.records(outcome)] == ["Energy", "LogitNorm", "Energy+SPCP"]


def test_patterns_are_measured_before_truncation(folder: Path) -> None:
    """Cutting what dominates would make any network look denser."""
    runs = Lab(BUDGETS["smoke"], folder / "smoke", seeds=1, log=lambda _: None)
    rows = [Row("SPCP", "spcp", benchmark="digits"), Row("plain head", "spcp", head="plain", benchmark="digits")]
    values = measure("sparsity", runs, rows)
    for metric in ("top 1 %", "top 10 %", "participation ratio"):
        assert values["SPCP"]["contributions", metric] == values["plain head"]["contributions", metric]


def test_share_of_positive_contributions() -> None:
    rng = torch.Generator().manual_seed(0)
    h, W = torch.randn(20, 6, generator=rng).round(), torch.randn(4, 6, generator=rng).round()
    contributions = torch.einsum("nd,kd->nkd", h, W)
    assert positive_share(h, W) == pytest.approx(float((contributions > 0).double().mean()))


def test_tails_are_the_share_of_ood_inputs_above_the_median_of_id_inputs(folder: Path) -> None:
    runs = Lab(BUDGETS["smoke"], folder / "smoke", seeds=1, log=lambda _: None)
    row = Row("Vanilla", benchmark="digits")
    measured = measure("tails", runs, [row])["Vanilla"]
    evaluation = runs.evaluation(row, 0)
    energy = {role: evaluation.bank(role).logits.logsumexp(1).numpy() for role in evaluation.benchmark.sets()}
    middle = np.sort(energy["test"])[(len(energy["test"]) - 1) // 2]
    for group in ("near", "far"):
        shares = [(energy[role] > middle).mean() for role in energy if role.startswith(f"{group}/")]
        assert measured[group, "tail overlap"][0] == pytest.approx(100 * np.mean(shares), abs=1e-3)


def test_rho_norm_is_chosen_on_noise_by_request(folder: Path) -> None:
    runs = Lab(BUDGETS["smoke"], folder / "smoke", seeds=1, log=lambda _: None)
    areas = {}
    for value in BUDGETS["smoke"].grid:
        row = Row("", "spcp", {"rho_norm": value}, benchmark="digits")
        evaluation = runs.evaluation(row, 0)
        id_scores, noise = (evaluation.bank(role).logits.logsumexp(1) for role in ("val", "ood_val/noise"))
        above, tied = (id_scores[:, None] > noise).double(), (id_scores[:, None] == noise).double()
        areas[value] = float((above + tied / 2).mean())
        assert runs.validation(row, 0, ON_NOISE) == pytest.approx(areas[value], abs=1e-6)
    assert runs.rho_norm("digits", how=ON_NOISE) == max(areas, key=lambda value: areas[value])
    assert runs.config(Row("", "spcp", {"rho_norm": ON_NOISE}, benchmark="digits"), 0).truncation.rho_norm in areas


def test_a_row_that_needs_no_rho_norm_trains_no_grid(tmp_path: Path) -> None:
    outcome = reproduce("ablation-stage", "smoke", tmp_path, only=["truncate:none"], seeds=1, log=lambda _: None)
    assert [path.name for path in (tmp_path / "smoke/runs/digits").iterdir()] == ["plain"]
    assert "rho_norm" not in outcome.about


class TestPaper:
    def test_every_figure_is_there(self) -> None:
        assert len(paper.figures()) == 1202

    def test_every_figure_of_a_table_has_a_row(self, tmp_path: Path) -> None:
        """Nothing of the paper's tables is left out: each method of each table is a row of its experiment."""
        runs = Lab(BUDGETS["full"], tmp_path)
        runs._benchmarks = dict.fromkeys(paper.BENCHMARKS, load_benchmark("digits"))
        reproduced: dict[str, set[str]] = {}
        for name, experiment in EXPERIMENTS.items():
            names = {row.name for row in rows_of(name, runs)} if experiment.tables else set()
            for table in experiment.tables:
                reproduced.setdefault(table, set()).update(names)
        for table, _, _, method, _, _ in paper.figures():
            assert method in reproduced[table], (table, method)

    def test_mos_as_the_appendix_has_it(self) -> None:
        """The main table's row, which is commented out, has them swapped."""
        tables = EXPERIMENTS["cifar10"].tables
        found = (paper.figure(tables, "cifar10", "ResNet-18", "MOS", "far", metric) for metric in ("AUROC", "FPR95"))
        assert [figure and figure.mean for figure in found] == [76.41, 62.90]

    def test_not_in_the_table(self) -> None:
        assert paper.figure(("cifar",), "cifar10", "ResNet-18", "SPCP", "moon", "AUROC") is None


def test_difference_from_the_paper_is_welchs() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(90, 2, 5), rng.normal(92, 1, 3)
    cell = Cell("SPCP", "far", "AUROC", tuple(ours), tuple(range(5)), (float(theirs.mean()), float(theirs.std())))
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    assert cell.difference == pytest.approx(ours.mean() - theirs.mean())
    assert cell.interval == pytest.approx((expected.low, expected.high))


BASE = [80.0, 70.0, 75.0]
TWO = (("near", "AUROC"), ("far", "AUROC"))


def by_seed(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


def against_base(*gains: list[float]) -> dict[str, dict[tuple[str, str], dict[int, float]]]:
    """A row "a" that is better than "b" by this much, in one measure after the other."""
    ours = {
        measure: by_seed([x + y for x, y in zip(BASE, gain, strict=True)])
        for measure, gain in zip(TWO, gains, strict=True)
    }
    return {"a": ours, "b": dict.fromkeys(TWO, by_seed(BASE))}


@pytest.mark.parametrize(
    ("near", "far", "margin", "support", "tally"),
    [
        ([5.0, 6.0, 5.5], [4.0, 4.2, 4.1], 0.0, Support.HOLDS, "2 better, 0 worse, 0 unclear"),
        ([5.0, 6.0, 5.5], [4.0, -4.2, 4.1], 0.0, Support.PARTLY, "1 better, 0 worse, 1 unclear"),
        ([5.0, 6.0, 5.5], [-4.0, -4.2, -4.1], 0.0, Support.MIXED, "1 better, 1 worse, 0 unclear"),
        ([-5.0, -6.0, -5.5], [4.0, -4.2, 4.1], 0.0, Support.FAILS, "0 better, 1 worse, 1 unclear"),
        ([5.0, -6.0, 5.5], [4.0, -4.2, 4.1], 0.0, Support.UNCLEAR, "0 better, 0 worse, 2 unclear"),
        ([-0.3, -0.4, -0.2], [-0.1, -0.1, -0.2], 1.0, Support.HOLDS, "2 better, 0 worse, 0 unclear"),
        ([-3.0, -3.1, -3.2], [-0.1, -0.1, -0.2], 1.0, Support.MIXED, "1 better, 1 worse, 0 unclear"),
    ],
)
def test_claims(near: list[float], far: list[float], margin: float, support: Support, tally: str) -> None:
    result = judge(Claim("a is better", (("a", "b"),), TWO, margin), against_base(near, far), {})
    assert result.support is support
    assert result.tally == tally


def test_claims_are_corrected_for_the_number_of_comparisons() -> None:
    """A difference that is clear on its own is not so among others: Holm's correction, over the claim."""
    gain = [5.0, 6.5, 7.0]  # p = 0.0095
    clear = stats.ttest_1samp(gain, 0).pvalue
    assert 0.05 / 8 < clear < 0.05
    values = against_base(gain, gain)
    one = judge(Claim("", (("a", "b"),), TWO[:1]), values, {})
    assert one.support is Support.HOLDS
    assert one.gains[0].difference.p_value == pytest.approx(clear)
    values |= {f"b{i}": values["b"] for i in range(7)}
    eight = judge(Claim("", tuple(("a", other) for other in values if other != "a"), TWO[:1]), values, {})
    assert eight.tally == "0 better, 0 worse, 8 unclear"


def test_what_is_not_tested_is_told_and_does_not_count() -> None:
    """A single seed has no interval, and a row may not be there: neither bears a claim out, nor speaks against it."""
    values = against_base([5.0, 6.0, 5.5], [4.0, 4.2, 4.1])
    single = judge(Claim("", (("a", "c"),), TWO), values | {"c": {measure: {0: 99.0} for measure in TWO}}, {})
    assert single.support is Support.UNTESTED
    assert single.tally == "0 of 2 as claimed"
    partial = judge(Claim("", (("a", "b"), ("a", "absent"), ("absent", "b")), TWO), values, {})
    assert partial.support is Support.PARTLY
    assert partial.tally == "2 better, 0 worse, 0 unclear, 4 missing"
    one_set = {"a": values["a"], "b": {TWO[0]: values["b"][TWO[0]]}}
    assert judge(Claim("", (("a", "b"),), TWO), one_set, {}).tally == "1 better, 0 worse, 0 unclear, 1 missing"
    some = {
        name: {key: dict(list(by.items())[: 3 - i]) for i, (key, by) in enumerate(of.items())}
        for name, of in values.items()
    }
    assert judge(Claim("", (("a", "b"),), TWO), some, {}).tally == "1 better, 0 worse, 0 unclear, 1 with too few seeds"


def test_two_seeds_are_no_test() -> None:
    """Two that happen to agree would pass for certainty."""
    result = judge(
        Claim("", (("a", "b"),), TWO[:1]), {"a": {TWO[0]: {0: 9.0, 1: 9.001}}, "b": {TWO[0]: {0: 8.0, 1: 8.0}}}, {}
    )
    assert (result.support, result.tally) == (Support.UNTESTED, "1 of 1 as claimed")


def test_networks_that_are_compared_with_themselves_say_nothing() -> None:
    values = against_base([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert judge(Claim("", (("a", "b"),), TWO, margin=1.0), values, {}).support is Support.SAME


def test_what_is_unclear_but_points_against_the_claim_is_told() -> None:
    result = judge(Claim("", (("a", "b"),), TWO), against_base([5.0, 6.0, 5.5], [-9.0, -1.0, -20.0]), {})
    assert (result.support, result.tally) == (Support.PARTLY, "1 better, 0 worse, 1 unclear (1 against)")


def test_a_claim_over_every_set_leaves_out_groups() -> None:
    columns = ("near", "tin", "svhn", "id")
    row = {(column, metric): by_seed(BASE) for column in columns for metric in ("AUROC", "FPR95")}
    result = judge(Claim("", (("a", "b"),), (("every set", "FPR95"),)), {"a": row, "b": row}, {})
    assert [(gain.column, gain.metric) for gain in result.gains] == [("tin", "FPR95"), ("svhn", "FPR95")]


def test_words_that_are_no_test_are_counted() -> None:
    result = judge(Claim("competitive", (("a", "b"),), TWO, test=False), against_base([5, 6, 5.5], [-5, -6, -5.5]), {})
    assert result.support is Support.COUNTED
    assert result.tally == "1 of 2 as claimed"


def test_rows_are_compared_over_the_seeds_that_both_have() -> None:
    ours, theirs = {0: 91.0, 1: 92.0, 2: 93.0}, {1: 81.0, 2: 83.0, 3: 0.0}
    values = {"a": {TWO[0]: ours}, "b": {TWO[0]: theirs}}
    (gain,) = judge(Claim("", (("a", "b"),), TWO[:1]), values, {}).gains
    assert gain.difference.by_seed == (11.0, 10.0)


def test_lower_is_better_for_other_metrics() -> None:
    values = {name: {("near", "FPR95"): by_seed([fpr, fpr + 1, fpr])} for name, fpr in (("a", 10.0), ("b", 30.0))}
    (gain,) = judge(Claim("", (("a", "b"),), (("near", "FPR95"),)), values, {("a", "near", "FPR95"): 1.0}).gains
    assert gain.difference.mean == pytest.approx(20)
    assert gain.paper is None  # the paper has no number for the other


def test_outcomes_are_read_as_they_were_written(folder: Path) -> None:
    text = (folder / "smoke" / "ablation-stage" / "outcome.json").read_text()
    assert json.loads(Outcome.read(text).json()) == json.loads(text)
    assert len(text) < 20_000


CONTRIBUTIONS = ("truncated %", "truncated of positive %", "threshold over support")


def variants(kinds: dict[str, dict[str, tuple[float, float]]]) -> dict[str, dict[tuple[str, str], dict[int, float]]]:
    """Rows of `scales` for one seed: AUROC, on near sets as on far ones, and how much is truncated on every scale."""
    return {
        f"{kind} {name}": {(group, "AUROC"): {0: auroc} for group in ("near", "far", "validation")}
        | {("contributions", metric): {0: share} for metric in CONTRIBUTIONS}
        | {("contributions", "positive %"): {0: 40.0}, ("validation", "norm ratio"): {0: 2.0 if kind == "a" else 0.5}}
        for kind, rows in kinds.items()
        for name, (auroc, share) in rows.items()
    }


class TestScales:
    """Two kinds of networks whose best rho_norm is not the same, but cuts the same share of what is positive."""

    values = variants(
        {
            "a": {"plain": (50, 0), "rho_norm=1": (60, 10), "rho_norm=2": (80, 20), "rho_norm=3": (70, 30)},
            "b": {"plain": (50, 0), "rho_norm=0.5": (60, 10), "rho_norm=1": (80, 20), "rho_norm=2": (70, 30)},
        }
    )

    def test_what_is_lost_if_others_choose(self) -> None:
        curves = findings.curves_of(self.values)
        lost = findings.losses_on_scale(curves, "the share of the positive contributions")
        assert lost == {"a": (0, False), "b": (0, False)}
        # b's best is 1, where a has 60 instead of 80; a's best is 2, where b has 70 instead of 80
        assert findings.losses_on_scale(curves, "rho_norm") == {"a": (20, False), "b": (10, False)}

    def test_an_amount_beyond_those_trained_is_marked(self) -> None:
        """Each kind's own amounts do not count among those that the others choose."""
        apart = variants(
            {
                "a": {"plain": (50, 0), "rho_norm=1": (60, 10), "rho_norm=2": (80, 20), "rho_norm=3": (90, 30)},
                "b": {"plain": (50, 0), "rho_norm=0.1": (70, 1), "rho_norm=0.3": (60, 3)},
            }
        )
        lost = findings.losses_on_scale(findings.curves_of(apart), "rho_norm")
        assert lost == {"a": (30, True), "b": (10, True)}  # a with 1, for b's 0.1; b with 0.3, for a's 3
        assert findings.best_scale(findings.losses_by_scale(apart)) == (
            "no scale can be told from another, because the kinds were trained with other amounts on them"
        )

    def test_it_is_told(self) -> None:
        lost, best = findings.scales(self.values)
        assert "all of 2 kinds of networks" in lost
        assert lost.endswith(
            "So the share of all contributions and the share of the positive contributions and the threshold over the "
            "mean support transfer best, by 15.0 points over rho_norm."
        )
        assert "one value of rho_norm 15.0 (at worst 20.0)" in lost
        assert "no truncation 30.0 (at worst 30.0)" in lost
        assert "auto" not in lost
        assert best == "the best rho_norm by test sets: a 2 (one seed); b 1 (one seed)."
        assert findings.scales({row: by for row, by in self.values.items() if row.startswith("a")}) == ()

    def test_one_value_for_all_may_be_worse_than_none(self) -> None:
        share = "the share of all contributions"
        points = {share: 2.0, findings.NO_SCALE: 3.0, "rho_norm": 3.5}
        assert findings.best_scale({name: {"a": findings.Loss(lost)} for name, lost in points.items()}) == (
            "the share of all contributions transfers best, by 1.5 points over rho_norm; one value of rho_norm for all "
            "is no better than none"
        )
        points = {"rho_norm": 1.0, share: 2.0, findings.NO_SCALE: 3.0}
        told = findings.best_scale({name: {"a": findings.Loss(lost)} for name, lost in points.items()})
        assert told == "rho_norm transfers best"

    def test_seeds_that_not_all_rows_have_do_not_count(self) -> None:
        values = {row: {key: dict(by) for key, by in rows.items()} for row, rows in self.values.items()}
        for by in values["a rho_norm=1"].values():
            by[1] = 0.0
        assert findings.curves_of(values)["a"].auroc.tolist() == [60, 80, 70]


def test_the_plain_network_tells_whether_spcp_helps() -> None:
    """Where features of OOD validation data are longer it helps, and where they are shorter it does not."""
    rows = {"plain": (60.0, 0.0), "rho_norm=1": (70.0, 10.0), "rho_norm=3": (80.0, 20.0)}
    worse = {"plain": (60.0, 0.0), "rho_norm=1": (55.0, 10.0), "rho_norm=3": (30.0, 20.0)}
    values = variants({"a": rows, "b": worse, "c": worse})
    longer = "longer features of OOD validation data than of ID data"
    assert [(case.kind, case.told[longer], case.gains) for case in findings.cases_of(values)] == [
        ("a", 2.0, {"chosen": 20.0, "3": 20.0}),
        ("b", 0.5, {"chosen": -5.0, "3": -30.0}),
        ("c", 0.5, {"chosen": -5.0, "3": -30.0}),
    ]
    chosen, three = findings.prediction(values)
    assert "with rho_norm chosen on validation data AUROC rises in 1 of 3 cases" in chosen
    assert "by -5.0 to +20.0 points" in chosen
    assert f"by {longer}: right in 3, rank correlation +1.00" in chosen
    same = (
        "by the share of positive contributions: right in 2 with a bound fitted to these cases, rank correlation +0.00"
    )
    assert same in chosen  # it is the same everywhere
    assert f"Always saying no is right in 2, so the best sign is {longer}." in chosen
    assert "with rho_norm 3 AUROC rises in 1 of 3 cases" in three
    single = findings.cases_of(variants({"a": {"plain": (60.0, 0.0), "rho_norm=3": (80.0, 20.0)}}))
    assert [case.gains for case in single] == [{"3": 20.0}]  # one value is not a choice


def test_lengths_of_features_are_told_beside_the_usual_answer() -> None:
    """Two sets and two seeds: truncation gains in three of four cases, which length tells in two."""
    gains = {"a": {0: (1.2, 5.0), 1: (0.8, 4.0)}, "b": {0: (0.9, -3.0), 1: (0.7, 1.0)}}
    views = {"plain": 0.0, "truncated": 1.0}
    rows = {
        f"{kind} network: {view} view": {
            measure: values
            for name, by_seed in gains.items()
            for measure, values in (
                ((name, "AUROC"), {seed: 50 + share * gain for seed, (_, gain) in by_seed.items()}),
                ((name, "norm ratio"), {seed: ratio for seed, (ratio, _) in by_seed.items()}),
            )
        }
        for kind in findings.KINDS
        for view, share in views.items()
    }
    assert findings.norms(rows)[0] == (
        "plain networks: truncated energy is better where OOD features are longer than ID features, and plain energy "
        "where they are shorter, in 2 of 4 cases (a set and a seed each), while truncated energy is better in 3; rank "
        "correlation of length and gain +0.40."
    )


def test_gains_by_length_of_training() -> None:
    def row(auroc: dict[int, float]) -> dict[tuple[str, str], dict[int, float]]:
        return {("near", "AUROC"): auroc, ("far", "AUROC"): auroc}

    values = {"Vanilla for 12 epochs": row({0: 80.0, 1: 90.0}), "SPCP rho_norm=3 for 12 epochs": row({1: 85.0})}
    values["SPCP rho_norm=3 for 30 epochs"] = row({0: 1.0})  # without a plain one
    assert findings.lengths(values) == tuple(
        f"SPCP rho_norm=3, {group} sets, gain of AUROC over plain training: -5.0 after 12 epochs (one seed)."
        for group in ("near", "far")
    )


def test_auto_is_compared_with_plain_training_and_with_the_search() -> None:
    """Over the seeds that both have."""

    def row(auroc: dict[int, float]) -> dict[tuple[str, str], dict[int, float]]:
        return {("near", "AUROC"): auroc, ("far", "AUROC"): {seed: 100 - area for seed, area in auroc.items()}}

    rows = {"SPCP auto": {0: 79.0}, "SPCP": {0: 80.0, 1: 84.0}, "Vanilla": {0: 70.0, 1: 90.0}}
    assert findings.auto({name: row(auroc) for name, auroc in rows.items()}) == (
        "near sets: its AUROC is 9.0 points above plain training and 1.0 points below the value chosen on validation "
        "data (one seed).",
        "far sets: its AUROC is 9.0 points below plain training and 1.0 points above the value chosen on validation "
        "data (one seed).",
    )


def test_findings_follow_from_the_numbers_that_are_kept() -> None:
    """So a sentence that was written down by an older version is not published; some need all of their rows."""
    rows = {"Vanilla for 20 epochs": 80.0, "SPCP rho_norm=3 for 20 epochs": 75.0}
    cells = tuple(Cell(row, group, "AUROC", (auc,), (0,)) for row, auc in rows.items() for group in ("near", "far"))
    kept = Outcome("training-length", "", "small", {"missing": "Not trained yet: others."}, cells, (), ("as before",))
    assert [text.rpartition(": ")[2] for text in judged(kept).findings] == ["-5.0 after 20 epochs (one seed)."] * 2
    assert judged(dataclasses.replace(kept, name="rho-auto")).findings == ()


def test_a_head_that_truncates_at_inference_only(folder: Path) -> None:
    """As `fit_threshold` has it."""
    runs = Lab(BUDGETS["smoke"], folder / "smoke", seeds=1, log=lambda _: None)
    row = Row("truncate:infer", head="fitted", benchmark="digits")
    fitted, plain = runs.evaluation(row, 0), runs.evaluation(dataclasses.replace(row, head="trained"), 0)
    head = fitted.model.head
    assert isinstance(head, SPCPLinear)
    model = torch.nn.Sequential(torch.nn.Linear(64, 10))
    model.load_state_dict({f"0.{key}": value for key, value in plain.model.head.state_dict().items()})
    SPCPLinear.convert_(model[0], Truncation(runs.rho_norm("digits"), stages="infer"))
    assert fit_threshold(model, [plain.bank("train").features]) == pytest.approx(float(head.threshold), rel=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(fitted.bank("test").logits, head(plain.bank("test").features))


def test_rows_have_distinct_names(tmp_path: Path) -> None:
    for budget in BUDGETS.values():
        runs = Lab(budget, tmp_path, seeds=1)
        runs._chosen = {(benchmark, how): 1.0 for benchmark in ("digits", "cifar10") for how in (CHOSEN, ON_NOISE)}
        runs._benchmarks = dict.fromkeys(("cifar10", "cifar100", "imagenet200"), load_benchmark("digits"))
        for name in EXPERIMENTS:
            names = [label(row) for row in rows_of(name, runs)]
            assert len(set(names)) == len(names), name


def test_few_images_are_the_first_of_each_class() -> None:
    whole = load_benchmark("digits")
    few = whole.fewer(50)
    assert few.train is not None
    assert torch.bincount(few.train.y).tolist() == [5] * 10  # type: ignore[union-attr]
    assert whole.fewer(None) is whole
    assert whole.fewer(10**9) is whole
    with pytest.raises(InputError, match="5 images are too few for 10 classes"):
        whole.fewer(5)
