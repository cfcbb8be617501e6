"""Checks of tensor shapes at run time, in the test run only: whatever a test calls, directly or not, is checked.

A signature gives the dimensions of the arguments, by position, and of the result: "... D, K D, K -> ... K". A letter is
the same number throughout a call, `...` any leading dimensions, `_` what is not checked. None fits every shape.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SIGNATURES = {
    "spcp.contributions.clip.clip_contributions": "... D, K D, K -> ... K",
    "spcp.contributions.quantile.contribution_quantile": "... D, K D -> ...",
    "spcp.contributions.quantile.mean_support": "B D, K D, K -> B",
    "spcp.contributions.quantile.threshold_estimate": "... D, K D, K -> ...",
    "spcp.contributions.eager.clip": "B D, K D, K -> B K",
    "spcp.contributions.eager.quantile": "B D, K D -> B",
    "spcp.contributions.native.clip": "B D, K D, K -> B K",
    "spcp.contributions.native.quantile": "B D, K D -> B",
    "spcp.contributions.triton_kernels.clip": "B D, K D, K -> B K",
    "spcp.contributions.triton_kernels.quantile": "B D, K D -> B",
}
SCORE = "_, B D, B K, _ -> B"  # of every score's method `score`


def check_all() -> None:
    """Let the functions above and all scores check their shapes from now on."""
    for path, signature in SIGNATURES.items():
        module, _, name = path.rpartition(".")
        function = getattr(importlib.import_module(module), name)
        for user in [module for key, module in sys.modules.items() if key.split(".")[0] == "spcp"]:
            if vars(user).get(name) is function:  # its home, and whoever imported it before
                setattr(user, name, checked(function, signature))
    for score in subclasses(importlib.import_module("spcp.scores").Score):
        if "score" in vars(score):
            score.score = checked(score.score, SCORE)


def subclasses(kind: Any) -> list[Any]:
    """Return all classes that inherit from this one, directly or not."""
    return [kind for child in kind.__subclasses__() for kind in (child, *subclasses(child))]


def checked(function: Callable[..., Any], signature: str) -> Callable[..., Any]:
    """Return the function with a check of what went in and came out, but for what it refuses by itself."""
    inputs, outputs = ([shape.split() for shape in side.split(",")] for side in signature.split("->"))
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not torch.compiler.is_compiling():
            given = dict(zip(names, args, strict=False)) | kwargs
            results = result if isinstance(result, tuple) else (result,)
            _check(
                f"{function.__module__}.{function.__qualname__}: {signature}",
                [*zip([given.get(name) for name in names], inputs, strict=False), *zip(results, outputs, strict=True)],
            )
        return result

    return call


def _check(where: str, pairs: list[tuple[Any, list[str]]]) -> None:
    sizes: dict[str, Any] = {}
    for x, dims in pairs:
        if x is None or dims == ["_"]:
            continue
        assert isinstance(x, Tensor), f"{where}: {type(x).__name__} is not a tensor"
        letters = [letter for letter in dims if letter != "..."]
        leading = x.dim() - len(letters)
        assert leading >= 0 if "..." in dims else leading == 0, f"{where}: shape {tuple(x.shape)} is not {dims}"
        expected = dict(zip(letters, x.shape[leading:], strict=True)) | {"...": tuple(x.shape[:leading])}
        for name, size in expected.items():
            if name in dims:
                assert sizes.setdefault(name, size) == size, f"{where}: {name} is {sizes[name]} and {size}"
