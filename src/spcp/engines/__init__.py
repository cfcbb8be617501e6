"""Other engines than this process: `--engine ray` runs inputs, and runs, on the machines of a Ray cluster."""

from __future__ import annotations

from .cluster import connect as connect
