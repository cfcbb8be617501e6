"""`spcp methods`."""

from __future__ import annotations

from .app import command
from .options import Json
from .output import show


@command("methods", panel="List")
def methods_command(as_json: Json = False) -> None:
    """List the training methods, with their papers."""
    from ..methods import METHODS, TRUNCATING, CrossEntropy

    rows = []
    for name, (kind, _) in METHODS.items():
        paper = "" if kind is CrossEntropy and name not in TRUNCATING else kind.paper  # plain training has none
        rows.append({"method": name, "score": kind.score, "paper": paper})
    show(rows, as_json)
