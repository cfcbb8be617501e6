"""The error about a user's data: one sentence that names the input and what to do."""

from __future__ import annotations

from ..errors import InputError
from ..errors import need as need


class DataError(InputError):
    """The user's data cannot be used as it is; the message names the file and what to do."""
