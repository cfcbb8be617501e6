from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from test_bank import Counting

from spcp import methods
from spcp.fingerprint import fingerprint
from spcp.model import ScoredModel


def test_whatever_outputs_depend_on_is_in_the_fingerprint() -> None:
    keys = [fingerprint(Counting())]
    assert fingerprint(Counting()) == keys[0]

    def changed(change: Any) -> None:
        model = Counting()
        change(model)
        keys.append(fingerprint(model))

    changed(lambda model: setattr(model, "scales", (1, 2)))
    changed(lambda model: setattr(model, "scales", (1, 3)))
    changed(lambda model: setattr(model, "_offset", 3))
    changed(lambda model: setattr(model, "rule", lambda x: x + 1))
    changed(lambda model: setattr(model, "rule", lambda x: x + 2))
    changed(lambda model: setattr(model, "forward", lambda x: x))
    changed(lambda model: model.register_buffer("hidden", torch.ones(1), persistent=False))
    changed(lambda model: model.fc.register_forward_hook(lambda module, inputs, output: output * 2))
    changed(lambda model: model.fc.register_forward_hook(lambda module, inputs, output: output * 3))
    changed(lambda model: setattr(model, "__class__", type("Child", (Counting,), {"forward": lambda self, x: x})))
    for factor in (2, 3):  # of one line of source
        changed(lambda model, factor=factor: setattr(model, "rule", lambda x: x * factor))
    changed(lambda model: setattr(model, "rule", [lambda x: x + 1, lambda x: x + 2][0]))
    changed(lambda model: setattr(model, "rule", [lambda x: x + 1, lambda x: x + 3][0]))
    with torch.autocast("cpu"):
        keys.append(fingerprint(Counting()))
    mos = [methods.MOS(groups=groups) for groups in ([[0, 1], [2]], [[0], [1, 2]])]
    keys += [fingerprint(Counting(), method) for method in (methods.T2FNorm(), *mos)]
    scored = (ScoredModel(Counting()), ScoredModel(Counting(), truncate=False))
    keys += [model.fingerprint() for model in scored]
    assert len(set(keys)) == len(keys)


def test_the_mode_and_the_process_do_not_matter() -> None:
    code = "import test_bank as t; from spcp.fingerprint import fingerprint; print(fingerprint(t.Counting().eval()))"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
        )
        assert result.stdout.strip() == fingerprint(Counting()), result.stderr
