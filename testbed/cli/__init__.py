"""The command line: parse, call, print. Whatever is slow to import is imported by the command that needs it."""

from __future__ import annotations

import errno
import gc
import os
import sys

import typer
from typer.exceptions import TyperException

from testbed.cli.commands import app
from testbed.cli.usage import as_bad_input
from testbed.errors import ExitCode, RunFailed, TestbedError
from testbed.failure import failed
from testbed.interrupts import unanswered

__all__ = ["app", "main", "run_command"]

_COMPLETION = "_TESTBED_COMPLETE"
"""In the environment where a shell asks what may be typed next."""

_INTERRUPTED = 130
"""What typer makes of Ctrl-C, without a word."""


_COLLECT_AFTER = 50_000
"""Python looks for reference cycles after so many new objects, not after 700: plans and schedules are thousands of
small objects that stay, and a twentieth of all time went into looking at them."""


def main() -> None:
    """Run a command and exit with its code."""
    sys.exit(run_command())


def run_command() -> int:
    """Run a command; returns its exit code. Every error is one line; what no one foresaw is shown with where it was."""
    gc.set_threshold(_COLLECT_AFTER)
    try:
        code = app(prog_name="testbed", standalone_mode=False)
        sys.stdout.flush()
    except (TyperException, typer.Abort) as error:  # of the command line's parser
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed
            return ExitCode.BAD_INPUT
        if isinstance(error, typer.Abort):
            code = _INTERRUPTED
        else:
            return failed(as_bad_input(error))
    except SystemExit as left:
        if _COMPLETION in os.environ:  # a shell has what it asked for: that is how typer ends then
            return ExitCode.OK
        if isinstance(left.__context__, BrokenPipeError):  # typer's answer to it; whoever read has seen enough
            return _let_go_of_output(ExitCode.RUN_FAILED)
        return failed(left)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return failed(error)
        failed(RunFailed(f"{error.filename or 'the output'} cannot be written: {error.strerror}"))
        return _let_go_of_output(ExitCode.RUN_FAILED)
    except Exception as error:  # noqa: BLE001 - this is the top of a process
        if isinstance(error, TestbedError) or not unanswered():
            return failed(error)
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        print("interrupted", file=sys.stderr)
        return ExitCode.RUN_FAILED
    return code or ExitCode.OK


def _let_go_of_output(code: int) -> int:
    """Where nobody takes what is left to print, the interpreter would try again, and fail, as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EBADF)
"""What says that a disk takes no more, wherever it happens, or that standard output is closed."""
