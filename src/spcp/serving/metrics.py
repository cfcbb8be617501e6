"""What the service counts, as Prometheus reads it; workers of one server add up."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the variable of the environment that names the folder which workers share

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_P_VALUES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)


class Metrics:
    """Counts and times of requests, batches and decisions."""

    def __init__(self) -> None:
        disable_created_metrics()  # a time for each, which nobody reads
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("spcp_requests", "Requests to detect, by status.", ["status"], registry=registry)
        self._seconds = Histogram("spcp_request_seconds", "Seconds for a request.", buckets=_SECONDS, registry=registry)
        self._progress = Gauge(
            "spcp_requests_in_progress", "Requests in progress.", multiprocess_mode="livesum", registry=registry
        )
        self._samples = Counter("spcp_samples", "Samples decided about, by verdict.", ["verdict"], registry=registry)
        self._p_values = Histogram("spcp_p_value", "P-values of samples.", buckets=_P_VALUES, registry=registry)
        self._unreadable = Counter("spcp_unreadable", "Files among others that were unreadable.", registry=registry)
        self._sizes = Histogram("spcp_batch_size", "Samples of a batch.", buckets=_SIZES, registry=registry)
        self._batches = Histogram("spcp_batch_seconds", "Seconds for a batch.", buckets=_SECONDS, registry=registry)

    def in_progress(self, change: int) -> None:
        """Count a request that begins (1) or ends (-1)."""
        self._progress.inc(change)

    def answer(self, status: int, seconds: float, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count a request that was answered, and what it was told."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        for row in rows:
            if "problem" in row:
                self._unreadable.inc()
            else:
                self._samples.labels("ood" if row["is_ood"] else "id").inc()
                self._p_values.observe(row["p_value"])

    def batch(self, size: int, seconds: float) -> None:
        """Count a batch."""
        self._sizes.observe(size)
        self._batches.observe(seconds)

    def text(self) -> bytes:
        """Return all counts, of all workers if there are several."""
        registry = self._registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)
