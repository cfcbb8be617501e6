"""Weights of a file in a network: whatever their names are, they belong where the model that was saved has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor, nn

from ..contributions import apply_spcp
from ..errors import InputError
from .adapted import Adapted
from .base import Network


def put_weights(network: Network, tensors: Mapping[str, Tensor], source: str, *, new_classifier: bool = False) -> bool:
    """Put weights into a network that was built alike; return whether its classifier is theirs.

    They may have the names of the network, as in a run, or of the model it was adapted from; wrappers of either
    ("module.", "model.", "_orig_mod.", ...) do not matter. Weights of an SPCP head bring its threshold along.

    Args:
        network: whose parameters and buffers are set.
        tensors: a state dict.
        source: what to call it in messages.
        new_classifier: leave the network's classifier as it is where theirs is for another number of classes.
    """
    weights, original = _under_our_names(network, tensors)
    theirs = weights.get("classifier.weight")
    other = new_classifier and theirs is not None and len(theirs) != network.num_classes
    if other:
        weights = {name: value for name, value in weights.items() if not name.startswith("classifier.")}
        weights |= {f"classifier.{name}": value for name, value in network.classifier.state_dict().items()}
    if "classifier.threshold" in weights and type(network.classifier) is nn.Linear:
        apply_spcp(network, rho_norm=0.0, classifier="classifier")  # how it truncates is in the file
    state = {name: value for name, value in network.state_dict().items() if not name.endswith("_extra_state")}
    wrong = ""
    for name in sorted(state.keys() | weights.keys()):
        if name not in weights and not name.endswith("num_batches_tracked"):  # which old files lack
            wrong = wrong or f"{original(name)} is missing"
        elif name not in state and not name.endswith("_extra_state"):
            wrong = wrong or f"the network has no {original(name)}"
        elif name in state and name in weights and state[name].shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, not {tuple(state[name].shape)}"
            wrong = f"{original(name)} is {shapes}"  # says more than a name that differs
            break
    if wrong:
        raise InputError(
            f"{source}: its weights belong to another network ({wrong}); name the network, width and method they were "
            "trained with"
        )
    try:
        network.load_state_dict(weights, strict=False)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:  # what is no tensor: how a head truncates
        raise InputError(f"{source}: is damaged ({error}); copy or train it again") from error
    return not other


def _under_our_names(network: Network, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Callable[[str], str]]:
    """Return the tensors by the network's names, and the function that gives a name of theirs back for one of ours."""
    names = [name for name in network.state_dict() if not name.endswith("_extra_state")]
    run = {name: value for name, value in tensors.items() if not name.startswith("method.")}  # a training method's
    ways: list[tuple[dict[str, Tensor], Callable[[str], str]]] = [(_moved(run, names), str)]
    if isinstance(network, Adapted):
        theirs = network.renamed(_moved(tensors, [network.original(name) for name in names]))
        ways.insert(0, (theirs, network.original))
    return max(ways, key=lambda way: len(way[0].keys() & set(names)))


def _moved(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return tensors below the module that all names lie below, instead of that which all of theirs lie below."""
    before, after = _common(tensors), _common(names)
    return {after + name.removeprefix(before): value for name, value in tensors.items()}


def _common(names: Iterable[str]) -> str:
    """Return what all dotted names begin with.

    >>> _common(["model.stem.weight", "model.stem.bias", "model.fc.weight"])
    'model.'
    """
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return "".join(f"{level[0]}." for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
