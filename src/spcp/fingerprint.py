"""A key of all that a model's outputs depend on, under which they are kept."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from . import __version__
from .files import raw

# What modules hold that changes nothing in what they compute in evaluation mode.
_BOOKKEEPING = {"training", "_modules", "_warned", "_unchecked", "_state_dict_hooks", "_state_dict_pre_hooks"}
_BOOKKEEPING |= {"_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_non_persistent_buffers_set"}
_BOOKKEEPING |= {"_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook", "_compiled_call_impl"}


def fingerprint(*parts: nn.Module | str | bool | None) -> str:
    """Return a digest of modules (weights, buffers, attributes, hooks, source), of options and of the versions.

    >>> fingerprint(nn.ReLU(), True) == fingerprint(nn.ReLU(), True) != fingerprint(nn.ReLU(), False)
    True
    """
    digest = hashlib.sha256()
    _add(digest, (__version__, torch.__version__, [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]))
    for part in parts:
        if not isinstance(part, nn.Module):
            _add(digest, part)
            continue
        for name, module in part.named_modules():
            digest.update(f"{name} {type(module).__qualname__};".encode())
            _add_class(digest, type(module))
            _add(digest, {key: vars(module)[key] for key in sorted(vars(module)) if key not in _BOOKKEEPING})
    return digest.hexdigest()


def _add_class(digest: Any, kind: type) -> None:
    """Add the functions and constants of a class and its bases, but for torch's, for which its version stands."""
    for base in kind.__mro__:
        if base is not object and base.__module__.split(".")[0] != "torch":
            for name, member in vars(base).items():
                member = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(member, FunctionType | str | int | float | tuple) and name not in (
                    "__doc__",
                    "__module__",
                ):
                    _add(digest, {name: member})


def _add(digest: Any, value: Any, depth: int = 0) -> None:
    """Add whatever an attribute holds: tensors by their bytes, functions by their source, objects by what they hold."""
    digest.update(f"{type(value).__qualname__};".encode())
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)};".encode())
        digest.update(raw(value))
    elif isinstance(value, str | bytes | int | float | complex | torch.dtype | torch.device | type(None)):
        digest.update(f"{value!r};".encode())
    elif depth > 6 or isinstance(value, nn.Module):
        pass  # its type will do; a module is among those of the model
    elif isinstance(value, dict):
        for key, item in value.items():
            digest.update(b"" if isinstance(key, int) else f"{key!r};".encode())  # each process numbers hooks anew
            _add(digest, item, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        digest.update(f"{len(value)};".encode())
        for item in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            _add(digest, item, depth + 1)
    elif isinstance(value, FunctionType):
        digest.update(_source(value.__code__))
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell that is still empty
                _add(digest, cell.cell_contents, depth + 1)
        _add(digest, (value.__defaults__, value.__kwdefaults__), depth + 1)
    else:
        _add(digest, [getattr(value, "__func__", None), getattr(value, "__dict__", None)], depth + 1)


@functools.lru_cache(maxsize=4096)
def _source(code: CodeType) -> bytes:
    """Return a function's source, and what tells it from another on the same line: its instructions and constants."""
    try:
        text = inspect.getsource(code)
    except OSError:  # typed at a prompt
        text = ""
    constants = [item for item in code.co_consts if not isinstance(item, CodeType | frozenset)]
    return text.encode() + code.co_code + repr((code.co_names, constants)).encode()
