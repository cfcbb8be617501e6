"""Write the pages that follow from the code, and from what was measured: scores.md, methods.md, cli.md, api.md,
reliability.md and scale.md.

python docs/generate.py            # after a change of a score, a method, a command or a public name
python docs/generate.py --check    # exit 1 if a page is not up to date
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from spcp.cli import app
from spcp.config import DEFAULTS, DEPARTURES, GRID
from spcp.evaluation import ITP_OPTIONS
from spcp.methods import METHODS, TRUNCATING, Method
from spcp.scores import SCORES, Score

DOCS = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py: edit that, or the code. -->"


def main() -> None:
    """Write the pages, or check them."""
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


# Scores

SCORES_PAGE = """# Scores

{note}

A card for each of the {count} scores: what it computes, what it is fitted on, what it costs, and its paper. How to use
them: [Detect and decide](detect.md). In a terminal: `spcp scores`.

`h` are a sample's D features, `z = W h + b` its K logits, `p` their softmax, `f = h / ||h||`. A higher score means more
in-distribution. With an SPCP network the logits are the truncated ones, also those of edited features (ReAct, ASH).
Costs are for a batch of B samples and N training samples, besides the one pass of the network that serves all scores.

| name | score | fitted on | searched |
|---|---|---|---|
"""
FITTED_ON = {
    (): "nothing",
    ("train",): "training set",
    ("val",): "validation set",
    ("train", "val"): "training and validation set",
}


def scores() -> str:
    """Return a table of all scores, and a card for each."""
    rows, cards = [], []
    for name, (kind, options) in SCORES.items():
        cells = (_linked(name), _code(kind.formula, table=True), _fitted_on(kind, options), ", ".join(kind.sweep))
        rows.append(f"| {' | '.join(cells)} |")
        cards.append(_card(name, _about(kind), _score_items(name, kind, options)))
    return "\n".join([SCORES_PAGE.format(note=NOTE, count=len(SCORES)) + "\n".join(rows) + "\n", *cards])


def _fitted_on(kind: type[Score], options: Mapping[str, Any]) -> str:
    """Return what a score is fitted on; a consensus whose members are given, only on what these need."""
    if "members" not in options:
        return FITTED_ON[kind.fitted_on]
    needed = {"val"}.union(*(SCORES[member][0].fitted_on for member in options["members"]))
    return FITTED_ON[tuple(role for role in kind.fitted_on if role in needed)]


def _score_items(name: str, kind: type[Score], options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Score", _code(kind.formula)
    yield "Paper", kind.paper
    yield "Options", _defaults(kind, options)
    if kind.sweep:
        yield "Searched", "; ".join(f"`{key}` {_listed(values)}" for key, values in kind.sweep.items())
    if name == "itp":
        yield "Its paper's settings", "; ".join(f"{where} {_pairs(values)}" for where, values in ITP_OPTIONS.items())
    yield "Fitted on", _fitted_on(kind, options)
    wrong = [f"`{method}`" for method, (trained, _) in METHODS.items() if kind.reads not in trained.readable]
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

All of them learn from labelled ID data; none sees OOD data. `z` are the logits, `h` the features, `y` the labels, CE is
the cross-entropy. Options are set by `config_for(..., options={{...}})`, or by `--option KEY=VALUE`. Costs are for a
step with a batch of B images, K classes and D features.

SPCP truncates contributions to the logits in training and at inference, see [the method](method.md). It goes with every
method except `snn` and `umap`: `config_for("cifar10", "logitnorm", rho_norm=0.5)`, or `-m logitnorm --rho-norm 0.5`.
The names `spcp` and `fixed` mean cross-entropy with truncation. Their `rho_norm`, which sets how much is truncated, is
by default the benchmark's: {rho_norms}.
For your data it is 1, or K / 10 with fewer than ten classes. `spcp tune` searches {grid}.
The other hyperparameters are those of [Truncation](api.md#spcp.Truncation). What truncation costs is
[measured](performance.md#the-head).

| name | minimises | scored with |
|---|---|---|
"""
# Four methods are one class.
CROSS_ENTROPY = {
    "plain": ("CE(z, y)", "Plain training, which all others are compared with."),
    "spcp": ("CE(z, y)", "The paper's method: truncation at a threshold that follows the contributions."),
    "fixed": ("CE(z, y)", "SPCP with a threshold that stays where it starts, which the paper compares with."),
    "l2": (
        "CE(z, y) + penalty ||W||^2",
        "A penalty on the classifier's weights alone: another way to keep them small.",
    ),
}


def methods() -> str:
    """Return a table of all methods, and a card for each."""
    rows, cards = [], []
    for name, (kind, options) in METHODS.items():
        loss, about = CROSS_ENTROPY.get(name) or (_loss(kind), _about(kind))
        truncated = ", truncated" if name in TRUNCATING else ""
        cells = (_linked(name), _code(loss, table=True) + truncated, _linked(kind.score, "scores.md"))
        rows.append(f"| {' | '.join(cells)} |")
        cards.append(_card(name, about, _method_items(name, kind, options, _code(loss) + truncated)))
    rho_norms = ", ".join(f"{benchmark} {settings['rho_norm']:g}" for benchmark, settings in DEFAULTS.items())
    page = METHODS_PAGE.format(note=NOTE, count=len(METHODS), rho_norms=rho_norms, grid=_listed(GRID))
    return "\n".join([page + "\n".join(rows) + "\n", *cards])


def _method_items(name: str, kind: type[Method], options: Mapping[str, Any], loss: str) -> Iterator[tuple[str, str]]:
    yield "Minimises", loss
    if name != "plain":
        yield "Paper", kind.paper
    yield "Options", _defaults(kind, options)
    changes = {where: change for (method, where), change in DEPARTURES.items() if method == name}
    if changes:
        shown = (f"{where or 'everywhere'} {_pairs(_flat(change))}" for where, change in changes.items())
        yield "Settings that differ", "; ".join(shown)
    if name == "fixed":
        yield "Needs", "`initial_threshold`: the last threshold of an `spcp` run, for example"
    if kind.pretrained:
        yield "Needs", "a trained network: `start` in the config, `--weights` in a terminal"
    score_options = kind.score_options
    with_options = f", {_pairs(score_options)}" if isinstance(score_options, Mapping) and score_options else ""
    yield "Scored with", _linked(kind.score, "scores.md") + with_options
    yield "Cost", kind.cost + ("; and the truncation" if name in TRUNCATING else "")


def _loss(kind: type[Method]) -> str:
    """Return the formula that the docstring begins with."""
    formula = re.match(r"`([^`]+)`", kind.__doc__ or "")
    if formula is None:
        raise ValueError(f"{kind.__name__}: its docstring must begin with the formula of its loss, in backticks")
    return formula[1]


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
standard error. Exit codes: 0 success, 1 failure, 2 invalid input, 3 some inputs could not be read, 130 interrupted
(Ctrl-C).

Every command takes `--quiet` (`-q`), which shows nothing but results and problems, and `--verbose` (`-v`), which also
shows tracebacks. A run is a folder in `runs/`, see [Training](training.md); where it may be omitted, the latest is
used.
"""
EXAMPLES = {  # for commands whose help has none
    "demo": "spcp demo --out demo",
    "methods": "spcp methods",
    "scores": "spcp scores --json",
    "data list": "spcp data list",
    "data download": "spcp data download cifar10 cifar100 svhn",
    "data verify": "spcp data verify cifar10 --root ~/data",
}
EVERYWHERE = ("quiet", "verbose", "help")


def commands() -> str:
    """Return every command with its help, examples and options."""
    root: Any = typer.main.get_command(app)
    parts = [COMMANDS.format(note=NOTE)]
    for name, command in leaves(root):
        paragraphs = [paragraph.strip() for paragraph in command.help.split("\n\n")]
        words = "\n\n".join(" ".join(text.split()) for text in paragraphs if not text.startswith("[dim]"))
        dim = [text.removeprefix("[dim]").removesuffix("[/dim]") for text in paragraphs if text.startswith("[dim]")]
        examples = "\n".join(line.strip() for text in dim or [EXAMPLES[name]] for line in text.splitlines())
        parts.append(f"## spcp {name}\n\n{words}\n\n```sh\n{examples}\n```\n")
        panels: dict[str, list[Any]] = {}
        for parameter in command.params:
            if parameter.name not in EVERYWHERE:
                is_argument = parameter.param_type_name == "argument"
                panel = "Arguments" if is_argument else parameter.rich_help_panel or "Options"
                panels.setdefault(panel, []).append(parameter)
        for panel, parameters in sorted(panels.items(), key=lambda item: item[0] == "Options"):
            rows = "\n".join(map(_row, parameters))
            parts.append(f"| {panel.lower()} | | default |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def leaves(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands by name, those of groups as `group command`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def _row(parameter: Any) -> str:
    """Return the row of an option or argument."""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}`"
    default = parameter.default
    if parameter.secondary_opts:
        default = (parameter.opts if default else parameter.secondary_opts)[0]
    shown = "" if default is None or default is False or default == [] else f"`{default}`"
    return f"| {names} | {parameter.help or ''} | {shown} |"


# The reference

REFERENCE = """# Python

{note}

The public names of the library, with their docstrings. On GitHub this page only lists them: `make docs` builds the site
that shows them, and so does `help(spcp.Detector)` in Python.
"""
MODULES = (
    *("spcp", "spcp.data", "spcp.networks", "spcp.methods", "spcp.bank", "spcp.moments", "spcp.processes"),
    *("spcp.scores", "spcp.metrics"),
    *("spcp.conformal", "spcp.config", "spcp.training", "spcp.evaluation", "spcp.calibration", "spcp.choice"),
    *("spcp.detection", "spcp.shipping", "spcp.exported", "spcp.monitoring"),
    *("spcp.tuning", "spcp.comparison", "spcp.report", "spcp.experiments"),
)
BASES = (Score, Method)  # their subclasses are shown without members


def reference() -> str:
    """Return the names for mkdocstrings: each public name once."""
    parts, seen = [REFERENCE.format(note=NOTE)], set()
    for name in MODULES:
        module = importlib.import_module(name)
        parts.append(f"## {name}\n\n{_first_paragraph(module)}\n")
        for public in public_names(name):
            value = getattr(module, public)
            if value in seen:
                continue
            seen.add(value)
            brief = isinstance(value, type) and issubclass(value, BASES) and value not in BASES
            parts.append(f"::: {name}.{public}\n" + ("    options: { members: false }\n" if brief else ""))
    return "\n".join(parts)


def public_names(module: str) -> list[str]:
    """Return the functions and classes that a module defines or exports (`from .x import y as y`), bases first."""
    loaded: Any = importlib.import_module(module)
    names = []
    for node in ast.walk(ast.parse(Path(loaded.__file__).read_text())):
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.col_offset == 0:
            names.append(node.name)
    kept = [name for name in names if not name.startswith("_")]
    values = {name: getattr(loaded, name) for name in kept}
    chosen = [name for name in kept if inspect.isfunction(values[name]) or isinstance(values[name], type)]
    return sorted(chosen, key=lambda name: values[name] not in BASES)


def _first_paragraph(module: Any) -> str:
    return " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())


# Shared by the pages


def _card(name: str, about: str, items: Iterator[tuple[str, str]]) -> str:
    listed = "\n".join(f"- **{key}:** {value}" for key, value in items)
    return f"## {name}\n\n{about}\n\n{listed}\n"


def _about(kind: type) -> str:
    """Return the first lines of the file and the class, without the formula in front and the arguments."""
    file = (inspect.getdoc(sys.modules[kind.__module__]) or "").splitlines()[0]
    text = re.sub(r"^`[^`]+`[.,;:]?\s*", "", (inspect.getdoc(kind) or "").split("\n\nArgs:")[0])
    if not text or text.lower().rstrip(".") in file.lower():
        return file
    first = text.split()[0]
    text = text if len(first) == 1 or not first.isalpha() else text[0].upper() + text[1:]
    return " ".join(f"{file} {text}".split())


def _defaults(kind: type, options: Mapping[str, Any]) -> str:
    """Return the options of the constructor, with their defaults, or the values that make it this one."""
    parameters = inspect.signature(kind).parameters.values()
    taken = {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    taken.pop("truncation", None)  # which all methods take
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
    """Return settings and options in one dictionary."""
    return {key: value for key, value in change.items() if key != "options"} | dict(change.get("options", {}))


def _listed(values: Any) -> str:
    return ", ".join(map(_short, values))


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub and mkdocs give a heading: `data list` is `data-list`."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


# Reliability

RELIABILITY_PAGE = """# Reliability

{note}

What was tried to break spcp, and what came of it. Committed scripts print the tables; with `--check` they exit 1 if a
number that should be 0 is not. The suite tries a few of each, from fixed seeds. What was printed last is in
`docs/reliability/`, one file a script.

## Damaged files

`python benchmarks/fuzz.py` changes bits, bytes, lengths and fields of files in every format that spcp reads. A damaged
file must be read rightly, or refused in one sentence that names it. *Foreign* is any other exception; *wrong* is a
result that a checksum should have caught, or that contradicts itself; *slow* took more than 5 seconds of CPU time,
*memory* more than 1 GiB, and *crash* ended the process. `--only READER --case NUMBER` repeats one case.

```
{fuzz}
```

## Faults

`python benchmarks/faults.py` kills each task with SIGKILL: within a write or rename, which it slows down, or at any
moment. It starts the same task twice at once; after a kill it lets the clock jump or moves the folder; it fills the
disk, or makes it read-only. Then every visible file must be readable, and one more call must end with the result of an
undisturbed one, to the bit, and leave no other files. A call that cannot work, as on a full disk, must say so in a
sentence.

```
{faults}
```

## Tests of the tests

`make coverage` measures which lines and branches the suite runs; aim 95 %.

```
{coverage}
```

`make mutation` changes the code of the core (clip, quantile, head, metrics, conformal) in one place at a time, an
operator, a condition, a number, a word or a statement, and runs the tests that reach it. At most 5 % may go unnoticed;
those are listed in `tests/mutation.py` with the reason.

```
{mutation}
```
"""


def reliability() -> str:
    """Return the page of what was tried to break the package, with what the scripts printed last."""
    kept = {path.stem: path.read_text().rstrip() for path in (DOCS / "reliability").glob("*.txt")}
    return RELIABILITY_PAGE.format(note=NOTE, **kept)


# Scale

SCALE_PAGE = """# Scale out

{note}

| more ... | use | see |
|---|---|---|
| images to evaluate and fit on | `torchrun --nproc-per-node 2 -m spcp eval RUN` | [many images](#many-images) |
| runs, of seeds or settings | `--jobs` or `--engine ray` of `tune`, `reproduce`, `train` | [many runs](#many-runs) |
| inputs to decide about | `spcp detect`, here or with `--engine ray` | [many inputs](#many-inputs) |
| classes | nothing; past one process's memory `shard_classes(model, mesh)` | [many classes](#many-classes) |

Everything below was measured, on machines that the tables name; the [last section](#many-machines-on-paper) is
arithmetic from that.
"""
SCALE_PARTS = {  # sections in docs/scale/, and their tables: each follows the paragraph that links to it
    "Many images": ("images.md", "bank.md", "processes.md"),
    "Many runs": ("many-runs.md", "runs.md"),
    "Many inputs": ("many-inputs.md", "inputs-table.md"),
    "Many classes": ("many-classes.md", "classes-table.md", "sharded-table.md", "scores-table.md"),
    "Many machines, on paper": ("machines.md",),
}


def scale() -> str:
    """Return the page about scale, put together from `docs/scale/`: sections, and tables that scripts wrote."""
    parts = [SCALE_PAGE.format(note=NOTE)]
    for title, (section, *tables) in SCALE_PARTS.items():
        text = _part_of_scale(section) or "Not written yet."
        if first := re.match(r"(#+) .*\n", text):  # its own title
            text = _outside_code(partial(_deeper, by=2 - len(first[1])), text[first.end() :])
        for name in tables:
            text = _with_table(text, name)
        parts.append(f"## {title}\n\n{_outside_code(_seen_from_docs, text).strip()}\n")
    return "\n".join(parts)


def _part_of_scale(name: str) -> str:
    path = DOCS / "scale" / name
    return path.read_text().strip() if path.exists() else ""


def _with_table(text: str, name: str) -> str:
    """Put a table below the paragraph that links to it, in place of the link, or at the end."""
    link, table = re.compile(rf"\[([^]]*)\]\({re.escape(name)}\)"), _part_of_scale(name)
    paragraphs = text.split("\n\n")
    i = next((i for i, paragraph in enumerate(paragraphs) if link.search(paragraph)), len(paragraphs) - 1)
    paragraphs[i] = link.sub(r"\1", paragraphs[i])
    return "\n\n".join([*paragraphs[: i + 1], *([table] if table else []), *paragraphs[i + 1 :]])


def _outside_code(change: Callable[[str], str], text: str) -> str:
    return "".join(part if part.startswith("```") else change(part) for part in re.split(r"(?s)(```.*?```)", text))


def _deeper(text: str, by: int) -> str:
    """Move headings down by some levels."""
    return re.sub(r"(?m)^#+(?= )", lambda mark: "#" * (len(mark[0]) + by), text)


def _seen_from_docs(text: str) -> str:
    """Let links of a page in `docs/scale/` lead to the same place from one in `docs/`."""
    return re.sub(r"\]\((?!https?:|#)(\S+?)\)", lambda to: f"]({os.path.normpath('scale/' + to[1])})", text)


PAGES: Mapping[str, Callable[[], str]] = {
    "scores.md": scores,
    "methods.md": methods,
    "cli.md": commands,
    "api.md": reference,
    "reliability.md": reliability,
    "scale.md": scale,
}

if __name__ == "__main__":
    main()
