"""Batches: from a tensor on the device for small samples, from worker processes for large images.

Everything random follows from (seed, epoch, position): a run resumes in the middle of an epoch exactly where it
stopped, and what is trained on does not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .decoding import Decoder, Keys, default_workers, stream
from .errors import DataError
from .folders import Bad
from .images import ImageTransform
from .inputs import Transform
from .memory import Memory, finish
from .prepared import OR_SKIP, check_fit, fits_in_memory, prepare, readable_files
from .reading import as_set
from .sets import DataSet, FileSet, on_cpu


class Loader:
    """Batches (x, y) of a data set, prepared by the benchmark's transform.

    `Loader(data, transform)` goes through the data in order, by the test transform: for evaluation, and for what
    scores fit. With `train=True` every epoch is shuffled and augmented differently.

    Args:
        data: a set, or anything `as_set` takes.
        transform: the benchmark's. Bytes and files need one; floats are passed on as they are.
        batch_size: samples in a batch of all processes together; each of `world_size` processes gets its share.
        train: shuffle and augment. Across processes the last batch is shortened to equal shares.
        seed: the seed of order and augmentation.
        device: where batches, and data that fits in memory, live.
        rank: the number of this process.
        world_size: the number of processes.
        workers: processes that decode (default: one for each core, at most 8); 0 decodes in this one.
        bad: "raise" stops at a file that cannot be read; "skip" decodes every file once in advance, leaves out those
            that cannot be read, and lists them in `skipped`.
        cache: keep files that were prepared once, as bytes, in the user's cache folder.
        views: how often each sample of a training batch comes, augmented differently: x is (views * B, ...), first all
            samples once, then all again; y is (B,).
    """

    def __init__(
        self,
        data: Any,
        transform: Transform = None,
        *,
        batch_size: int = 128,
        train: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
        rank: int = 0,
        world_size: int = 1,
        workers: int | None = None,
        bad: Bad = "raise",
        cache: bool = True,
        views: int = 1,
    ) -> None:
        if world_size < 1 or seed < 0:
            raise DataError(f"world_size must be 1 or more and seed 0 or more, not {world_size} and {seed}")
        if batch_size < 1 or batch_size % world_size:
            raise DataError(f"batch_size {batch_size} must be a positive multiple of world_size {world_size}")
        if not 0 <= rank < world_size:
            raise DataError(f"rank {rank} must be from 0 to {world_size - 1}, one less than world_size")
        if workers is not None and workers < 0:
            raise DataError(f"workers must be 0 or more, not {workers}")
        data = as_set(data)
        check_fit(data, transform, bad)
        if not len(data):
            raise DataError(f"{data.name}: is empty; give a data set with samples")
        self.skipped: dict[str, str] = {}  # file -> why it cannot be read
        self.workers = default_workers() if workers is None else workers
        self.transform, self.batch_size, self.train, self.seed = transform, batch_size, train, seed
        self.device, self.rank, self.world_size, self.bad = torch.device(device), rank, world_size, bad
        self.views = views if train else 1
        self.next_epoch = 0  # the epoch that `for x, y in loader` goes through next; may be set
        if isinstance(data, FileSet) and bad == "skip":
            data, self.skipped = readable_files(data, self.workers, cache)
        in_memory = fits_in_memory(data, transform, train)
        if in_memory:
            data = prepare(data, transform, workers=self.workers, cache=cache)
        self.data: DataSet = data
        self._memory = Memory(data, transform, train, self.device) if in_memory else None

    def __len__(self) -> int:
        """Return the number of batches in an epoch (in evaluation, of all processes together)."""
        full, rest = divmod(len(self.data), self.batch_size)
        return full + (rest >= (self.world_size if self.train else 1))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through one epoch; in training, through the next one each time."""
        epoch, self.next_epoch = self.next_epoch, self.next_epoch + self.train
        return self.epoch(epoch)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch from the `start`-th on."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise DataError(f"epoch {epoch} from batch {start}: epochs count from 0, and have batches 0 to {len(self)}")
        order, windows = self._plan(epoch)
        shares = [self._share(batch) for batch in range(start, len(self))]
        shares = [share for share in shares if share.start < share.stop]  # the last batch may be too small for all
        if self._memory is not None:
            order, windows = order.to(self.device), windows.to(self.device)
            for share in shares:
                views = [self._memory.batch(order[share], window[share]) for window in windows]
                yield (torch.cat([x for x, _ in views]) if len(views) > 1 else views[0][0]), views[0][1]
            return
        if not shares:
            return
        decoder = Decoder(self.data, self.transform, self.train, self.seed)
        for x, y, problems in stream(decoder, Keys(order, epoch, shares, self.views), self.workers, self.device):
            if problems:
                raise DataError(problems[0][1] + (OR_SKIP if isinstance(self.data, FileSet) else ""))
            y = y[: len(y) // self.views]
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            yield finish(x, self.transform), y

    @on_cpu
    def order(self, epoch: int = 0) -> Tensor:
        """Return which samples this process sees in an epoch, in order (as indices into `data`)."""
        order, _ = self._plan(epoch)
        return torch.cat([order[:0], *(order[self._share(batch)] for batch in range(len(self)))])

    @on_cpu
    def _plan(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return for every position of an epoch its sample (N,), and the window of it for each view (views, N)."""
        n = len(self.data)
        if not self.train:
            return torch.arange(n), torch.zeros(1, n, dtype=torch.int64)
        (state,) = np.random.SeedSequence((self.seed, epoch)).generate_state(1, np.uint64)
        rng = torch.Generator().manual_seed(int(state >> np.uint64(1)))
        order, windows = torch.randperm(n, generator=rng), torch.zeros(self.views, n, dtype=torch.int64)
        if isinstance(self.transform, ImageTransform):
            windows = 2 * torch.randint((2 * self.transform.padding + 1) ** 2, (self.views, n), generator=rng)
            if self.transform.flip:
                windows += torch.randint(2, (self.views, n), generator=rng)
        return order, windows

    def _share(self, batch: int) -> slice:
        """Return the positions of this process in a batch."""
        start = batch * self.batch_size
        size = min(self.batch_size, len(self.data) - start)
        if self.train:
            size -= size % self.world_size
        first, last = (start + size * r // self.world_size for r in (self.rank, self.rank + 1))
        return slice(first, last)
