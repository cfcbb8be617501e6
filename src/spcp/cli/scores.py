"""`spcp scores`."""

from __future__ import annotations

from .app import command
from .options import Json
from .output import show


@command("scores", panel="List")
def scores_command(as_json: Json = False) -> None:
    """List the scores, with their formulas and papers."""
    from ..scores import SCORES

    rows = []
    for name, (kind, _) in SCORES.items():
        fitted_on = " and ".join({"train": "training set", "val": "validation set"}[role] for role in kind.fitted_on)
        rows.append({"score": name, "formula": kind.formula, "fitted_on": fitted_on, "paper": kind.paper})
    show(rows, as_json)
