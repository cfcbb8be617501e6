"""Any classifier as a network of this library: `features`, and the last `nn.Linear` as `classifier`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..contributions import find_classifier
from ..errors import InputError
from .base import Network


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

    def features(self, x: Tensor) -> Tensor:
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
        held = {
            key: getattr_of(body, node.target) for key, node in zip(("weight", "bias"), last.args[1:], strict=False)
        }
        outs, features = held["weight"].shape
        self.classifier = nn.Linear(features, outs, bias="bias" in held)
        self.classifier.load_state_dict(held)
        outputs.args = (last.args[0],)
        body.graph.set_codegen(torch.fx.graph.CodeGen())  # a tensor in, a tensor out
        body.graph.erase_node(last)
        body.recompile()
        self.body = body

    def features(self, x: Tensor) -> Tensor:
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


def own_network(name: str, classes: int) -> Network:
    """One's own model by name.

    Args:
        name: "package.module:function", which is called with `classes` or `num_classes`, if it takes one of them, and
            else with nothing; or a file that `torch.export.save` wrote, ending in .pt2.
        classes: how many there are.
    """
    if name.endswith(".pt2"):
        path = Path(name).expanduser()
        if not path.is_file():
            raise InputError(f"{path}: there is no such file; export the model with torch.export.save")
        try:
            return Exported(torch.export.load(path))
        except (RuntimeError, ValueError, KeyError, AttributeError, StopIteration) as error:
            reason = str(error).split("\n")[0]
            raise InputError(f"{path}: cannot be used ({reason}); export the model with torch.export.save") from error
    module, _, function = name.partition(":")
    try:
        build: Any = importlib.import_module(module)
        for part in function.split("."):
            build = getattr(build, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{name}: cannot be imported ({error}); name it as package.module:function") from error
    taken = inspect.signature(build).parameters
    key = next((key for key in ("classes", "num_classes") if key in taken), None)
    model = build(**({key: classes} if key else {}))
    if not isinstance(model, nn.Module):
        raise InputError(f"{name}: returns a {type(model).__name__}, not a model; name a function that builds one")
    return adapt(model)
