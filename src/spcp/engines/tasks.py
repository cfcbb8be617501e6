"""Tasks of a Ray cluster, each of which is one job; Ray starts one again whose process, or machine, was lost."""

from __future__ import annotations

import contextlib
from typing import Any

from ..errors import need, reason
from .job import RESTARTS, STOP, Ended, Job, done_apart


class Tasks:
    """Do jobs on the Ray cluster that this process is connected to; its machines share the folders of the runs.

    Args:
        count: at a time; None: as many as the cluster has processors for, at any time.
        threads: of each, and so the processors that it takes.
        shared: what every job gets; it is sent to each machine once.
    """

    def __init__(self, count: int | None, threads: int, shared: Any) -> None:
        self._ray: Any = need("ray", "Ray", "ray")
        self._count, self._threads, self._shared = count, threads, self._ray.put(shared)
        gpus = 1 if self._ray.cluster_resources().get("GPU") else 0
        remote = self._ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RESTARTS)
        self._task = remote(done_apart)
        self._running: dict[Any, Job] = {}

    def free(self) -> bool:
        """Tell whether there are processors for another."""
        count = self._count or int(self._ray.cluster_resources().get("CPU", 0)) // self._threads
        return len(self._running) < max(1, count)

    def start(self, job: Job) -> None:
        """Start a task."""
        task = self._task.options(name=job.name)
        self._running[task.remote(job, self._shared, self._threads)] = job

    def ended(self, seconds: float) -> list[Ended]:
        """Return the jobs that ended."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [self._result(task, self._running.pop(task)) for task in ready]

    def _result(self, task: Any, job: Job) -> Ended:
        try:
            end: Ended = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:  # before the job began: its code is not there, for example
            return Ended(job, None, f"cannot be done on the cluster ({error.cause}); install the same there as here", 1)
        except self._ray.exceptions.RayError as error:
            return Ended(job, None, f"its process was lost, {RESTARTS + 1} times ({reason(error)}); see ray status", 1)
        return end

    def stop(self) -> None:
        """Interrupt the tasks, and wait until they have saved their states."""
        for task in self._running:
            self._ray.cancel(task)  # as Ctrl-C does: training saves its state first
        if self._running:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.wait(list(self._running), num_returns=len(self._running), timeout=STOP)
