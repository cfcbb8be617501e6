"""A network whose outputs can be scored: features, logits and predictions of a batch, without touching the network.

Every call runs a view of the network: copies of its modules that share its parameters and buffers. The view is in
evaluation mode, it catches what enters and leaves the classifier, and it truncates or not, while the network keeps its
mode, its hooks and its head. So threads may share a network, and one that is being trained can be scored.
"""

from __future__ import annotations

import functools
import types
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .contributions import SPCPLinear, find_classifier
from .errors import InputError
from .fingerprint import fingerprint
from .methods import Method
from .methods import Outputs as Outputs

M = TypeVar("M", bound=nn.Module)

# Containers of a module that a view copies, so that a change of the view does not reach the module.
_COPIED = (
    *("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules", "_forward_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)
_REFERRING = {list, tuple, dict, types.MethodType, functools.partial}  # values of attributes that may hold modules


class ScoredModel(nn.Module):
    """A network, its training method if that has other outputs, and whether contributions are truncated.

    Args:
        network: any classifier.
        method: the training method, where features, logits or predictions are not those of the network alone.
        classifier: the dotted name of the layer that makes the logits, where it cannot be inferred.
        truncate: False scores the network as if its SPCP heads were plain linear layers.

    Example:
        >>> model = ScoredModel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))
        >>> model.outputs(torch.randn(2, 4)).features.shape
        torch.Size([2, 16])
    """

    def __init__(
        self,
        network: nn.Module,
        method: Method | None = None,
        *,
        classifier: str | None = None,
        truncate: bool = True,
    ) -> None:
        super().__init__()
        self.network, self.method, self.truncate = network, method, truncate
        self.classifier, _ = find_classifier(network, classifier)

    def outputs(self, x: Tensor) -> Outputs:
        """Run a batch in evaluation mode; the features are what enters the classifier."""
        network, method, head = self._views()
        if method is not None:
            return method.outputs(network, x)  # type: ignore[arg-type]
        entered: list[Tensor] = []
        left: list[Tensor] = []
        head.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]), prepend=True)
        head.register_forward_hook(lambda _, inputs, output: left.append(output))
        network(x)
        if len(entered) != 1 or entered[0].ndim != 2:
            shapes = ", ".join(str(tuple(features.shape)) for features in entered)
            raise InputError(
                f"the classifier of {type(self.network).__name__} saw {shapes or 'nothing'} in one pass, not features "
                "(batch, D); name another layer with classifier=..."
            )
        return Outputs(entered[0], left[0], left[0].argmax(1))

    @property
    def head(self) -> nn.Linear:
        """The layer that makes logits of features: in evaluation mode, and plain where `truncate` is False."""
        network, method, head = self._views()
        return head if method is None else method.scoring_head(network)  # type: ignore[arg-type]

    @property
    def num_classes(self) -> int:
        """K, the number of classes that are predicted."""
        network: Any = self.network
        return self.head.out_features if self.method is None else self.method.num_classes(network)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next((parameter.device for parameter in self.network.parameters()), torch.device("cpu"))

    def fingerprint(self) -> str:
        """Return a key of all that the outputs depend on: weights, buffers, attributes, hooks and code."""
        return fingerprint(self.network, self.method, self.classifier, self.truncate)

    def _views(self) -> tuple[nn.Module, Method | None, nn.Linear]:
        """Return views of the network, of its method and of its classifier."""
        views: dict[int, nn.Module] = {}
        network = _view(self.network, views)
        method = None if self.method is None else _view(self.method, views)
        head: Any = views[id(self.network.get_submodule(self.classifier))]
        _redirect(views)
        if not self.truncate:
            for module in list(views.values()):
                if isinstance(module, SPCPLinear):
                    module.revert_()
        return network, method, head


def _view(module: M, views: dict[int, nn.Module]) -> M:
    """Copy a tree of modules, but not their tensors, in evaluation mode; `views` holds the copies by the id of each."""
    if isinstance(module, torch.jit.ScriptModule):  # cannot be copied
        views[id(module)] = module
    elif list(module._modules) == ["_orig_mod"]:  # torch.compile has bound its result to the modules themselves
        views[id(module)] = _view(module.get_submodule("_orig_mod"), views)
    if id(module) in views:
        return views[id(module)]  # type: ignore[return-value]
    view = views[id(module)] = object.__new__(type(module))
    held = module.__dict__.copy()
    held.update({name: held[name].copy() for name in _COPIED}, training=False, _compiled_call_impl=None)
    object.__setattr__(view, "__dict__", held)
    for name, child in module._modules.items():
        held["_modules"][name] = child if child is None else _view(child, views)
    return view


def _redirect(views: dict[int, nn.Module]) -> None:
    """Let attributes of views refer to views: modules in a list or dictionary, and methods bound to a module."""

    def redirected(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return views.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(map(redirected, value))
        if type(value) is dict:
            return {key: redirected(item) for key, item in value.items()}
        if type(value) is types.MethodType:
            return types.MethodType(value.__func__, redirected(value.__self__))
        if type(value) is functools.partial:
            return functools.partial(redirected(value.func), *map(redirected, value.args), **redirected(value.keywords))
        return value

    for view in list(views.values()):
        for name, value in view.__dict__.items():
            if type(value) in _REFERRING and name not in _COPIED:
                view.__dict__[name] = redirected(value)
