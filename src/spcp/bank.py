"""A feature bank: what one pass over a data set gives to all scores, in memory or on disk.

On disk it is a folder of shards (safetensors, memory-mapped) under the model's fingerprint and the transform; each
shard is named by the contents of its samples. So changed weights or data never return old numbers, and data that grows
only adds shards. An interrupted bank is continued, a damaged shard is detected by its checksum and made again, and two
processes may build the same one.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from . import processes
from .data import Loader
from .data.cache import cache_folder, key_of
from .data.prepared import content_key
from .data.sets import inputs_and_labels
from .errors import InputError
from .files import read_tensors, stacked, write_tensors
from .model import ScoredModel
from .moments import Moments, S, Sum, merge, percentiles
from .progress import track

_log = logging.getLogger("spcp")

SHARD = 8192  # rows
BLOCKS = 16  # of parts, that processes share; statistics of a block are what they send each other
BATCH = 256  # inputs that are passed through the network at once,
PIECE = 1 << 20  # and numbers in them: 256 images of 32 pixels, 6 of 224


Place = tuple[int, int, int]  # of a piece: its part, its first row there, and that row among all


class Part(NamedTuple):
    """Some rows of a bank."""

    features: Tensor  # (N, D)
    logits: Tensor  # (N, K)
    labels: Tensor  # (N,)
    predictions: Tensor  # (N,)


class Shards(Sequence[Part]):
    """Parts that lie on disk. Each is mapped into memory when it is looked at, and let go afterwards.

    So a bank that is larger than memory can be gone through. What could not be written is here as it is.
    """

    def __init__(self, shards: Sequence[Path | Part]) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, i: Any) -> Any:
        shard = self._shards[i]
        return Part(**read_tensors(shard, ours=True, check=False)[0]) if isinstance(shard, Path) else shard


class FeatureBank:
    """Features, logits, labels and predictions of a data set, in parts: the shards on disk, or one in memory.

    The statistics that scores are fitted with are those of the parts, merged (`merged`); the usual ones are kept.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._lengths: list[int] = []  # of the parts, once they are known
        self._moments: dict[bool, Moments] = {}  # by whether features are scaled to length 1
        self._percentiles: dict[float, float] = {}

    @classmethod
    def of(
        cls, features: Tensor, logits: Tensor, labels: Tensor | None = None, predictions: Tensor | None = None
    ) -> FeatureBank:
        """Make a bank of features (N, D), logits (N, K), labels (N,; -1 for none) and predictions (N,; the argmax)."""
        part = Part(
            features.detach().cpu(),
            logits.detach().cpu(),
            torch.full((len(features),), -1) if labels is None else labels.cpu(),
            (logits.argmax(1) if predictions is None else predictions).cpu(),
        )
        if [tensor.ndim for tensor in part] != [2, 2, 1, 1] or len({len(tensor) for tensor in part}) > 1:
            shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in part._asdict().items())
            raise InputError(f"{shapes} do not fit together; they must be (N, D), (N, K), (N,) and (N,)")
        return cls([part])

    def parts(self) -> Iterator[Part]:
        """Yield parts of up to `SHARD` rows, features and logits in float32."""
        return self._pieces(itertools.chain(*self._blocks()))

    def _blocks(self) -> list[list[Place]]:
        """Return where the pieces of up to `SHARD` rows begin, in up to `BLOCKS` runs."""
        if not self._lengths:
            self._lengths = [len(part.labels) for part in self._parts]
        starts = itertools.accumulate(self._lengths, initial=0)
        places = [
            (i, row, start + row)
            for i, (length, start) in enumerate(zip(self._lengths, starts, strict=False))
            for row in range(0, max(1, length), SHARD)
        ]
        n = min(BLOCKS, len(places))
        return [places[len(places) * i // n : len(places) * (i + 1) // n] for i in range(n)]

    def _pieces(self, places: Iterable[Place], rows: Tensor | None = None) -> Iterator[Part]:
        """Yield the pieces that begin at some places, in float32; if `rows` are given, these rows of each."""
        for i, some in itertools.groupby(places, key=lambda place: place[0]):
            part = self._parts[i]  # once for all its pieces
            for _, row, start in some:
                tensors = [tensor[row : row + SHARD] for tensor in part]
                if rows is not None:
                    first, last = torch.searchsorted(rows, torch.tensor([start, start + len(tensors[0])])).tolist()
                    tensors = [tensor[rows[first:last] - start] for tensor in tensors]
                yield Part(tensors[0].float(), tensors[1].float(), *tensors[2:])

    def merged(self, statistic: Callable[[Part], S], rows: Tensor | None = None, *, everywhere: bool = False) -> S:
        """Return a statistic of all rows: those of the parts, merged in order.

        The parts form up to `BLOCKS` blocks; joined processes (`spcp.processes`) share them. A process that is alone
        merges in the same order, so the result is the same to the bit.

        Args:
            statistic: of a part.
            rows: of these only, given by sorted indices.
            everywhere: let each process compute all of it, because it exchanges something for each part.
        """
        blocks = self._blocks()

        def of_block(i: int) -> S:
            return functools.reduce(merge, map(statistic, self._pieces(blocks[i], rows)))

        made = map(of_block, range(len(blocks))) if everywhere else processes.in_order(of_block, len(blocks))
        return functools.reduce(merge, made)

    def rows(self, function: Callable[[Part], Tensor]) -> Tensor:
        """Return something for each row, (N, ...), such as its features, in a file where it is large.

        Of joined processes each keeps its share: the blocks that are its own in `merged`.
        """
        blocks = self._blocks()
        mine = processes.share(len(blocks))
        if not mine:
            return function(next(self._pieces(blocks[0], torch.empty(0, dtype=torch.int64))))
        return stacked(map(function, self._pieces(itertools.chain(*blocks[mine.start : mine.stop]))), cache_folder())

    @property
    def is_spread(self) -> bool:
        """Whether `rows` keeps a share of the rows only."""
        return processes.count() > 1

    def __len__(self) -> int:
        return sum(self._lengths) if self._lengths else sum(len(part.labels) for part in self._parts)

    @property
    def num_features(self) -> int:
        """D."""
        return self._parts[0].features.shape[1]

    @property
    def num_classes(self) -> int:
        """K, the number of logits."""
        return self._parts[0].logits.shape[1]

    @property
    def features(self) -> Tensor:
        """All features, (N, D)."""
        return torch.cat([part.features for part in self.parts()])

    @property
    def logits(self) -> Tensor:
        """All logits, (N, K)."""
        return torch.cat([part.logits for part in self.parts()])

    @property
    def labels(self) -> Tensor:
        """All labels, (N,); -1 for none."""
        return torch.cat([part.labels for part in self._parts])

    @property
    def predictions(self) -> Tensor:
        """All predicted classes, (N,)."""
        return torch.cat([part.predictions for part in self._parts])

    def accuracy(self) -> float:
        """Return the share of samples that are classified correctly."""
        return float((self.predictions == self.labels).double().mean())

    def check_finite(self) -> None:
        """Raise an error where features are not finite: nothing can be fitted on them."""
        (count,) = self.merged(lambda part: Sum.of((~part.features.isfinite().all(1)).sum())).values
        if count:
            raise InputError(
                f"{int(count)} of {len(self)} ID samples have features that are not finite; check the inputs"
            )

    def take(self, rows: Tensor) -> FeatureBank:
        """Return the bank of some rows, given by sorted indices."""
        parts, start = [], 0
        for part in self._parts:
            inside = rows[(rows >= start) & (rows < start + len(part.labels))] - start
            parts.append(Part(*(tensor[inside] for tensor in part)))
            start += len(part.labels)
        return FeatureBank(parts)

    @torch.no_grad()
    def with_head(self, head: nn.Linear) -> FeatureBank:
        """Return a bank of the same features with the logits and predictions of another head."""
        parts = []
        for part in self._parts:
            rows = (features.to(head.weight) for features in part.features.split(SHARD))
            logits = torch.cat([head(features).float().cpu() for features in rows])
            parts.append(part._replace(logits=logits, predictions=logits.argmax(1)))
        return FeatureBank(parts)

    def moments(self, *, on_sphere: bool = False) -> Moments:
        """Return the moments of the features by label; where a sample has none, its predicted class stands in.

        Args:
            on_sphere: of features scaled to length 1.
        """
        if on_sphere not in self._moments:
            unlabelled = sum(int((part.labels < 0).sum()) for part in self._parts)
            if unlabelled and not self._moments:  # said once
                _log.warning("%d of %d samples have no label; their predicted classes stand in", unlabelled, len(self))
            made = self.merged(_moments_on_sphere if on_sphere else _moments)
            self._moments[on_sphere] = made.over(self.num_classes)
        return self._moments[on_sphere]

    def percentile(self, percent: float) -> float:
        """Return a percentile of all entries of all features."""
        if percent not in self._percentiles:
            (self._percentiles[percent],) = self.percentiles([percent], by_feature=False).tolist()
        return self._percentiles[percent]

    def percentiles(self, percents: Sequence[float], *, by_feature: bool) -> Tensor:
        """Return percentiles of each feature, (P, D), or of all entries of all features, (P,); in float64."""
        columns = self.num_features if by_feature else 1
        count = len(self) * self.num_features // columns
        found = percentiles(lambda of: self.merged(lambda part: of(part.features)), count, percents, columns)
        return torch.from_numpy(found if by_feature else found[:, 0])


def class_of(part: Part) -> Tensor:
    """Return the labels of rows, (N,); where a sample has none, its predicted class stands in."""
    num_classes = part.logits.shape[1]
    if len(part.labels) and int(part.labels.max()) >= num_classes:
        raise InputError(
            f"a label is {int(part.labels.max())}, but the network has {num_classes} classes; count from 0"
        )
    return torch.where(part.labels < 0, part.logits.argmax(1), part.labels)


def _moments(part: Part) -> Moments:
    return Moments.of(part.features, class_of(part))


def _moments_on_sphere(part: Part) -> Moments:
    return Moments.of(nn.functional.normalize(part.features, dim=1), class_of(part))


def batches_of(data: Any, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and labels (-1 for none) of a tensor, of a pair (inputs, labels), or of batches of either.

    A batch may be a dictionary, too, as Hugging Face's are: `pixel_values`, and maybe `labels`. A tensor that holds all
    inputs comes in pieces of up to `size` inputs, fewer if they are large.
    """
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    data = [data] if isinstance(data, Mapping) else data
    if isinstance(data, Tensor) or _is_pair(data):
        size = min(size, inputs_at_once(data if isinstance(data, Tensor) else data[0]))
        data = [data]
    for batch in data:
        if isinstance(batch, Mapping):
            x, y = inputs_and_labels(batch, "a batch")
            batch = (x,) if y is None else (x, y)
        x, *rest = batch if isinstance(batch, tuple | list) else (batch,)
        if not isinstance(x, Tensor):
            raise InputError(
                f"a batch holds a {type(x).__name__}, not a tensor of inputs; give batches (x, y), or x alone"
            )
        y = torch.full((len(x),), -1) if not rest else torch.as_tensor(rest[0]).reshape(-1).long().cpu()
        if rest and not torch.equal(y, torch.as_tensor(rest[0]).reshape(-1).cpu()):
            raise InputError("a batch has labels that are not whole numbers; give class numbers, counted from 0")
        if len(y) != len(x):
            raise InputError(f"a batch has {len(x)} inputs and {len(y)} labels; give one label for each")
        yield from zip(x.split(size), y.split(size), strict=True)


def inputs_at_once(x: Tensor) -> int:
    """Return how many of these inputs are passed through a network at once: a network needs many times their memory."""
    return max(1, min(BATCH, PIECE // max(1, math.prod(x.shape[1:]))))


def _is_pair(data: Any) -> bool:
    """Return whether data are inputs and one label for each; several tensors are batches if they are shaped alike."""
    if not isinstance(data, tuple | list) or not data or not all(isinstance(item, Tensor) for item in data):
        return False
    x, y = data[0], data[-1]
    alike = len({item.shape[1:] for item in data}) == 1
    labels = y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1)
    if len(data) == 2 and labels and x.ndim > 1 and not (alike and y.is_floating_point()):
        return True
    if not alike:
        shapes = ", ".join(str(tuple(item.shape)) for item in data)
        raise InputError(
            f"tensors of shapes {shapes} are neither inputs and labels nor batches; give inputs (N, ...) and class "
            "numbers (N,), or batches of one shape but for their lengths"
        )
    return False


@torch.no_grad()
def extract(model: ScoredModel, data: Any) -> FeatureBank:
    """Pass a tensor of inputs, or batches (x, y) or x, through a model once, and keep the outputs in memory."""
    parts = [_part(model, x, y) for x, y in batches_of(data)]
    if not parts:
        raise InputError("there are no samples to score; give at least one batch")
    features, logits, labels, predictions = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return FeatureBank([Part(features.float(), logits.float(), labels, predictions)])


def _part(model: ScoredModel, x: Tensor, y: Tensor) -> Part:
    features, logits, predictions = model.outputs(x.to(model.device))
    return Part(features.cpu(), logits.cpu(), y.cpu(), predictions.cpu())


@torch.no_grad()
def build_bank(
    model: ScoredModel,
    data: Any,
    transform: Any = None,
    *,
    folder: str | Path | None = None,
    batch_size: int = 256,
    dtype: torch.dtype = torch.float32,
    key: str | None = None,
) -> FeatureBank:
    """Return the bank of a data set from disk; compute what is missing there in one pass.

    Args:
        model: the model whose outputs are kept.
        data: a set, or anything `spcp.data.as_set` takes.
        transform: what prepares the samples, such as the benchmark's.
        folder: where banks are kept; by default in the user's cache folder.
        batch_size: of the pass.
        dtype: in which features and logits are stored; `torch.float16` halves the size.
        key: a name for items whose contents cannot be read from disk; change it when they change. Without one such
            items are passed through the network each time.
    """
    return begin_bank(model, data, transform, folder=folder, batch_size=batch_size, dtype=dtype, key=key)()


@torch.no_grad()
def begin_bank(
    model: ScoredModel,
    data: Any,
    transform: Any = None,
    *,
    folder: str | Path | None = None,
    batch_size: int = 256,
    dtype: torch.dtype = torch.float32,
    key: str | None = None,
    among: tuple[int, int] | None = None,
) -> Callable[[], FeatureBank]:
    """Make this process's share of a bank, and return what waits for the other processes and opens all of it.

    The arguments are those of `build_bank`. `among`: how many samples were before these, and how many there are in all,
    where several sets follow each other; joined processes share them all. What the others have not made where this
    process could read it, such as on a disk of their own, it makes itself.
    """
    loader = Loader(data, transform, batch_size=batch_size, device=model.device)
    base = Path(folder).expanduser() if folder is not None else cache_folder()
    per = max(1, SHARD // batch_size)  # batches in a shard
    count, size = len(loader.data), per * batch_size
    ranges = [range(start, min(start + size, count)) for start in range(0, count, size)]
    names = [key_of(key, rows) if key else content_key(loader.data, transform, rows) for rows in ranges]
    if base is None or None in names:
        return lambda: extract(model, loader)
    bank = base / "banks" / key_of("bank", model.fingerprint(), repr(transform), str(dtype))
    paths = [bank / f"{name}.safetensors" for name in names]
    before, total = among or (0, count)
    mine = [i for i in range(len(ranges)) if (before + i * size) * processes.count() // total == processes.rank()]
    shards: dict[int, Path | Part] = {}

    def make(which: Iterable[int]) -> None:
        """Look for shards on disk, and make those that are not there."""
        shards.update({i: paths[i] for i in which if _is_whole(paths[i])})
        missing = [i for i in which if i not in shards]
        stream: Iterator[Any] = iter(())
        at = -1
        for i in track(missing, f"features of {loader.data.name}", len(missing)) if missing else ():
            if i != at:
                stream = loader.epoch(0, i * per)
            at = i + 1
            parts = [_part(model, x, y) for x, y in itertools.islice(stream, per)]
            whole = Part(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
            shards[i] = _kept(paths[i], _stored_as(whole, dtype))

    @torch.no_grad()
    def opened() -> FeatureBank:
        processes.wait()
        make([i for i in range(len(paths)) if i not in shards])
        return FeatureBank(Shards([shards[i] for i in range(len(paths))]))

    make(mine)
    return opened


def _stored_as(part: Part, dtype: torch.dtype) -> Part:
    stored = part._replace(features=part.features.to(dtype), logits=part.logits.to(dtype))
    for smaller, exact in zip(stored[:2], part[:2], strict=True):
        if not torch.equal(smaller.isfinite(), exact.isfinite()):
            raise InputError(f"features or logits are too large for {dtype}; store them in float32 or bfloat16")
    return stored


def _kept(path: Path, part: Part) -> Path | Part:
    """Return where the part is on disk, or the part itself where it cannot be written: the bank is a convenience."""
    try:
        write_tensors(path, part._asdict())
    except OSError as error:
        _log.warning("%s: cannot be written (%s); kept in memory", path, error.strerror or error)
        return part
    return path if _is_whole(path) else part


def _is_whole(path: Path) -> bool:
    """Tell whether a shard is there; one that is damaged is not."""
    if not path.exists():
        return False
    try:
        Part(**read_tensors(path, ours=True)[0])
    except (InputError, TypeError):
        _log.warning("%s: damaged; made again", path)
        return False
    return True
