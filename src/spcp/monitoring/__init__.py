"""Watch a detector in use: an alarm that is valid at any time, and the share of flagged inputs with exact intervals."""

from __future__ import annotations

from .monitor import Event as Event
from .monitor import Monitor as Monitor
from .monitor import Status as Status
from .monitor import Window as Window
from .reference import Reference as Reference
