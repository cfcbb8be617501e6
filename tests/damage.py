"""Damage to files, as disks, copies and editors do it; from a seed."""

from __future__ import annotations

import json
import random
from typing import Any

VALUES = [None, True, False, 0, -1, 1, 3, 0.5, 2.0, -1e300, 1e308, float("nan"), float("inf"), 10**30, "", "x"]
VALUES += ["benchmark", "os:system", "\x1b[2J", [], [1], ["a", "b"], {}, {"a": 1}, [[]]]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Flip, remove, repeat or overwrite some bytes; or change a value where the content is JSON."""
    how = rng.choice(["flip", "cut", "remove", "repeat", "zero", "noise", "value", "value", "value", "value"])
    start = rng.randrange(len(content))
    length = min(len(content) - start, rng.choice([1, 2, 8, 64, 512]))
    part = content[start : start + length]
    if how == "value":
        changed = _changed(content, rng)
        return content if changed is None else changed
    if how == "cut":
        return content[:start]
    if how == "flip":
        part = bytes([part[0] ^ (1 << rng.randrange(8))]) + part[1:]
    else:
        part = {"remove": b"", "repeat": part + part, "zero": bytes(length), "noise": rng.randbytes(length)}[how]
    return content[:start] + part + content[start + length :]


def _changed(content: bytes, rng: random.Random) -> bytes | None:
    """Change, remove or add a value in one of the lines of JSON; None if it is not JSON."""
    try:
        whole = json.loads(content)
        lines = [whole]
    except ValueError:
        try:
            lines = [json.loads(line) for line in content.splitlines()]
        except ValueError:
            return None
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [])
        for key, item in pairs:
            places.append((value, key))
            collect(item)

    collect(lines)
    holder, key = rng.choice(places)
    action = rng.choice(["change", "change", "remove", "add"])
    if action == "remove":
        del holder[key]
    elif action == "add" and isinstance(holder, dict):
        holder[rng.choice(["new", "epoch", "threshold", "kind"])] = rng.choice(VALUES)
    else:
        holder[key] = rng.choice(VALUES)
    return "\n".join(map(json.dumps, lines)).encode()
