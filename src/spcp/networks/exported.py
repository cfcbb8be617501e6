"""A program of `torch.export` as a network, for inference."""

from __future__ import annotations

import io
import operator
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .base import Network


class Exported(Network):
    """An exported program, split before its last linear layer; it stays in the mode it was exported in."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        body: Any = program.module()
        outputs = next(node for node in reversed(body.graph.nodes) if node.op == "output")
        last = outputs.args[0][0] if isinstance(outputs.args[0], tuple | list) else outputs.args[0]
        inputs = [node for node in body.graph.nodes if node.op == "placeholder"]
        if last.target is not torch.ops.aten.linear.default or len(inputs) != 1:
            raise InputError("the program must take one tensor and end in a linear layer; export the classifier alone")
        given = dict(zip(("input", "weight", "bias"), last.args, strict=False)) | last.kwargs  # by place, or by name
        nodes = {key: given[key] for key in ("weight", "bias") if given.get(key) is not None}
        tensors = {key: operator.attrgetter(node.target)(body) for key, node in nodes.items()}
        num_classes, num_features = tensors["weight"].shape
        self.classifier = nn.Linear(num_features, num_classes, bias="bias" in tensors)
        self.classifier.load_state_dict(tensors)
        outputs.args = (given["input"],)
        body.graph.set_codegen(torch.fx.graph.CodeGen())  # a tensor in, a tensor out
        body.graph.erase_node(last)
        body.recompile()
        self.body = body

    def forward_features(self, x: Tensor) -> Tensor:
        """Return what goes into the last layer, (batch, D)."""
        h: Tensor = self.body(x)
        return h

    def train(self, mode: bool = True) -> Exported:
        """Set the mode of the classifier; an exported program has none."""
        self.training = mode
        self.classifier.train(mode)
        return self


def read_program(path: Path) -> Exported:
    """Read a file of `torch.export.save`. What torch would unpickle in it has to be plain tensors."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; export the model with torch.export.save")
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                inner = entry.partition("/")[2]
                code = inner.startswith(("data/aotinductor/", "data/constants/custom", "data/constants/opaque"))
                legacy = inner.startswith(("data/weights/", "data/constants/")) and inner.endswith(".pt")
                pickled = inner.endswith("_config.json") and b'"use_pickle": true' in archive.read(entry)
                if code or legacy or pickled:
                    raise ValueError(f"it holds more than plain tensors: {entry}")
                if inner.startswith("data/sample_inputs/"):
                    torch.load(io.BytesIO(archive.read(entry)), weights_only=True)
        return Exported(torch.export.load(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # whatever a damaged archive leads to
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{path}: cannot be used ({reason}); export the model with torch.export.save") from error
