"""The settings of the service, which its worker processes find in their environment."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Self

from ..errors import LARGEST, InputError, Rule, check_numbers

_VARIABLE = "SPCP_SERVE"
_RULES: dict[str, Rule] = {
    "batch_size": (int, 1, 4096),
    "max_wait_ms": (float, 0, 60_000),
    "max_bytes": (int, 1, LARGEST),
    "max_pixels": (int, 1, LARGEST),
    "timeout": (float, 0.01, 86_400),
    "threads": (int, 1, 4096),
}


@dataclass(frozen=True)
class Settings:
    """How the service works.

    Attributes:
        file: the exported detector.
        name: what answers call it.
        batch_size: samples that are decided about at once, at most.
        max_wait_ms: how long samples wait for a fuller batch while others are decided about.
        max_bytes: the largest body of a request.
        max_pixels: the largest image.
        timeout: seconds until a request is answered, if need be that it took too long.
        threads: of onnxruntime, for a batch; as many others read requests.
        log: a file to which every decision is appended as a line of JSON.
    """

    file: str
    name: str = "detector"
    batch_size: int = 32
    max_wait_ms: float = 0.0
    max_bytes: int = 16 << 20
    max_pixels: int = 25_000_000
    timeout: float = 30.0
    threads: int = 1
    log: str | None = None

    def __post_init__(self) -> None:
        check_numbers(vars(self), _RULES)

    def to_environment(self) -> None:
        """Leave the settings to processes that are started from now on."""
        os.environ[_VARIABLE] = json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_environment(cls) -> Self:
        """Return the settings that another process has left."""
        if _VARIABLE not in os.environ:
            raise InputError("there are no settings of a server; start it with spcp serve")
        return cls(**json.loads(os.environ[_VARIABLE]))
