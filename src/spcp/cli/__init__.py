"""The command line: `spcp`. Results go to standard output, everything else to standard error.

Exit codes: 0, all is well; 1, something failed; 2, the input has to be mended. Nothing heavy is imported before a
command runs, so that `spcp --help` answers at once.
"""

from __future__ import annotations

import logging
import sys
import warnings

from ..errors import InputError, TrainingError
from .app import app as app
from .app import state

# Each module adds its commands to the app.
from . import learning as learning  # isort: skip
from . import deciding as deciding  # isort: skip
from . import showing as showing  # isort: skip
from . import listing as listing  # isort: skip


def main() -> None:
    """Run a command, and turn what goes wrong into a sentence and an exit code."""
    logging.basicConfig(format="spcp: %(message)s", level=logging.WARNING)
    warnings.showwarning = _warn
    try:
        code = app(standalone_mode=False, prog_name="spcp")
    except KeyboardInterrupt:
        _say("stopped")
        code = 130
    except Exception as error:
        code = _explained(error)
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Exception) -> int:
    """Say what went wrong, and give the exit code."""
    if state.verbose:
        logging.getLogger("spcp").exception("what went wrong, in full:")
    if hasattr(error, "show") and hasattr(error, "exit_code"):  # typer's own: an unknown option, a missing argument
        error.show(file=sys.stderr)
        return int(error.exit_code)
    if isinstance(error, InputError):
        _say(str(error))
        return 2
    if isinstance(error, TrainingError | ImportError):
        _say(str(error))
        return 1
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        _say(f"{name}{error.strerror or error}; check the path, the rights and the free space")
        return 1
    if type(error).__name__ in ("Abort", "Exit"):
        return int(getattr(error, "exit_code", 130))
    _say(f"{type(error).__name__}: {error}; this is a defect of spcp, --verbose shows where")
    return 1


def _warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """What the user should know, as a sentence; what is for developers, on demand."""
    if state.verbose or (issubclass(category, UserWarning) and not state.quiet):
        _say(str(message))


def _say(text: str) -> None:
    print(f"spcp: {text}", file=sys.stderr, flush=True)
