"""Watch a detector in use: an alarm that is valid at any time, and the share of flagged inputs with exact intervals."""

from __future__ import annotations

from .monitor import Event, Monitor, Status, Window
from .reference import Reference

__all__ = ["Event", "Monitor", "Reference", "Status", "Window"]
