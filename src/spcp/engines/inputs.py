"""Many inputs on many machines: the windows of `spcp detect` as a job of Ray Data.

One task lists the inputs and cuts the list into blocks of windows. Actors, each with the exported detector and one
core, read, decode and decide; their results come back in the order of the inputs. The windows are those of one process,
and so are the numbers.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data import Inputs
from ..data.listing import Listing, Sample
from ..detection import BATCH, FileDetection, detect_windows, windows
from ..errors import InputError, need, reason
from ..exported import ExportedDetector

_WINDOWS = 8  # in a block, at most
_BYTES = 8 << 20  # of contents in a block, about
_LINES = 10_000  # of a list that are sent at once
_MEMORY = 512 << 20  # bytes of a worker without its detector: torch, onnxruntime, and a batch
_STORE = 1 << 30  # bytes of blocks that may lie in the cluster's object store


def memory_of(path: Path) -> int:
    """Return the bytes that a worker may take: it holds a detector's file, and what onnxruntime makes of it."""
    return _MEMORY + 3 * path.expanduser().stat().st_size


class Lines:
    """A list that lies in the cluster, in parts, so that no process has to hold all of it."""

    def __init__(self, ray: Any, lines: Iterable[str]) -> None:
        lines = iter(lines)
        self.parts = [ray.put(part) for part in iter(lambda: list(itertools.islice(lines, _LINES)), [])]

    def __iter__(self) -> Iterator[str]:
        import ray

        for part in self.parts:
            yield from ray.get(part)


@dataclass(frozen=True)
class _Job:
    """What the machines of a cluster have to know."""

    detector: Any  # the bytes of an exported file, which lie in the cluster
    path: Path  # of that file
    folder: str  # that paths are relative to
    arguments: list[str]  # these four as `Listing` takes them
    inputs: Inputs
    column: str | None
    lines: Iterable[str] | None
    batch_size: int
    done: int  # how many inputs are left out, because they have their rows already


def detect_on_cluster(
    ray: Any,
    path: Path,
    listing: Listing,
    listed: Iterable[list[Sample]],
    *,
    batch_size: int = BATCH,
    done: int = 0,
    workers: int | None = None,
) -> Iterator[list[FileDetection]]:
    """Yield the results of each window, in order, as `detect_windows` does.

    What comes back is compared with what is listed here: a row that was lost, doubled, or belongs to other inputs is an
    error.

    Args:
        ray: the module, connected to a cluster, see `connect`.
        path: the exported file of a detector.
        listing: the inputs; a list among them is one of `Lines`.
        listed: the windows of the listing that are left.
        batch_size: that of the windows.
        done: how many inputs precede them.
        workers: actors, by default one for each processor of the cluster.
    """
    data = need("ray.data", "Ray", "ray")
    if logging.getLogger("ray").level == logging.ERROR:  # not --verbose
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors come as exceptions
    listed = iter(listed)
    if (first := next(listed, None)) is None:
        return
    listed = itertools.chain([first], listed)
    there, memory = ray.cluster_resources(), memory_of(path)
    room = max(1, int(min(there.get("CPU", 1), there.get("memory", 0) // memory)))
    workers = min(workers or room, room)
    context = data.DataContext.get_current()
    changed = _settings(data, workers)
    before = {key: getattr(context, key) for key in changed}
    for key, value in changed.items():
        setattr(context, key, value)
    about = listing.arguments, listing.inputs, listing.column, listing.lines
    job = _Job(ray.put(path.expanduser().read_bytes()), path, os.getcwd(), *about, batch_size, done)
    try:
        blocks = data.read_datasource(_source(data, job), override_num_blocks=1, num_cpus=0)
        results = blocks.map_batches(
            _Worker,
            fn_constructor_args=(job,),
            compute=data.ActorPoolStrategy(min_size=1, max_size=workers, initial_size=workers),
            batch_size=None,
            num_cpus=1,
            memory=memory,
        )
        for batch in _one_sentence(results.iter_batches(batch_size=None, prefetch_batches=0)):
            for content in batch["results"]:
                for window in pickle.loads(content):  # by our own workers
                    _check_same(window, next(listed, None))
                    yield window
        _check_same(None, next(listed, None))
    finally:
        for key, value in before.items():
            setattr(context, key, value)


def _settings(data: Any, workers: int) -> dict[str, Any]:
    """Return what Ray Data shall do otherwise than by default."""
    options = data.ExecutionOptions(preserve_order=True)
    options.resource_limits = options.resource_limits.copy(cpu=workers, object_store_memory=_STORE)
    return {
        "execution_options": options,
        "target_max_block_size": 1,  # a row is a block of ours, and goes on at once
        "enable_progress_bars": False,
        "print_on_execution_start": False,
        "enable_auto_log_stats": False,
    }


def _source(data: Any, job: _Job) -> Any:
    """Return a source of Ray Data: one task that lists the inputs and yields blocks of windows."""
    arrow = need("pyarrow", "pyarrow", "parquet")

    def read() -> Iterator[Any]:
        for block in _blocks(job):
            yield arrow.table({"windows": arrow.array([pickle.dumps(block)], arrow.large_binary())})

    class Source(data.Datasource):  # type: ignore[misc]
        def get_name(self) -> str:
            return "Inputs"

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, *_: Any, **__: Any) -> list[Any]:
            about = need("ray.data.block", "Ray", "ray").BlockMetadata(None, None, None, None)
            return [data.ReadTask(read, about)]

    return Source()


def _blocks(job: _Job) -> Iterator[list[list[Sample]]]:
    """List the inputs, and yield what one actor takes at once: one window at first, so that all have work soon."""
    _go_into(job.folder)
    listing = Listing(job.arguments, job.inputs, column=job.column, lines=job.lines)
    left = windows(itertools.islice(listing, job.done, None), job.batch_size)
    for count in itertools.count():
        block: list[list[Sample]] = []
        for window in left:
            block.append(window)
            if len(block) > min(count // _WINDOWS, _WINDOWS - 1) or _size(block) > _BYTES:
                break
        if not block:
            return
        yield block


def _size(block: list[list[Sample]]) -> int:
    """Return the bytes of contents that a block holds; what a path or a place in a file names is read later."""
    sources = (sample.source for window in block for sample in window)
    return sum(s.nbytes if isinstance(s, np.ndarray) else len(s) for s in sources if isinstance(s, bytes | np.ndarray))


class _Worker:
    """An actor: it holds the detector, and decides about blocks."""

    def __init__(self, job: _Job) -> None:
        import ray
        import torch

        torch.set_num_threads(1)
        _go_into(job.folder)
        self.inputs = job.inputs
        self.detector = ExportedDetector.read(ray.get(job.detector), job.path, threads=1)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        blocks = map(pickle.loads, batch["windows"])
        results = (list(detect_windows(self.detector, self.inputs, block, workers=0)) for block in blocks)
        return {"results": [pickle.dumps(result) for result in results]}


def _check_same(found: list[FileDetection] | None, window: list[Sample] | None) -> None:
    """Raise an error if results are not those of a window that was listed here."""
    there, here = [result.file for result in found or ()], [sample.name for sample in window or ()]
    if there != here:
        pairs = itertools.zip_longest(there, here, fillvalue="nothing")
        theirs, ours = next((a, b) for a, b in pairs if a != b)
        raise InputError(
            f"the Ray cluster lists {theirs} where this machine lists {ours}; all machines must see the same inputs, "
            "which must not change meanwhile"
        )


def _one_sentence(batches: Iterable[Any]) -> Iterator[Any]:
    """Pass batches on; what goes wrong on a machine of the cluster is one sentence."""
    try:
        yield from batches
    except Exception as error:  # Ray has a dozen kinds, with the traceback of the other machine as text
        _, ours, sentence = str(error).rpartition(f"{InputError.__name__}: ")
        if ours:
            raise InputError(sentence.splitlines()[0]) from error
        raise InputError(f"the Ray cluster failed ({reason(error)}); the same command goes on from there") from error


def _go_into(folder: str) -> None:
    """Go into the folder of the command, which paths are relative to."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise InputError(
            f"{folder}: is not on {socket.gethostname()}, a machine of the Ray cluster ({error.strerror}); "
            "start the command in a folder that all machines share"
        ) from error
