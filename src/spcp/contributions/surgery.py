"""Surgery: give any classifier an SPCP head, in place, and take it away again."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from torch import fx, nn

from .head import SPCPLinear
from .quantile import RhoNorm
from .truncation import Truncation

Model = TypeVar("Model", bound=nn.Module)

# Where torchvision and Hugging Face keep the classifier: the layer itself, or a small module that ends in it.
USUAL_NAMES = ("fc", "classifier", "head", "heads", "score")


def apply_spcp(
    model: Model,
    rho_norm: RhoNorm,
    *,
    total_steps: int | None = None,
    classifier: str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> Model:
    """Turn the last layer of a classifier into an SPCP head, in place.

    The layer stays the same object with the same parameters, so hooks, wrappers and an optimizer built before keep
    working.

    Args:
        model: any model whose logits come out of an `nn.Linear`: yours, timm's, torchvision's, Hugging Face's.
        rho_norm: how much to truncate, see `Truncation`.
        total_steps: training steps of the run, from which the pace of the threshold follows, see `Truncation`.
        classifier: the dotted name of the layer, where the search for it fails.
        optimizer: checked to hold the head's parameters: one that does not would train without the head.
        options: the other fields of `Truncation`: `beta`, `initial_threshold`, `stages`, `subset`.

    Returns:
        The model itself.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        >>> apply_spcp(model, rho_norm=1.0, total_steps=1000)[-1]
        SPCPLinear(in_features=32, out_features=10, bias=True, rho_norm=1, beta=0.961636, stages='both')
    """
    name, linear = find_classifier(model, classifier)
    if isinstance(linear, SPCPLinear):
        raise ValueError(f"SPCP is already applied to {name!r}; call remove_spcp(model) first.")
    if optimizer is not None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not all(id(p) in held for p in linear.parameters() if p.requires_grad):
            raise ValueError(
                f"The optimizer does not hold the parameters of {name!r}; build it from this model's parameters."
            )
    truncation = Truncation(rho_norm=rho_norm, total_steps=total_steps, **options)
    SPCPLinear.convert_(linear, truncation)
    config: Any = getattr(model, "config", None)
    if hasattr(model, "save_pretrained"):  # Hugging Face's: its config tells `networks.from_pretrained` what to do
        config.spcp = {"classifier": name, "truncation": asdict(truncation)}
    return model


def remove_spcp(model: Model) -> Model:
    """Turn every SPCP head of a model back into the plain `nn.Linear`, in place; its weights stay as they are."""
    heads = [module for module in model.modules() if isinstance(module, SPCPLinear)]
    if not heads:
        raise ValueError(f"{type(model).__name__} has no SPCP head to remove.")
    for head in heads:
        head.revert_()
    config: Any = getattr(model, "config", None)
    if hasattr(config, "spcp"):
        del config.spcp
    return model


def find_classifier(model: nn.Module, classifier: str | None = None) -> tuple[str, nn.Linear]:
    """Find the layer that makes the logits; return its dotted name and the layer.

    It is the one named `classifier`, if given; else the SPCP head if there is one; else what timm's `get_classifier`
    returns; else the `nn.Linear` that a trace of the model's graph ends in; else the layer with a usual name. Raise a
    `ValueError` where these name none or several.
    """
    for wrapper in ("module", "_orig_mod"):  # data parallelism's, torch.compile's
        if list(model._modules) == [wrapper]:
            inner = model.get_submodule(wrapper)
            name, linear = find_classifier(inner, classifier and classifier.removeprefix(f"{wrapper}."))
            return f"{wrapper}.{name}".rstrip("."), linear
    if classifier is not None:
        return _by_path(model, classifier)
    names = {module: name for name, module in reversed(list(model.named_modules()))}  # the first name of each
    heads: list[nn.Linear] = [module for module in names if isinstance(module, SPCPLinear)]
    candidates = heads or _by_timm(model) or _by_tracing_and_name(model)
    if len(candidates) == 1:
        return names[candidates[0]], candidates[0]
    if candidates:
        listed = ", ".join(repr(names[candidate]) for candidate in candidates[-4:])
        raise ValueError(
            f"{type(model).__name__} has {len(candidates)} linear layers that may be its classifier, among them "
            f"{listed}; name one with classifier=..."
        )
    raise ValueError(
        f"No nn.Linear makes the logits of {type(model).__name__}, as far as its graph and names tell; name it with "
        f"classifier=... (a dotted path), or end the model in an nn.Linear."
    )


def _by_path(model: nn.Module, path: str) -> tuple[str, nn.Linear]:
    try:
        module = model.get_submodule(path)
    except AttributeError:
        linears = [repr(name) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        raise ValueError(
            f"The model has no module {path!r}; its linear layers are {', '.join(linears) or 'none'}."
        ) from None
    if not isinstance(module, nn.Linear):
        raise ValueError(f"classifier={path!r} is a {type(module).__name__}; it must be an nn.Linear.")
    return path, module


def _by_timm(model: nn.Module) -> list[nn.Linear]:
    get_classifier = getattr(model, "get_classifier", None)
    if not callable(get_classifier):
        return []
    layers = get_classifier()
    layers = layers if isinstance(layers, (tuple, list)) else [layers]  # two for a distilled model
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


def _by_tracing_and_name(model: nn.Module) -> list[nn.Linear]:
    """Let the trace decide; the usual names decide between several ends of it, or where it fails."""
    children = dict(model.named_children())
    ends = [
        [m for m in children[name].modules() if isinstance(m, nn.Linear)] for name in USUAL_NAMES if name in children
    ]
    usual = [linears[-1] for linears in ends if linears]
    traced = _by_tracing(model)
    if traced is not None:
        direct = [
            child for name in USUAL_NAMES if (child := children.get(name)) in traced and isinstance(child, nn.Linear)
        ]
        return direct if len(direct) == 1 else traced
    learned = [module for module in model.modules() if module._parameters]
    linears = [module for module in learned if isinstance(module, nn.Linear)]
    if usual or len(linears) > 1:
        return usual or linears
    return linears if linears == learned[-1:] else []  # a lone one, but only at the end


_TRACING = threading.RLock()  # two traces at once would undo each other's changes
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TRACING._at_fork_reinit)  # type: ignore[attr-defined]  # its owner stays behind


class _Tracer(fx.Tracer):
    """A tracer that looks into everything but torch's layers and all linear ones."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear) or super().is_leaf_module(m, module_qualified_name)

    # A trace changes how modules are called and read in all threads: the others go on as ever.
    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        return super().call_module(m, forward, args, kwargs) if self._is_here() else forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        return super().getattr(attr, attr_val, parameter_proxy_cache) if self._is_here() else attr_val

    def _is_here(self) -> bool:
        return threading.get_ident() == self.thread


def _by_tracing(model: nn.Module) -> list[nn.Linear] | None:
    """Return the `nn.Linear` layers that the output comes from with nothing learned between; None if untraceable."""
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if isinstance(model, nn.Linear):
        return linears
    try:
        with _TRACING:
            graph = _Tracer().trace(model)
    except Exception:  # whatever stops a symbolic trace: data-dependent control flow, foreign types, ...
        return None
    last: set[nn.Linear] = set()
    pending, seen = [node for node in graph.nodes if node.op == "output"], set()
    while pending:
        node = pending.pop()
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else nn.Identity()
        learned = any(True for _ in module.parameters()) or any(x.op == "get_attr" for x in node.all_input_nodes)
        if isinstance(module, nn.Linear):
            last.add(module)
        elif node not in seen and not learned:
            pending += node.all_input_nodes
        seen.add(node)
    return [linear for linear in linears if linear in last]
