"""Many runs: jobs that are done one after the other in this process, in several of this machine, or on a Ray cluster.

What comes out does not depend on that: a run computes with its own number of threads, by default one, everywhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..errors import InputError, TrainingError
from ..progress import live_table
from .board import COLUMNS, Board
from .cluster import connect
from .job import Ended, Job, done
from .pool import Pool, begin
from .tasks import Tasks

LOOK = 1.0  # seconds between two looks at the runs, of which the table shows how far they are
KINDS = ("local", "ray")


@dataclass(frozen=True)
class Engine:
    """Where jobs are done, and how many at a time.

    Args:
        kind: "local", this machine, or "ray", a cluster.
        jobs: how many at a time; 1 does them in this process, None as many as there are cores for (on a machine with a
            GPU: 1; with Ray: the cluster's).
        threads: of each job; numbers are the same to the bit only for the same number of threads.
        address: of a Ray cluster that is there; None starts one on this machine.
        verbose: show what Ray has to say.
    """

    kind: str = "local"
    jobs: int | None = 1
    threads: int = 1
    address: str | None = None
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"--engine {self.kind}: there is no such engine; choose {' or '.join(KINDS)}")
        for option, value in (("--jobs", self.jobs), ("--threads", self.threads)):
            if value is not None and value < 1:
                raise InputError(f"{option} {value}: must be at least 1")
        if self.address is not None and self.kind != "ray":
            raise InputError(f"--address {self.address}: is that of a Ray cluster; add --engine ray, or leave it out")

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Keep the Ray cluster, if this is one, for all jobs until the end; else let processes import meanwhile."""
        if self.kind == "local":
            if (self.jobs or cores(self.threads)) > 1:
                begin()
            yield
            return
        with connect(self.address, cpus=self.threads, verbose=self.verbose):
            yield

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Compute in this process, too, with the threads that jobs have."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Workers(Protocol):
    """What does jobs: processes, or tasks of a cluster."""

    def free(self) -> bool:
        """Tell whether another job can start."""

    def start(self, job: Job) -> None:
        """Start a job."""

    def ended(self, seconds: float) -> list[Ended]:
        """Wait for jobs to end, at most so long, and return those that did."""

    def stop(self) -> None:
        """Let jobs that run save their state; end all processes."""


def run_jobs(jobs: Sequence[Job], engine: Engine | None = None, *, shared: Any = None) -> list[Ended]:
    """Do all jobs, some at a time, and return what came of each, in their order; a failure does not stop the others.

    A job whose process was killed starts again, and goes on from the last state that its run has saved. Ctrl-C lets all
    runs save their state, and raises.

    Args:
        jobs: with distinct names.
        engine: where, and how many at a time; by default in this process.
        shared: the first argument of all; each process gets a copy once.
    """
    engine = engine or Engine()
    ends: dict[str, Ended] = {}
    here = engine.kind == "local" and min(engine.jobs or cores(engine.threads), len(jobs)) <= 1
    with contextlib.ExitStack() as stack:
        stack.enter_context(engine.started())
        board = Board(jobs, not here, stack.enter_context(live_table(COLUMNS, show=not here)))
        workers = _workers(jobs, engine, shared, board.table.print, here)
        stack.callback(workers.stop)  # the first to be called: the board shows it
        waiting = list(reversed(jobs))
        while len(ends) < len(jobs):
            while waiting and workers.free():
                board.start(waiting[-1])
                workers.start(waiting.pop())
            for end in workers.ended(LOOK):
                ends[end.job.name] = end
                board.end(end)
            board.look()
    return [ends[job.name] for job in jobs]


def _workers(jobs: Sequence[Job], engine: Engine, shared: Any, tell: Callable[[str], None], here: bool) -> Workers:
    if here:
        return Here(engine, shared)
    if engine.kind == "ray":
        return Tasks(engine.jobs, engine.threads, shared)
    return Pool(min(engine.jobs or cores(engine.threads), len(jobs)), engine.threads, shared, tell)


def results(ends: Sequence[Ended]) -> list[Any]:
    """Return the results of jobs; raise one error about all that failed."""
    failed = [end for end in ends if end.problem is not None]
    if not failed:
        return [end.result for end in ends]
    kind = InputError if all(end.code == 2 for end in failed) else TrainingError
    if len(ends) == 1:
        raise kind(failed[0].problem)
    listed = "".join(f"\n  {end.job.name}: {end.problem}" for end in failed)
    others = "; the others are done" if len(failed) < len(ends) else ""
    raise kind(
        f"{len(failed)} of {len(ends)} runs failed{others}. Put right what is wrong, and give the same command again: "
        f"it goes on with what is missing.{listed}"
    )


def cores(threads: int = 1) -> int:
    """Return how many jobs this machine has cores for; 1 if it has a GPU, which all would share."""
    if torch.cuda.is_available():
        return 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // threads)


class Here:
    """Do jobs in this process, one after the other."""

    def __init__(self, engine: Engine, shared: Any) -> None:
        self._engine, self._shared = engine, shared
        self._jobs: list[Job] = []

    def free(self) -> bool:
        """Tell whether none is waiting."""
        return not self._jobs

    def start(self, job: Job) -> None:
        """Take a job."""
        self._jobs.append(job)

    def ended(self, seconds: float) -> list[Ended]:
        """Do it."""
        with self._engine.limited():
            return [done(self._jobs.pop(), self._shared)]

    def stop(self) -> None:
        """Leave nothing behind."""
