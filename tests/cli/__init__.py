"""The command line as its users see it: what goes in, what comes out, and the exit code."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from typing import NamedTuple

PRECISION = os.environ.get("SPCP_TEST_PRECISION", "32-true")  # the test matrix asks for bf16-mixed too
TRAINING = ("--network", "cnn", "--width", 4, "--epochs", 2, "--batch-size", 50, "--precision", PRECISION)
SMALL = ("--size", 16, *TRAINING)


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out)))


Spcp = Callable[..., Result]
