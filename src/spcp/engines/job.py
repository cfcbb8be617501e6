"""A job, what comes of it, and how a process does one."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import progress
from ..errors import explained

_log = logging.getLogger("spcp")

RESTARTS = 3  # of a job whose process was killed
STOP = 60.0  # seconds in which a job that is interrupted saves its state and ends


@dataclass(frozen=True)
class Job:
    """A call `function(shared, *arguments)` that another process can make: of a function that a module defines."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    folder: Path | None = None  # of its run, whose history tells how far it is
    epochs: int = 0


@dataclass(frozen=True)
class Ended:
    """What came of a job: a result, or why it failed."""

    job: Job
    result: Any = None
    problem: str | None = None
    code: int = 0  # the exit code for it: 2 for invalid input, 1 for any other failure
    traceback: str = ""
    messages: tuple[str, ...] = ()  # the warnings that were logged meanwhile


def done(job: Job, shared: Any) -> Ended:
    """Do a job in this process, and return its result, or why it failed."""
    try:
        return Ended(job, job.function(shared, *job.arguments))
    except Exception as error:
        return Ended(job, None, *explained(error), traceback.format_exc())


def done_apart(job: Job, shared: Any, threads: int) -> Ended:
    """Do a job in a process of its own, where nobody reads what is shown: warnings come back with the result."""
    torch.set_num_threads(threads)
    progress.quiet = True
    told = _Told()
    _log.addHandler(told)
    try:
        with warnings.catch_warnings(record=True) as warned:
            end = done(job, shared)
    finally:
        _log.removeHandler(told)
    texts = told.texts + [str(each.message) for each in warned if issubclass(each.category, UserWarning)]
    return Ended(end.job, end.result, end.problem, end.code, end.traceback, tuple(texts))


class _Told(logging.Handler):
    """Keep the warnings that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
