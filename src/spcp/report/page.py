"""The one page writer: an HTML file that needs nothing from outside, the same as Markdown, and figures beside them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import InputError, need
from ..evaluation import CONVENTION
from ..files import written
from . import figures
from .figures import Drawn


def write(
    folder: str | Path,
    name: str,
    context: Mapping[str, Any],
    drawn: Mapping[str, Drawn],
    files: Mapping[str, str],
) -> Path:
    """Fill `name.html.jinja` and `name.md.jinja`, and return the page.

    Args:
        folder: for `report.html`, `report.md`, `figures/` and other files.
        name: of the two templates.
        context: what they are filled with.
        drawn: figures by name, each with its caption.
        files: other texts to write, by name.
    """
    folder = output_folder(folder)
    for key, (figure, _) in drawn.items():
        figures.save(figure, folder / "figures", key)
    context = {**context, "drawn": drawn}
    pages = {f"report.{kind}": render(f"{name}.{kind}.jinja", context) for kind in ("html", "md")}
    for file_name, text in {**files, **pages}.items():
        with written(folder / file_name) as file:
            file.write(text.encode())
    return folder / "report.html"


def output_folder(folder: str | Path) -> Path:
    """Return the folder to write to, which may not be a file."""
    folder = Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder")
    return folder


def render(name: str, context: Mapping[str, Any]) -> str:
    """Fill one of the templates beside this file."""
    jinja = need("jinja2", "jinja2", "report")
    html = "html" in name
    environment = jinja.Environment(
        loader=jinja.FunctionLoader(asset),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja.StrictUndefined,
        finalize=None if html else _plain_markdown,
    )
    environment.globals |= {"asset": asset, "inline": figures.inline, "convention": CONVENTION}
    return str(environment.get_template(name).render(**context))


def asset(name: str) -> str:
    """Read a file beside this one."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _plain_markdown(value: Any) -> Any:
    """Escape what would make a table or HTML of a name."""
    return value.replace("|", "\\|").replace("<", "&lt;") if isinstance(value, str) else value
