"""What the top of a process says of the exception that ended it, and the exit code that stands for it."""

from __future__ import annotations

import os
import sys
import traceback

from testbed import extras
from testbed.errors import BadInput, RunFailed, TestbedError, in_words
from testbed.plugins import is_of_file

TRACEBACK_VARIABLE = "TESTBED_TRACEBACK"
"""In the environment, not empty: where an error came from is shown as well."""


def failed(error: BaseException) -> int:
    """Say on stderr, in one line, what `error` is; returns its exit code, which is never that of a baseline.

    What the machine refused (files, processes, memory) is that alone. Anything else is a fault of the testbed or of
    a package that it uses: it is shown with its traceback.
    """
    failure = _as_ours(error)
    if failure is None or os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    failure = failure or RunFailed(f"not foreseen: {type(error).__name__}: {' '.join(str(error).split())[:600]}")
    print(f"error: {failure}", file=sys.stderr)
    return failure.exit_code


def _as_ours(error: BaseException) -> TestbedError | None:
    match error:
        case TestbedError():
            return error
        case ModuleNotFoundError():
            return extras.of_missing_module(error)
        case OSError() | MemoryError():
            return RunFailed(in_words(error))
        case SystemExit():
            return _left(error)
        case _:
            return None


def _left(error: SystemExit) -> TestbedError:
    """The testbed itself never leaves so: what a user's file calls may not end it without a word."""
    trace, place = error.__traceback__, None
    while trace is not None:
        if is_of_file(trace.tb_frame.f_globals):
            place = trace.tb_frame.f_code.co_filename, f"line {trace.tb_lineno}"
        trace = trace.tb_next
    if place is None:
        return RunFailed(f"a package ended Python with sys.exit({error.code!r})")
    return BadInput.of(*place, f"sys.exit({error.code!r})", "code that returns, or raises what is wrong")
