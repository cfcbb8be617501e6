"""Several processes that do one thing, started by torchrun: who makes what, and how it comes together.

Outside of `joined` a process is alone, whatever else it uses `torch.distributed` for.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from . import progress
from .errors import ProcessError

T = TypeVar("T")

PATIENCE = datetime.timedelta(days=7)  # with processes that are slow; one that has ended is noticed at once
_place = (0, 1)  # the number of this process, and of all that are joined


def rank() -> int:
    """Return the number of this process among those that are joined, from 0."""
    return _place[0]


def count() -> int:
    """Return how many processes are joined; 1 for a process that is alone."""
    return _place[1]


def device() -> torch.device:
    """Return the device of this process: a GPU of its own, if there are any."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Join the processes that torchrun has started; a process that was started otherwise stays alone.

    Inside, all of them make the same calls, and get the same results: feature banks, the statistics that scores are
    fitted with, and scores of banks are shared among them. Only the first shows progress and warnings.
    """
    global _place
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or count() > 1:
        yield
        return
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(device())
        dist.init_process_group(timeout=PATIENCE)  # gloo for the CPU, nccl for GPUs
    _place = dist.get_rank(), world
    log = logging.getLogger("spcp")
    before = progress.quiet, log.level
    if rank():
        progress.quiet = True
        log.setLevel(logging.ERROR)
    try:
        with _told_of_an_end():
            yield
            wait()
    finally:
        _place = 0, 1
        progress.quiet, level = before
        log.setLevel(level)


@contextlib.contextmanager
def _told_of_an_end() -> Iterator[None]:
    """Say why this process ends when torchrun stops it, because another one has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise _lost()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _lost() -> ProcessError:
    return ProcessError(
        "another process of this command has ended, so this one stops; what was made so far is kept: run the same "
        "command again"
    )


def share(n: int) -> range:
    """Return which of n things are this process's: as many as the others', one after the other."""
    return range(*(-(-n * r // count()) for r in (rank(), rank() + 1)))


def in_order(make: Callable[[int], T], n: int) -> Iterator[T]:
    """Yield `make(0), ..., make(n - 1)`: each is made by the process whose share it is, and sent to the others.

    A process that is alone makes them one after the other, as they are asked for.
    """
    if count() == 1:
        yield from map(make, range(n))
        return
    mine = {i: make(i) for i in share(n)}
    for i in range(n):
        item = [mine.pop(i, None)]
        _collective(dist.broadcast_object_list, item, src=i * count() // n)
        yield item[0]  # type: ignore[misc]


def gathered(item: T) -> list[T]:
    """Return what each process has, in order."""
    items: list[Any] = [None] * count()
    if count() == 1:
        return [item]
    _collective(dist.all_gather_object, items, item)
    return items


def wait() -> None:
    """Wait until all processes are here."""
    gathered(None)


def _collective(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    try:
        function(*arguments, **options)
    except RuntimeError as error:  # what gloo and nccl raise when a process has gone
        raise _lost() from error
