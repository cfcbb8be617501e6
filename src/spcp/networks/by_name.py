"""Models that a user names by the function that builds them.

To build such a model is to run code. Nothing here is called for a name that only a file holds, see
`spcp.config.build_network`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from typing import Any

import torch
from torch import nn

from ..errors import InputError, raised_in
from .adapted import adapt, agree, logits_of
from .base import Network
from .pretrained import is_pretrained


def is_code(name: str) -> bool:
    """Tell whether a network's name is "package.module:function", and not one of this library's.

    >>> is_code("resnet18"), is_code("mypackage.models:build")
    (False, True)
    """
    return ":" in name and not is_pretrained(name)


def load_model(name: str, num_classes: int, shape: tuple[int, ...]) -> Network:
    """Build a model by name, as a network, and try it on random samples.

    Args:
        name: "package.module:function", which is called with `num_classes` (or `classes`), if it takes that, and else
            with nothing.
        num_classes: K.
        shape: of a prepared sample.
    """
    return tried(_built(name, num_classes), name, shape)


def tried(model: nn.Module, name: str, shape: tuple[int, ...]) -> Network:
    """Return a model as a network, after it was tried on random samples of a shape."""
    batches = [torch.randn(count, *shape) for count in (2, 5)]
    try:
        theirs = [logits_of(model, x) for x in batches]
        network = adapt(model)
        ours = [logits_of(network, x) for x in batches]
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"{name}: cannot be run on samples {shape} ({reason}); it must take batches of them"
        ) from error
    if not all(map(agree, ours, theirs)):
        raise InputError(f"{name}: does more after its last layer; name a model whose output is that of an nn.Linear")
    return network


def _built(name: str, num_classes: int) -> nn.Module:
    """Call the function of a name."""
    module, _, function = name.partition(":")
    try:
        if importlib.util.find_spec(module.partition(".")[0]) is None and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last, so that nothing there is mistaken for a library
        build: Any = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise InputError(
                f"{name}: there is no module {error.name!r} in {os.getcwd()} or among the packages of {sys.prefix}; go "
                "to the folder that holds it, or install it"
            ) from error
        raise InputError(f"{name}: {module} cannot be imported: {_own(error)}") from error
    try:
        for part in function.split("."):
            build = getattr(build, part)
        parameters = inspect.signature(build).parameters
    except (AttributeError, ValueError, TypeError) as error:
        raise InputError(f"{name}: cannot be called ({error}); name a function as package.module:function") from error
    key = next((key for key in ("num_classes", "classes") if key in parameters), None)
    needed = [
        p.name for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if set(needed) - {key}:
        raise InputError(f"{name}: needs {', '.join(needed)}; write a function that needs `num_classes` or nothing")
    try:
        model = build(**({key: num_classes} if key else {}))
    except Exception as error:
        raise InputError(f"{name}: {function} failed: {_own(error)}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"{name}: returns a {type(model).__name__}, not a model; name a function that builds one")
    return model


def _own(error: Exception) -> str:
    """Put an error of somebody else's code into words."""
    place = raised_in(error)
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")
