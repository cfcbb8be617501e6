import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import spcp

ROOT = Path(__file__).parent.parent


def test_version() -> None:
    assert importlib.metadata.version("spcp") == spcp.__version__


def test_import_takes_torch_alone() -> None:
    """Nothing that torch itself does not import."""
    code = "import sys, {}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = [
        set(subprocess.run([sys.executable, "-c", code.format(name)], capture_output=True, text=True).stdout.split())
        for name in ("torch", "spcp")
    ]
    extra = {name for name in loaded[1] - loaded[0] if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert extra == {"spcp"}


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
    assert names["is_odd"].shape == (50,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/performance.md"])
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text()):
        assert target.startswith("https://") or (ROOT / name).parent.joinpath(target).exists(), target
