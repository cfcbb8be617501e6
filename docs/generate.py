"""Write the pages that say what is in the code: scores.md, methods.md, cli.md and api.md.

python docs/generate.py            # after a change of a detector, a method, a command or a public name
python docs/generate.py --check    # exit 1 if a page is not up to date
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from spcp.cli import app
from spcp.evaluation import ITP
from spcp.methods import METHODS, Method
from spcp.scores import SCORES, Score
from spcp.training.settings import DEFAULTS, DEPARTURES
from spcp.tuning import GRID

DOCS = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py: edit that, or the code. -->"


def main() -> None:
    """Write, or check."""
    check = "--check" in sys.argv
    stale = []
    for name, write in PAGES.items():
        text, path = write(), DOCS / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.write_text(text)
    if stale and check:
        sys.exit(f"{', '.join(stale)}: not up to date; run python docs/generate.py")


# Detectors

DETECTORS = """# Detectors

{note}

A card for each of the {count} detectors: what it computes, what it learns from, what it costs, and its paper. How to
use them: [Detect and decide](detect.md). In a terminal: `spcp detectors`.

`h` are a sample's D features, `z = W h + b` its K logits, `p` their softmax, `f = h / ||h||`. A score is larger for
what is known. With an SPCP network the logits are the truncated ones, those of edited features too (ReAct, ASH, ...).
Costs are for a batch of B samples and N training samples; the one pass is the network's, and serves all detectors.

| name | score | learns from | searched |
|---|---|---|---|
"""
LEARNS = {"train": "training set", "val": "validation set", None: "nothing"}


def detectors() -> str:
    """A table of all, and a card for each."""
    rows, cards = [], []
    for name, (kind, options) in SCORES.items():
        cells = (_linked(name), _code(kind.formula, table=True), LEARNS[kind.fitted_on], ", ".join(kind.sweep))
        rows.append(f"| {' | '.join(cells)} |")
        cards.append(_card(name, _about(kind), _of_score(name, kind, options)))
    return "\n".join([DETECTORS.format(note=NOTE, count=len(SCORES)) + "\n".join(rows) + "\n", *cards])


def _of_score(name: str, kind: type[Score], options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Score", _code(kind.formula)
    yield "Paper", kind.paper
    yield "Options", _defaults(kind, options)
    if kind.sweep:
        yield "Searched", "; ".join(f"`{key}` {_listed(values)}" for key, values in kind.sweep.items())
    if name == "itp":
        yield "Its paper's settings", "; ".join(f"{where} {_pairs(values)}" for where, values in ITP.items())
    yield "Learns from", LEARNS[kind.fitted_on]
    wrong = [f"`{own}`" for own, (method, _) in METHODS.items() if kind.reads not in method.readable]
    if wrong:
        yield "Not for", f"networks trained by {', '.join(wrong)}"
    if name == "mos":
        yield "Only for", "networks trained by `mos`, whose groups it is given"
    yield "Cost", kind.cost


# Training methods

METHODS_PAGE = """# Training methods

{note}

A card for each of the {count} training methods: what it minimises, its settings, what it costs, and its paper. How to
train: [Training](training.md). In a terminal: `spcp methods`.

All of them learn from known data with labels; none is shown odd data. `z` are the logits, `h` the features, `y` the
labels, CE is the cross-entropy. Options are set by `config_for(..., options={{...}})`, or by `--option KEY=VALUE`.
Costs are for a step with a batch of B images, K classes and D features.

**Bounded** methods (`spcp`, `fixed`, and those that end in `+spcp`) cut contributions to the logits, see
[the method](method.md). How much, `rho_norm`, is by default the benchmark's own:
{bounds}, and for your own data as for digits.
`spcp tune` searches {grid}. The bound's other options are `beta`, `initial_threshold` and
`subset`, see [Truncation](api.md#spcp.Truncation). What it costs is [measured](performance.md#the-head).

| name | minimises | scored with |
|---|---|---|
"""
# Four methods are one class.
CROSS_ENTROPY = {
    "plain": ("CE(z, y)", "Plain training, which all others are compared with."),
    "spcp": ("CE(z, y)", "The paper's method, with a bound that follows the contributions."),
    "fixed": ("CE(z, y)", "SPCP with a bound that stays where it starts: the paper's comparison with the moving one."),
    "l2": (
        "CE(z, y) + penalty ||W||^2",
        "A penalty on the classifier's weights alone: another way to keep them small.",
    ),
}


def methods() -> str:
    """A table of all, and a card for each."""
    rows, cards = [], []
    for name, (kind, options) in METHODS.items():
        loss, about = CROSS_ENTROPY.get(name) or (_loss(kind), _about(kind))
        bounded = ", bounded" if "rho_norm" in options else ""
        cells = (_linked(name), _code(loss, table=True) + bounded, _linked(kind.detector, "scores.md"))
        rows.append(f"| {' | '.join(cells)} |")
        alone = name.removesuffix("+spcp")
        if alone != name:
            about = f"As [{alone}](#{_anchor(alone)}), bounded."
        cards.append(_card(name, about, _of_method(name, kind, options, _code(loss) + bounded)))
    bounds = ", ".join(f"{where} {own['rho_norm']:g}" for where, own in DEFAULTS.items())
    page = METHODS_PAGE.format(note=NOTE, count=len(METHODS), bounds=bounds, grid=_listed(GRID))
    return "\n".join([page + "\n".join(rows) + "\n", *cards])


def _of_method(name: str, kind: type[Method], options: Mapping[str, Any], loss: str) -> Iterator[tuple[str, str]]:
    yield "Minimises", loss
    if name != "plain":
        yield "Paper", kind.paper
    yield "Options", _defaults(kind, {key: value for key, value in options.items() if value is not None})
    names = (name.removesuffix("+spcp"), name)
    changes = {where: change for (method, where), change in DEPARTURES.items() if method in names}
    if changes:
        shown = (f"{where or 'everywhere'} {_pairs(_flat(change))}" for where, change in changes.items())
        yield "Settings of its own", "; ".join(shown)
    if "rho_norm" in options and name != "fixed":
        yield "Searched", "`rho_norm`"
    if name == "fixed":
        yield "Needs", "`initial_threshold`: the last one of an `spcp` run, for example"
    if kind.pretrained:
        yield "Needs", "a trained network: `start` in the config, `--weights` in a terminal"
    own = kind.detector_options
    told = f", {_pairs(own)}" if isinstance(own, Mapping) and own else ""
    yield "Scored with", _linked(kind.detector, "scores.md") + told
    yield "Cost", kind.cost + ("; and the bound" if "rho_norm" in options else "")


def _loss(kind: type[Method]) -> str:
    """The formula that the docstring begins with."""
    found = re.match(r"`([^`]+)`", kind.__doc__ or "")
    if found is None:
        raise ValueError(f"{kind.__name__}: its docstring must begin with the formula of its loss, in backticks")
    return found[1]


# The command line

COMMANDS = """# Command line

{note}

Every command of `spcp`, with examples and options. `pip install 'spcp[cli]'` brings it, and `'spcp[cli,demo]'` the
embedded data too.

```sh
spcp --help
spcp train --help
```

Results go to standard output: a table on a terminal, CSV in a pipe, JSON with `--json`. Everything else goes to
standard error. Exit codes: 0, all is well; 1, something failed; 2, the input has to be mended; 130, stopped by Ctrl-C.

Every command takes `--quiet` (`-q`), which shows nothing but results and problems, and `--verbose` (`-v`), which also
shows where errors come from. A run is a folder below `runs/`, see [Training](training.md); where it may be left out,
the latest is taken.
"""
EXAMPLES = {  # of commands whose help has none
    "demo": "spcp demo --out demo",
    "methods": "spcp methods",
    "detectors": "spcp detectors --json",
    "data list": "spcp data list",
    "data download": "spcp data download cifar10 cifar100 svhn",
    "data verify": "spcp data verify cifar10 --root ~/data",
}
EVERYWHERE = ("quiet", "verbose", "help")


def commands() -> str:
    """Every command with its help, examples and options."""
    root: Any = typer.main.get_command(app)
    parts = [COMMANDS.format(note=NOTE)]
    for name, command in leaves(root):
        paragraphs = [own.strip() for own in command.help.split("\n\n")]
        words = "\n\n".join(" ".join(own.split()) for own in paragraphs if not own.startswith("[dim]"))
        shown = [own.removeprefix("[dim]").removesuffix("[/dim]") for own in paragraphs if own.startswith("[dim]")]
        examples = "\n".join(line.strip() for own in shown or [EXAMPLES[name]] for line in own.splitlines())
        parts.append(f"## spcp {name}\n\n{words}\n\n```sh\n{examples}\n```\n")
        panels: dict[str, list[Any]] = {}
        for own in command.params:
            if own.name not in EVERYWHERE:
                panel = "Arguments" if own.param_type_name == "argument" else own.rich_help_panel or "Options"
                panels.setdefault(panel, []).append(own)
        for panel, parameters in sorted(panels.items(), key=lambda own: own[0] == "Options"):
            rows = "\n".join(map(_row, parameters))
            parts.append(f"| {panel.lower()} | | default |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def leaves(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The commands by name, those of groups as `group command`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def _row(own: Any) -> str:
    """An option or argument."""
    names = ", ".join(f"`{name}`" for name in (*own.opts, *own.secondary_opts))
    if own.param_type_name == "argument":
        names = f"`{own.name.upper()}{'...' if own.nargs == -1 else ''}`"
    default = own.default
    if own.secondary_opts:
        default = (own.opts if default else own.secondary_opts)[0]
    shown = "" if default is None or default is False or default == [] else f"`{default}`"
    return f"| {names} | {own.help or ''} | {shown} |"


# The reference

REFERENCE = """# Python

{note}

The public names of the library, with their docstrings. On GitHub this page only lists them: `make docs` builds the site
that shows them, and so does `help(spcp.Detector)` in Python.
"""
MODULES = (
    *("spcp", "spcp.data", "spcp.networks", "spcp.methods", "spcp.training", "spcp.scores", "spcp.metrics"),
    *("spcp.calibration", "spcp.evaluation", "spcp.tuning", "spcp.decision", "spcp.report", "spcp.experiments"),
)
BASES = (Score, Method)  # of their subclasses only the head is shown


def reference() -> str:
    """What mkdocstrings is to show: each public name once."""
    parts, seen = [REFERENCE.format(note=NOTE)], set()
    for name in MODULES:
        module = importlib.import_module(name)
        parts.append(f"## {name}\n\n{_first_paragraph(module)}\n")
        for own in public_names(name):
            value = getattr(module, own)
            if value in seen:
                continue
            seen.add(value)
            brief = isinstance(value, type) and issubclass(value, BASES) and value not in BASES
            parts.append(f"::: {name}.{own}\n" + ("    options: { members: false }\n" if brief else ""))
    return "\n".join(parts)


def public_names(module: str) -> list[str]:
    """Functions and classes that a module defines, or offers: `from .x import y as y`; base classes first."""
    loaded: Any = importlib.import_module(module)
    names = []
    for node in ast.walk(ast.parse(Path(loaded.__file__).read_text())):
        if isinstance(node, ast.ImportFrom):
            names += [own.name for own in node.names if own.asname == own.name]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.col_offset == 0:
            names.append(node.name)
    kept = [name for name in names if not name.startswith("_")]
    values = {name: getattr(loaded, name) for name in kept}
    chosen = [name for name in kept if inspect.isfunction(values[name]) or isinstance(values[name], type)]
    return sorted(chosen, key=lambda name: values[name] not in BASES)


def _first_paragraph(module: Any) -> str:
    return " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())


# What the pages share


def _card(name: str, about: str, items: Iterator[tuple[str, str]]) -> str:
    listed = "\n".join(f"- **{key}:** {value}" for key, value in items)
    return f"## {name}\n\n{about}\n\n{listed}\n"


def _about(kind: type) -> str:
    """What the file and the class say they are, without the arguments and the formula in front."""
    file = (inspect.getdoc(sys.modules[kind.__module__]) or "").splitlines()[0]
    own = re.sub(r"^`[^`]+`[.,;:]?\s*", "", (inspect.getdoc(kind) or "").split("\n\nArgs:")[0])
    if not own or own.lower().rstrip(".") in file.lower():
        return file
    first = own.split()[0]
    own = own if len(first) == 1 or not first.isalpha() else own[0].upper() + own[1:]
    return " ".join(f"{file} {own}".split())


def _defaults(kind: type, options: Mapping[str, Any]) -> str:
    """What the constructor takes, with the values that it has by default, or that make it this one."""
    taken = {
        own.name: own.default for own in inspect.signature(kind).parameters.values() if own.kind is own.KEYWORD_ONLY
    }
    required = inspect.Parameter.empty
    shown = {
        key: f"`{key}`" if value is required else f"`{key} = {value!r}`"
        for key, value in (taken | dict(options)).items()
    }
    return ", ".join(shown.values()) or "none"


def _linked(name: str, page: str = "") -> str:
    return f"[`{name}`]({page}#{_anchor(name)})"


def _code(formula: str, table: bool = False) -> str:
    return f"`{formula}`".replace("|", "\\|") if table else f"`{formula}`"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {_short(value)}`" for key, value in values.items())


def _flat(change: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and options alike."""
    return {key: value for key, value in change.items() if key != "options"} | dict(change.get("options", {}))


def _listed(values: Any) -> str:
    return ", ".join(map(_short, values))


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _anchor(heading: str) -> str:
    """As GitHub and mkdocs make it: `logitnorm+spcp` is `logitnormspcp`."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


PAGES: Mapping[str, Callable[[], str]] = {
    "scores.md": detectors,
    "methods.md": methods,
    "cli.md": commands,
    "api.md": reference,
}

if __name__ == "__main__":
    main()
