"""One pass over a data set gives what all detectors need; a bank keeps it on disk.

A bank is a folder of shards (safetensors, memory-mapped) under a key of the weights, the transform and the code; each
shard is named by the contents of the samples in it. So changed weights or data never return old numbers, and data that
grows only adds shards. A bank that was cut short is continued, a damaged shard is found out by its checksum and made
again, and two processes may build the same one.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import __version__, statistics
from .atomic import written
from .contributions import find_classifier
from .data import Loader
from .data.cache import cache_folder, key_of, raw
from .data.loader import content_key
from .errors import InputError, need
from .networks.base import evaluating
from .objectives import Objective
from .progress import track
from .statistics import Moments

_log = logging.getLogger("spcp")

SHARD = 8192  # rows
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
        y = torch.full((len(h),), -1) if y is None else y
        k = z.argmax(1) if k is None else k
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
    def classes(self) -> int:
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
    def with_head(self, head: nn.Module) -> Features:
        """The same features, with the logits and classes of another head."""
        parts, device = [], device_of(head)
        for h, _, y, _ in self._parts:
            z = torch.cat([head(own.float().to(device)).cpu() for own in h.split(SHARD)])
            parts.append((h, z, y, z.argmax(1)))
        return Features(parts)

    def moments(self, correct: bool = False) -> Moments:
        """Of the features by label; if `correct`, of samples that are classified rightly only."""
        if ("moments", correct) not in self._known:

            def chosen() -> Iterator[
                tuple[Tensor, Tensor]
            ]:  # nothing is kept of a part: bits of it would hold its memory
                for h, z, y, _ in self.parts():
                    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                        raise InputError("some of these samples have no label; detectors are fitted on labelled ones")
                    own = z.argmax(1) == y if correct else slice(None)
                    yield h[own], y[own]

            self._known["moments", correct] = statistics.moments(chosen(), self.classes, self.size)
        found: Moments = self._known["moments", correct]
        return found

    def percentile(self, percent: float) -> float:
        """Of all entries of all features."""
        if ("percentile", percent) not in self._known:
            self._known["percentile", percent] = statistics.percentile(
                lambda: (part[0] for part in self.parts()), percent
            )
        return float(self._known["percentile", percent])


def outputs_of(model: nn.Module, objective: Objective | None = None, classifier: str | None = None) -> Outputs:
    """A function from inputs to penultimate features (B, D), logits (B, K) and classes (B,), whatever the model is."""
    if objective is not None:
        return lambda x: objective.outputs(model, x)  # type: ignore[arg-type]
    _, head = find_classifier(model, classifier)

    def outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen: list[Tensor] = []
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


def extract(
    model: nn.Module, loader: Loader | Any, *, objective: Objective | None = None, classifier: str | None = None
) -> Features:
    """One pass over batches (x, y) or x, kept in memory."""
    outputs, device = outputs_of(model, objective, classifier), device_of(model)
    parts = []
    with evaluating(model, objective):
        for batch in loader:
            x, y = batch if isinstance(batch, tuple | list) else (batch, torch.full((len(batch),), -1))
            h, z, k = outputs(x.to(device))
            parts.append((h.float().cpu(), z.float().cpu(), y.cpu(), k.cpu()))
    if not parts:
        raise InputError("there are no samples to look at; give at least one batch")
    return Features([tuple(torch.cat(own) for own in zip(*parts, strict=True))])  # type: ignore[list-item]


def build_bank(
    model: nn.Module,
    data: Any,
    transform: Any = None,
    *,
    objective: Objective | None = None,
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
        objective: the training method, where it has outputs of its own.
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
        return extract(model, loader, objective=objective, classifier=classifier)
    bank = base / "banks" / key_of("bank", model_key(model, objective, classifier), repr(transform), str(dtype))
    paths = [bank / f"{name}.safetensors" for name in names]
    shards = [_read_shard(path) for path in paths]
    missing = [i for i, shard in enumerate(shards) if shard is None]
    if missing:
        outputs, device = outputs_of(model, objective, classifier), device_of(model)
        stream: Iterator[Any] = iter(())
        at = -1
        with evaluating(model, objective):
            for i in track(missing, f"features of {loader.data.name}", len(missing)):
                if i != at:
                    stream = loader.epoch(0, i * per)
                at = i + 1
                parts = [(*outputs(x.to(device)), y) for x, y in itertools.islice(stream, per)]
                h, z, k, y = (torch.cat(own).cpu() for own in zip(*parts, strict=True))
                _write_shard(paths[i], (h.to(dtype), z.to(dtype), y, k))
                shards[i] = _read_shard(paths[i])
    if any(shard is None for shard in shards):
        raise InputError(f"{bank}: what was written cannot be read back; free some space or choose another folder")
    return Features([shard for shard in shards if shard is not None])


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


def model_key(model: nn.Module, objective: Objective | None = None, classifier: str | None = None) -> str:
    """Of all that a model's outputs depend on: weights, buffers, structure, and the source of its classes."""
    digest = hashlib.sha256(f"{__version__} {torch.__version__} {classifier}".encode())
    sources: set[type] = set()
    for module in (model, objective):
        if module is None:
            continue
        digest.update(repr(module).encode())
        for layer in module.modules():
            scalars = {k: v for k, v in vars(layer).items() if isinstance(v, int | float | str | bool) and k[0] != "_"}
            digest.update(repr(sorted((k, v) for k, v in scalars.items() if k != "training")).encode())
            sources.add(type(layer))
        for name, value in module.state_dict().items():
            if isinstance(value, Tensor):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(raw(value))
    for kind in sorted(sources, key=lambda kind: (kind.__module__, kind.__qualname__)):
        if not kind.__module__.startswith("torch."):
            with contextlib.suppress(OSError, TypeError):  # no source: typed in at a prompt
                digest.update(inspect.getsource(kind).encode())
    return digest.hexdigest()
