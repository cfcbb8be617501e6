"""One pass over a data set gives what all detectors need; a bank keeps it on disk.

A bank is a folder of shards (safetensors, memory-mapped) under a key of the weights, the transform and the code; each
shard is named by the contents of the samples in it. So changed weights or data never return old numbers, and data that
grows only adds shards. A bank that was cut short is continued, a damaged shard is found out by its checksum and made
again, and two processes may build the same one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import __version__
from . import moments as _moments
from .contributions import find_classifier
from .data import Loader
from .data.cache import cache_folder, key_of, raw
from .data.loader import content_key
from .errors import InputError, need
from .files import written
from .methods import Method
from .moments import Moments, percentile
from .networks.base import Network, evaluating
from .progress import track

_log = logging.getLogger("spcp")

SHARD = 8192  # rows
HOOKED = threading.RLock()  # a hook sees what other threads run, too: one at a time
Part = tuple[Tensor, Tensor, Tensor, Tensor]  # features (N, D), logits (N, K), labels (N,), predicted classes (N,)
Outputs = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class Features:
    """Features, logits, labels and predicted classes of a data set, in parts (the shards of a bank), or whole.

    The statistics that detectors are fitted with are computed once and kept.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._known: dict[Any, Any] = {}

    @classmethod
    def of(cls, h: Tensor, z: Tensor, y: Tensor | None = None, k: Tensor | None = None) -> Features:
        """Of tensors: features (N, D), logits (N, K), labels (N,), predicted classes (N,)."""
        y = torch.full((len(h),), -1) if y is None else y.cpu()
        k = (z.argmax(1) if k is None else k).cpu()
        h, z = h.detach().cpu(), z.detach().cpu()
        if h.ndim != 2 or z.ndim != 2 or y.shape != k.shape or not len(h) == len(z) == len(y) or y.ndim != 1:
            raise InputError(
                f"features {tuple(h.shape)}, logits {tuple(z.shape)} and labels {tuple(y.shape)} do not fit together; "
                "they must be (N, D), (N, K) and (N,)"
            )
        return cls([(h, z, y, k)])

    def parts(self) -> Iterator[Part]:
        """(h, z, y, k) of up to `SHARD` rows each, in float32."""
        for part in self._parts:
            for h, z, y, k in zip(*(own.split(SHARD) for own in part), strict=True):
                yield h.float(), z.float(), y, k

    def __len__(self) -> int:
        return sum(len(part[0]) for part in self._parts)

    @property
    def size(self) -> int:
        """D."""
        return self._parts[0][0].shape[1]

    @property
    def num_classes(self) -> int:
        """K, of the logits."""
        return self._parts[0][1].shape[1]

    @property
    def h(self) -> Tensor:
        """All features, (N, D)."""
        return torch.cat([part[0] for part in self.parts()])

    @property
    def z(self) -> Tensor:
        """All logits, (N, K)."""
        return torch.cat([part[1] for part in self.parts()])

    @property
    def y(self) -> Tensor:
        """All labels, (N,)."""
        return torch.cat([part[2] for part in self._parts])

    @property
    def k(self) -> Tensor:
        """All predicted classes, (N,)."""
        return torch.cat([part[3] for part in self._parts])

    def accuracy(self) -> float:
        """The share of samples that are classified rightly."""
        return float((self.k == self.y).double().mean())

    @torch.no_grad()
    def with_head(self, head: nn.Linear) -> Features:
        """The same features, with the logits and classes of another head."""
        parts, device = [], device_of(head)
        for h, _, y, _ in self._parts:
            z = torch.cat([head(own.to(device, head.weight.dtype)).float().cpu() for own in h.split(SHARD)])
            parts.append((h, z, y, z.argmax(1)))
        return Features(parts)

    def moments(self, correct: bool = False) -> Moments:
        """Of the features by label; if `correct`, of samples that are classified rightly only."""
        if ("moments", correct) not in self._known:

            def chosen() -> Iterator[
                tuple[Tensor, Tensor]
            ]:  # nothing is kept of a part: bits of it would hold its memory
                for h, z, y, _ in self.parts():
                    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes:
                        raise InputError("some of these samples have no label; detectors are fitted on labelled ones")
                    own = z.argmax(1) == y if correct else slice(None)
                    yield h[own], y[own]

            self._known["moments", correct] = _moments.merged_moments(chosen(), self.num_classes, self.size)
        found: Moments = self._known["moments", correct]
        return found

    def percentile(self, percent: float) -> float:
        """Of all entries of all features."""
        if ("percentile", percent) not in self._known:
            self._known["percentile", percent] = percentile(lambda: (part[0] for part in self.parts()), percent)
        return float(self._known["percentile", percent])


def outputs_of(model: nn.Module, method: Method | None = None, classifier: str | None = None) -> Outputs:
    """A function from inputs to penultimate features (B, D), logits (B, K) and classes (B,), whatever the model is."""
    if method is not None:
        return lambda x: method.outputs(model, x)  # type: ignore[arg-type]
    if isinstance(model, Network):
        plain = Method()
        return lambda x: plain.outputs(model, x)
    with HOOKED:  # looking for the classifier may trace the model, which changes how all modules are called meanwhile
        _, head = find_classifier(model, classifier)

    def outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen: list[Tensor] = []
        with HOOKED:
            before = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]), prepend=True)
            after = head.register_forward_hook(lambda _, inputs, output: seen.append(output))
            try:
                model(x)
            finally:
                before.remove()
                after.remove()
        if len(seen) != 2 or seen[0].ndim != 2:
            shapes = ", ".join(str(tuple(own.shape)) for own in seen[::2])
            raise InputError(
                f"the classifier of {type(model).__name__} saw {shapes or 'nothing'} in one pass, not features (batch, "
                "D); name another layer with classifier=..."
            )
        return seen[0], seen[1], seen[1].argmax(1)

    return outputs


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def batches_of(data: Any, size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels (-1 where there are none) of a tensor, of a pair (inputs, labels), or of batches of either."""
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    whole = isinstance(data, Tensor) or (isinstance(data, tuple) and all(isinstance(own, Tensor) for own in data))
    for batch in [data] if whole else data:
        x, *rest = batch if isinstance(batch, tuple | list) else (batch,)
        if not isinstance(x, Tensor):
            raise InputError(
                f"a batch holds a {type(x).__name__}, not a tensor of inputs; give batches (x, y), or x alone"
            )
        y = torch.full((len(x),), -1) if not rest else torch.as_tensor(rest[0]).reshape(-1).long().cpu()
        if len(y) != len(x):
            raise InputError(f"a batch has {len(x)} inputs and {len(y)} labels; give one label for each")
        yield from zip(x.split(size), y.split(size), strict=True)


def extract(model: nn.Module, data: Any, *, method: Method | None = None, classifier: str | None = None) -> Features:
    """One pass over a tensor of inputs, or batches (x, y) or x, kept in memory."""
    outputs, device = outputs_of(model, method, classifier), device_of(model)
    parts = []
    with evaluating(model, method):
        for x, y in batches_of(data):
            h, z, k = outputs(x.to(device))
            parts.append((h.float().cpu(), z.float().cpu(), y, k.cpu()))
    if not parts:
        raise InputError("there are no samples to look at; give at least one batch")
    return Features([tuple(torch.cat(own) for own in zip(*parts, strict=True))])  # type: ignore[list-item]


def build_bank(
    model: nn.Module,
    data: Any,
    transform: Any = None,
    *,
    method: Method | None = None,
    classifier: str | None = None,
    folder: str | Path | None = None,
    batch_size: int = 256,
    dtype: torch.dtype = torch.float32,
    key: str | None = None,
) -> Features:
    """Features of a data set, from its bank; what is missing there is computed in one pass.

    Args:
        model: any classifier.
        data: a set, or anything `spcp.data.as_set` takes.
        transform: the benchmark's.
        method: the training method, where it has outputs of its own.
        classifier: the dotted name of the last layer, where it cannot be found.
        folder: that holds banks; by default in the user's cache folder.
        batch_size: of the pass.
        dtype: to store features and logits in; `torch.float16` halves the size.
        key: of somebody else's items, whose contents cannot be told: a name of yours that changes when they do. Without
            one they are passed through the network each time.
    """
    loader = Loader(data, transform, batch_size=batch_size, device=device_of(model))
    base = Path(folder).expanduser() if folder is not None else cache_folder()
    per = max(1, SHARD // batch_size)  # batches in a shard
    count, size = len(loader.data), per * batch_size
    ranges = [range(start, min(start + size, count)) for start in range(0, count, size)]
    names = [key_of(key, own) if key else content_key(loader.data, transform, own) for own in ranges]
    if base is None or None in names:
        return extract(model, loader, method=method, classifier=classifier)
    bank = base / "banks" / key_of("bank", model_key(model, method, classifier), repr(transform), str(dtype))
    paths = [bank / f"{name}.safetensors" for name in names]
    shards = [_read_shard(path) for path in paths]
    missing = [i for i, shard in enumerate(shards) if shard is None]
    if missing:
        outputs, device = outputs_of(model, method, classifier), device_of(model)
        stream: Iterator[Any] = iter(())
        at = -1
        with evaluating(model, method):
            for i in track(missing, f"features of {loader.data.name}", len(missing)):
                if i != at:
                    stream = loader.epoch(0, i * per)
                at = i + 1
                parts = [(*outputs(x.to(device)), y) for x, y in itertools.islice(stream, per)]
                h, z, k, y = (torch.cat(own).cpu() for own in zip(*parts, strict=True))
                shards[i] = _kept(paths[i], (h.to(dtype), z.to(dtype), y, k), (h, z))
    return Features([shard for shard in shards if shard is not None])


def _kept(path: Path, part: Part, exact: tuple[Tensor, Tensor]) -> Part:
    """The part from disk, or from memory where it cannot be written: the bank is a convenience."""
    for own, whole in zip(part, exact, strict=False):
        if not bool((own.isfinite() == whole.isfinite()).all()):
            raise InputError(f"features or logits are too large for {own.dtype}; store them in float32 or bfloat16")
    try:
        _write_shard(path, part)
    except OSError as error:
        _log.warning("%s: cannot be written (%s); kept in memory", path, error.strerror or error)
        return part
    return _read_shard(path) or part


def _write_shard(path: Path, part: Part) -> None:
    tensors = {name: own.contiguous() for name, own in zip("hzyk", part, strict=True)}
    note = {"checksum": _checksum(tensors)}
    with written(path) as file:
        file.write(need("safetensors.torch", "safetensors").save(tensors, note))


def _read_shard(path: Path) -> Part | None:
    """Memory-mapped; None where there is none, or a damaged one."""
    if not path.exists():
        return None
    safetensors = need("safetensors", "safetensors")
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in "hzyk"}
            note = (file.metadata() or {}).get("checksum")
    except (OSError, safetensors.SafetensorError):
        note, tensors = None, {}
    if note is None or note != _checksum(tensors):
        _log.warning("%s: damaged; made again", path)
        return None
    return tensors["h"], tensors["z"], tensors["y"], tensors["k"]


def _checksum(tensors: dict[str, Tensor]) -> str:
    value = 0
    for name in "hzyk":
        value = zlib.crc32(raw(tensors[name]), value)
    return f"{value:08x}"


def model_key(model: nn.Module, method: Method | None = None, classifier: str | None = None) -> str:
    """Of all that a model's outputs depend on: weights, buffers, attributes, hooks, code, and autocast."""
    digest = hashlib.sha256(repr((__version__, torch.__version__, classifier)).encode())
    digest.update(repr([torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]).encode())
    for module in (model, method):
        if module is not None:
            for name, layer in module.named_modules():
                digest.update(f"{name} {type(layer).__qualname__}".encode())
                _add_code(digest, type(layer))
                for key in sorted(vars(layer)):
                    if key != "training" and key not in BOOKKEEPING:
                        digest.update(key.encode())
                        _add(digest, vars(layer)[key])
    return digest.hexdigest()


# What modules keep that changes nothing in what they compute.
BOOKKEEPING = {"_modules", "_warned", "_unchecked", "_state_dict_hooks", "_state_dict_pre_hooks"}
BOOKKEEPING |= {"_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_non_persistent_buffers_set"}
BOOKKEEPING |= {"_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook", "_compiled_call_impl"}


def _add(digest: Any, value: Any, depth: int = 0) -> None:
    """Put whatever an attribute holds into the digest: tensors by their bytes, functions by their code."""
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(raw(value))
    elif depth > 5 or isinstance(value, nn.Module):
        digest.update(type(value).__qualname__.encode())
    elif isinstance(value, dict):
        for key in value:
            digest.update(
                b"" if isinstance(key, int) else repr(key).encode()
            )  # hooks are numbered anew in each process
            _add(digest, value[key], depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        digest.update(str(len(value)).encode())
        for own in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            _add(digest, own, depth + 1)
    elif hasattr(value, "__code__"):
        _add_function(digest, value, depth)
    elif isinstance(value, str | bytes | int | float | complex | torch.dtype | torch.device | type(None)):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__qualname__.encode())
        _add(digest, getattr(value, "__dict__", {}), depth + 1)


def _add_function(digest: Any, function: Any, depth: int = 0) -> None:
    _add_bytecode(digest, function.__code__)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            _add(digest, cell.cell_contents, depth + 1)


def _add_bytecode(digest: Any, code: Any) -> None:
    digest.update(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            _add_bytecode(digest, constant)
        else:
            _add(digest, constant)


def _add_code(digest: Any, kind: type) -> None:
    """The methods of a class and of those it inherits from, but for torch's own, which its version stands for."""
    for own in kind.__mro__:
        if own is object or own.__module__.split(".")[0] == "torch":
            continue
        for name in sorted(vars(own)):
            member = vars(own)[name]
            member = getattr(member, "__func__", member)
            if hasattr(member, "__code__"):
                digest.update(name.encode())
                _add_function(digest, member)
            elif isinstance(member, str | int | float | tuple) and not name.startswith("__"):
                digest.update(f"{name} {member!r}".encode())
