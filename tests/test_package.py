import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from formats import write_image
from torch import nn

import spcp

ROOT = Path(__file__).parent.parent


def test_version() -> None:
    assert importlib.metadata.version("spcp") == spcp.__version__


def test_import_takes_torch_alone() -> None:
    """Nothing that torch itself does not import, whatever is used of the package's names."""
    code = "import sys, {}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    everything = "spcp; [getattr(spcp, name) for name in dir(spcp) if name != 'report']"
    loaded = [
        set(subprocess.run([sys.executable, "-c", code.format(name)], capture_output=True, text=True).stdout.split())
        for name in ("torch", everything)
    ]
    extra = {name for name in loaded[1] - loaded[0] if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert extra == {"spcp"}


def test_the_package_itself_imports_nothing() -> None:
    """Not even torch, so that the command line can answer at once."""
    code = "import sys, spcp; print('torch' in sys.modules); spcp.apply_spcp; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]


def test_all_names_are_there() -> None:
    for name in spcp.__all__:
        assert getattr(spcp, name) is not None
    assert set(spcp.__all__) <= set(dir(spcp))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spcp.nothing


def test_the_readmes_code_runs() -> None:
    code, _ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
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
    assert names["is_odd"].shape == (50,)  # type: ignore[attr-defined]


def test_the_data_guides_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path / "cache"))
    for i in range(40):
        write_image(tmp_path / "photos" / ("robin", "wren")[i % 2] / f"{i}.jpg", seed=i)
    write_image(tmp_path / "cars" / "0.jpg")
    write_image(tmp_path / "bats" / "0.jpg")
    text = (ROOT / "docs/data.md").read_text()
    names: dict[str, object] = {"spcp": spcp}
    snippets = [
        re.findall(r"```python\n(.*?)```", page, re.DOTALL) for page in (text, (ROOT / "README.md").read_text())
    ]
    for code in (*snippets[0], snippets[1][1]):
        exec(code, names)
    assert isinstance(names["benchmark"], spcp.data.Benchmark)
    assert set(names["benchmark"].far) == {"cars"}
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "birds.toml").write_text(toml)
    assert set(spcp.data.load_benchmark("birds.toml").near) == {"bats"}


@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_training_guides_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/training.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        names: dict[str, object] = {}
        exec(code, names)
        assert isinstance(names["network"].classifier, spcp.SPCPLinear)  # type: ignore[attr-defined]
    from spcp.objectives import METHODS

    for method in METHODS:
        assert f"`{method}`" in text, method


def test_the_detection_guides_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path / "cache"))
    from spcp.detectors import SCORES
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
    for name in SCORES:
        assert f"| `{name}` |" in text, name


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{name}.md" for name in ("architecture", "data", "detect", "performance", "training")),
]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text()):
        assert target.startswith("https://") or (ROOT / name).parent.joinpath(target).exists(), target
