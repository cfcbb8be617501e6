"""A network whose outputs can be scored: features, logits and predictions of a batch, without touching the network.

Every call runs a view of the network: copies of its modules that share its parameters and buffers. The view is in
evaluation mode, it catches what enters and leaves the classifier, and it truncates or not, while the network keeps its
mode, its hooks and its head. So threads may share a network, and one that is being trained can be scored.
"""

from __future__ import annotations

import functools
import os
import types
import warnings
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule

from .contributions import SPCPLinear, find_classifier
from .errors import InputError
from .fingerprint import fingerprint
from .methods import Method
from .methods import Outputs as Outputs

M = TypeVar("M", bound=nn.Module)

# Containers of a module that a view copies, so that a change of the view does not reach the module; hooks only of the
# classifier: during a pass nobody registers others, and to copy them all would take longer than all the rest.
_COPIED = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_OURS = -1  # the key of our hooks; torch counts from 0
_ROWS = (list, tuple)
_PLAIN = {int, float, bool, str, type(None)}
_EVERY = frozenset(nn.Module().__dict__)  # attributes of every module
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
        return self.run(x)[0]

    def run(self, x: Tensor) -> tuple[Outputs, nn.Linear]:
        """Return the outputs of a batch, and the head that scores of them may need."""
        network, method, head = self._views()
        if method is not None:
            return method.outputs(network, x), method.scoring_head(network)  # type: ignore[arg-type]
        entered: list[Tensor] = []
        left: list[Tensor] = []
        before, after = (head.__dict__[name] for name in _HOOKS)  # quicker than to register and remove hooks
        before[_OURS] = lambda _, inputs: entered.append(inputs[0])
        before.move_to_end(_OURS, last=False)
        after[_OURS] = lambda _, inputs, output: left.append(output)
        network(x)
        del before[_OURS], after[_OURS]
        if len(entered) != 1 or entered[0].ndim != 2:
            shapes = ", ".join(str(tuple(features.shape)) for features in entered)
            raise InputError(
                f"the classifier of {type(self.network).__name__} saw {shapes or 'nothing'} in one pass, not features "
                "(batch, D); name another layer with classifier=..."
            )
        return Outputs(entered[0], left[0], left[0].argmax(1)), head

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
        weights = (weight for module in self.network.modules() for weight in module._parameters.values())
        return next((weight.device for weight in weights if weight is not None), torch.device("cpu"))

    def fingerprint(self) -> str:
        """Return a key of all that the outputs depend on: weights, buffers, attributes, hooks and code."""
        return fingerprint(self.network, self.method, self.classifier, self.truncate)

    def _views(self) -> tuple[nn.Module, Method | None, nn.Linear]:
        """Return views of the network, of its method and of its classifier."""
        _settle(os.getpid())
        views: dict[int, nn.Module] = {}
        network = _view(self.network, views)
        method = None if self.method is None else _view(self.method, views)
        head: Any = views[id(self.network.get_submodule(self.classifier))]
        head.__dict__.update({name: head.__dict__[name].copy() for name in _HOOKS})
        _redirect(views)
        if not self.truncate:
            for module in list(views.values()):
                if isinstance(module, SPCPLinear):
                    module.revert_()
        return network, method, head


_PARENT = os.getpid()


@functools.cache
def _settle(process: int) -> None:
    """Let a child of `fork` compute with one thread: it would wait for ever for threads that only its parent has."""
    if process != _PARENT and torch.get_num_threads() > 1:
        warnings.warn(
            "this process was forked, so it computes with one thread; to use more, start processes by spawn",
            stacklevel=2,
        )
        torch.set_num_threads(1)


def is_untrained(network: nn.Module) -> bool:
    """Return whether all normalisation layers are as they were made, so that the weights are random.

    A network without such layers may be random all the same.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    states: list[tuple[Tensor | None, Tensor | None]] = [(layer.running_mean, layer.running_var) for layer in layers]
    if not layers:
        others = [layer for layer in network.modules() if isinstance(layer, nn.LayerNorm | nn.GroupNorm)]
        states = [(layer.bias, layer.weight) for layer in others]
    known = [(shift, scale) for shift, scale in states if shift is not None and scale is not None]
    return bool(known) and all(not shift.any() and bool((scale == 1).all()) for shift, scale in known)


def _view(module: M, views: dict[int, nn.Module]) -> M:
    """Copy a tree of modules, but not their tensors, in evaluation mode; `views` holds the copies by the id of each."""
    if isinstance(module, ScriptModule):  # cannot be copied
        views[id(module)] = module
    elif list(module._modules) == ["_orig_mod"]:  # torch.compile has bound its result to the modules themselves
        views[id(module)] = _view(module.get_submodule("_orig_mod"), views)
    if id(module) in views:
        return views[id(module)]  # type: ignore[return-value]
    view = views[id(module)] = object.__new__(type(module))
    held = module.__dict__.copy()
    for name in _COPIED:
        held[name] = held[name].copy()
    held["training"], held["_compiled_call_impl"] = False, None
    object.__setattr__(view, "__dict__", held)
    children = held["_modules"]
    for name, child in module._modules.items():
        if child is not None:
            children[name] = _view(child, views)
    return view


def _redirect(views: dict[int, nn.Module]) -> None:
    """Let attributes of views refer to views: modules in a list or dictionary, and methods bound to a module.

    Rows of numbers or words, such as the padding of a convolution, stay as they are.
    """
    for view in views.values():
        held = view.__dict__
        for name in held.keys() - _EVERY:
            value = held[name]
            kind = type(value)
            if kind in _REFERRING and not (kind in _ROWS and _PLAIN.issuperset(map(type, value))):
                held[name] = _redirected(value, views)


def _redirected(value: Any, views: dict[int, nn.Module]) -> Any:
    if isinstance(value, nn.Module):
        return views.get(id(value), value)
    if type(value) in _ROWS:
        return type(value)(_redirected(item, views) for item in value)
    if type(value) is dict:
        return {key: _redirected(item, views) for key, item in value.items()}
    if type(value) is types.MethodType:
        return types.MethodType(value.__func__, _redirected(value.__self__, views))
    if type(value) is functools.partial:
        function, arguments, keywords = _redirected([value.func, value.args, value.keywords], views)
        return functools.partial(function, *arguments, **keywords)
    return value
