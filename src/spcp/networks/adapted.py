"""Any classifier as a network of this library: `features`, and the last `nn.Linear` as `classifier`."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..atomic import written
from ..contributions import find_classifier
from ..data.cache import cache_folder
from ..errors import InputError
from .base import Network, evaluating


class Adapted(Network):
    """Somebody else's model, cut in two: what comes before its classifier, and the classifier.

    The classifier is taken out of the model, so that running the model gives the features; it must be the model's last
    step. It is found as `apply_spcp` finds it.
    """

    def __init__(self, model: nn.Module, classifier: str | None = None) -> None:
        super().__init__()
        name, head = find_classifier(model, classifier)
        if model is head:
            model = nn.Identity()
        else:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Identity())
        self.body, self.classifier, self.name = model, head, name

    def renamed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The model's own state dict by the names that its parts have here."""
        prefix = f"{self.name}." if self.name else ""
        return {
            f"classifier.{key.removeprefix(prefix)}" if key.startswith(prefix) else f"body.{key}": value
            for key, value in weights.items()
        }

    def forward_features(self, x: Tensor) -> Tensor:
        """What went into the classifier, (batch, D)."""
        h = logits_of(self.body(x))
        if h.ndim != 2 or h.shape[1] != self.classifier.in_features:
            raise ValueError(
                f"Without its classifier the model gives {tuple(h.shape)}, not (batch, {self.classifier.in_features}): "
                "the classifier is not its last step. Name the last layer, or write a Network of your own."
            )
        return h


def logits_of(output: Any) -> Tensor:
    """The logits among what a model returns: Hugging Face's return more than one thing."""
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


def adapt(model: nn.Module, classifier: str | None = None) -> Network:
    """A network of any classifier: one's own, torchvision's, timm's, Hugging Face's; this library's stay as they are.

    The model itself is changed; adapt a copy to keep it.

    >>> network = adapt(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> network.classifier
    Linear(in_features=8, out_features=3, bias=True)
    """
    return model if isinstance(model, Network) else Adapted(model, classifier)


class Exported(Network):
    """A program of `torch.export`, cut before its last linear layer; for inference, as it was exported."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        body: Any = program.module()
        outputs = next(node for node in reversed(body.graph.nodes) if node.op == "output")
        last = outputs.args[0][0] if isinstance(outputs.args[0], tuple | list) else outputs.args[0]
        inputs = [node for node in body.graph.nodes if node.op == "placeholder"]
        if last.target is not torch.ops.aten.linear.default or len(inputs) != 1:
            raise InputError("the program must take one tensor and end in a linear layer; export the classifier alone")
        given = dict(zip(("input", "weight", "bias"), last.args, strict=False)) | last.kwargs  # by place, or by name
        held = {key: getattr_of(body, given[key].target) for key in ("weight", "bias") if given.get(key) is not None}
        outs, features = held["weight"].shape
        self.classifier = nn.Linear(features, outs, bias="bias" in held)
        self.classifier.load_state_dict(held)
        outputs.args = (given["input"],)
        body.graph.set_codegen(torch.fx.graph.CodeGen())  # a tensor in, a tensor out
        body.graph.erase_node(last)
        body.recompile()
        self.body = body

    def forward_features(self, x: Tensor) -> Tensor:
        """What goes into the last layer, (batch, D)."""
        h: Tensor = self.body(x)
        return h

    def train(self, mode: bool = True) -> Exported:
        """Only the classifier has modes; what was exported is as it was."""
        self.training = mode
        self.classifier.train(mode)
        return self


def getattr_of(module: nn.Module, name: str) -> Tensor:
    """A parameter or buffer by its dotted name."""
    parent, _, last = name.rpartition(".")
    value: Tensor = getattr(module.get_submodule(parent), last)
    return value


def own_network(name: str, classes: int, shape: tuple[int, ...]) -> Network:
    """One's own model by name.

    Args:
        name: "package.module:function", which is called with `classes` or `num_classes`, if it takes one of them, and
            else with nothing; or a file that `torch.export.save` wrote, ending in .pt2.
        classes: how many there are.
        shape: of a prepared sample; the model is tried on some.
    """
    if name not in _trusted():
        raise InputError(
            f"{name}: is code, and a file asks to run it; if you trust it, name it yourself (spcp adopt, spcp train), "
            "or give the network"
        )
    model = _program(Path(name)) if name.endswith(".pt2") else _built(name, classes)
    few, more = torch.randn(2, *shape), torch.randn(5, *shape)
    try:
        with evaluating(model):
            before = [logits_of(model(x)) for x in (few, more)]
        network = adapt(model)
        with evaluating(network):
            after = [network(x) for x in (few, more)]
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"{name}: cannot be run on samples {shape} ({reason}); it must take batches of them"
        ) from error
    if not all(
        own.shape == other.shape and torch.allclose(own, other, rtol=1e-3, atol=1e-4)
        for own, other in zip(before, after, strict=True)
    ):
        raise InputError(f"{name}: does more after its last layer; name a model whose output is that of an nn.Linear")
    return network


def _built(name: str, classes: int) -> nn.Module:
    """What a function builds."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that nothing there is mistaken for a library
    try:
        build: Any = importlib.import_module(module)
        for part in function.split("."):
            build = getattr(build, part)
        taken = inspect.signature(build).parameters
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"{name}: cannot be imported ({error}); name it as package.module:function") from error
    key = next((key for key in ("classes", "num_classes") if key in taken), None)
    try:
        model = build(**({key: classes} if key else {}))
    except TypeError as error:
        raise InputError(f"{name}: {error}; write a function that needs `classes` or nothing") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"{name}: returns a {type(model).__name__}, not a model; name a function that builds one")
    return model


def _program(path: Path) -> Network:
    """An exported program; torch would unpickle what is in it, so that has to be plain tensors."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; export the model with torch.export.save")
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                inner = entry.partition("/")[2]
                odd = inner.startswith(("data/aotinductor/", "data/constants/custom", "data/constants/opaque"))
                legacy = inner.startswith(("data/weights/", "data/constants/")) and inner.endswith(".pt")
                pickled = inner.endswith("_config.json") and b'"use_pickle": true' in archive.read(entry)
                if odd or legacy or pickled:
                    raise ValueError(f"it holds more than plain tensors: {entry}")
                if inner.startswith("data/sample_inputs/"):
                    torch.load(io.BytesIO(archive.read(entry)), weights_only=True)
        return Exported(torch.export.load(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # whatever a damaged archive leads to
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{path}: cannot be used ({reason}); export the model with torch.export.save") from error


# Names of models that this user has given: files (runs, detectors) may ask for these and for no others.
_GIVEN: set[str] = set()


def trust(name: str) -> None:
    """Let files ask for a model of one's own that the user has named."""
    if name in _trusted():
        return
    _GIVEN.add(name)
    folder = cache_folder()
    if folder is not None:
        with written(folder / "models.json") as file:
            file.write(json.dumps(sorted(_trusted())).encode())


def _trusted() -> set[str]:
    folder = cache_folder()
    try:
        return _GIVEN | set(json.loads((folder / "models.json").read_text()) if folder is not None else ())
    except (OSError, ValueError, TypeError):
        return set(_GIVEN)
