"""Data: every set of the benchmarks, the user's own, and an embedded default that is real."""

from .download import download as download
from .download import verify as verify
from .errors import DataError as DataError
