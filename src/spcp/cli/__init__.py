"""The command line: `spcp`. Results go to standard output, everything else to standard error.

Exit codes: 0 success, 1 failure, 2 invalid input, 3 some inputs could not be read, 130 interrupted. Nothing heavy is
imported before a command runs, so that `spcp --help` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

from ..errors import explained
from ..progress import printable
from .app import app as app
from .app import verbosity

# Each module adds its command to the app; this is the order of `spcp --help`.
from . import train, tune, adopt  # isort: skip  # noqa: F401
from . import evaluate, calibrate, detect  # isort: skip  # noqa: F401
from . import export, serve, monitor  # isort: skip  # noqa: F401
from . import demo, report, patterns, reproduce  # isort: skip  # noqa: F401
from . import methods, scores, data  # isort: skip  # noqa: F401


def main() -> None:
    """Run a command, and turn an exception into a message and an exit code."""
    if hasattr(sys.stdin, "reconfigure"):  # lists of files: in whatever encoding their names are
        sys.stdin.reconfigure(encoding=sys.getfilesystemencoding(), errors=sys.getfilesystemencodeerrors())
    if hasattr(sys.stdout, "reconfigure"):  # which cannot hold every name
        sys.stdout.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("spcp: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    warnings.showwarning = _warn
    try:
        code = app(standalone_mode=False, prog_name="spcp")
    except KeyboardInterrupt:
        _print_error("interrupted")
        code = 130
    except Exception as error:
        code = _report(error)
    code = code if isinstance(code, int) else 0
    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun: at a usual end, torch's threads may abort the process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _report(error: Exception) -> int:
    """Print what went wrong, and return the exit code."""
    if verbosity.verbose:
        logging.getLogger("spcp").exception("traceback:")
    if hasattr(error, "show") and hasattr(error, "exit_code"):  # typer's: an unknown option, a missing argument
        error.message = printable(getattr(error, "message", None) or "")  # type: ignore[attr-defined]
        error.show(file=sys.stderr)
        return int(error.exit_code)
    if type(error).__name__ in ("Abort", "Exit"):
        return int(getattr(error, "exit_code", 130))
    text, code = explained(error)
    _print_error(text)
    return code


def _warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Print a warning as one line; those meant for developers only with --verbose."""
    if verbosity.verbose or (issubclass(category, UserWarning) and not verbosity.quiet):
        _print_error(str(message))


def _print_error(text: str) -> None:
    print(f"spcp: {printable(text)}", file=sys.stderr, flush=True)


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
