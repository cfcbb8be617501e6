"""For mkdocstrings: examples in docstrings are shown as code, with or without a heading."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts them below the heading that the parser knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change its docstring."""
        if obj.docstring is not None:
            obj.docstring.value = with_headings(obj.docstring.value)


def with_headings(text: str) -> str:
    """A docstring whose examples have one."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    bare = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)
    return bare.sub(lambda found: "Examples:\n" + re.sub(r"^", "    ", found[0], flags=re.MULTILINE), text)
