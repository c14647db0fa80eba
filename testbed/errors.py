"""Every error the testbed raises on purpose, each with the exit code that the command line returns for it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    REGRESSION = 1
    BAD_INPUT = 2
    MACHINE_LACKS = 3
    RUN_FAILED = 4
    UNTRUSTED = 5


class TestbedError(Exception):
    """Base of all our errors; `exit_code` is what the command line returns."""

    __test__ = False  # the name begins with "Test", but pytest must not collect it
    exit_code: ExitCode = ExitCode.RUN_FAILED


class BadInput(TestbedError):
    """A file, option or value that cannot be used. Nothing was started."""

    exit_code = ExitCode.BAD_INPUT

    @classmethod
    def of(cls, source: str, field: str, value: object, expected: str) -> BadInput:
        """The one form every input error has: where, which field, what was found, what was expected."""
        return cls(f"{source}: {field}: got {value!r}, expected {expected}")


class DoesNotFit(BadInput):
    """A schedule that this plan has no room for: too little memory, too few layers, or made for another size.

    Where several schedules are asked for it is left out, and the others go on; any other error is never left out.
    """


class MachineLacks(TestbedError):
    """The machine cannot do what was asked; the message names the command that adds it."""

    exit_code = ExitCode.MACHINE_LACKS


class RunFailed(TestbedError):
    """Something that was started did not finish: a worker died, a deadline passed, a link stayed down."""

    exit_code = ExitCode.RUN_FAILED


class Interrupted(RunFailed):
    """The user ended a run before it was over."""


class UntrustedRun(TestbedError):
    """A run finished, but what was asked for needs one that can be trusted; the message has the reasons."""

    exit_code = ExitCode.UNTRUSTED
