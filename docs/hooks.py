"""For mkdocs, where it differs from GitHub: pages that lie beside docs/, and bars in tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}  # where it is, and its name in the site


def on_files(files: Files, config: Any) -> Files:
    """Add them."""
    root = Path(config.config_file_path).parent
    for source, name in OUTSIDE.items():
        text = (root / source).read_text().replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to them, which are right on GitHub, lead there; and take bars in code within tables as they are."""
    for source, name in OUTSIDE.items():
        markdown = markdown.replace(f"](../{source})", f"]({name})")
    rows = re.compile(r"^\|.*$", re.MULTILINE)
    return rows.sub(lambda row: re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0]), markdown)
