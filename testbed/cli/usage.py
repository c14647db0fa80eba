"""What the command line's parser refuses, as one line: command, option, value and what was expected."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from testbed.errors import BadInput
from testbed.spec.document import first_fault

_TOO_MANY = "Got unexpected extra argument"
"""How the parser begins when it has arguments left over; they follow in brackets."""


def as_bad_input(error: Any) -> BadInput:
    """One of the parser's usage errors in our form; the parser says in words what it knows, so no value is lost."""
    command = "testbed"
    if error.ctx is not None:
        command = error.ctx.command_path
    said = " ".join(str(error.message).split()).rstrip(".")
    match type(error).__name__:
        case "NoSuchOption":
            near = ", ".join(error.possibilities or ())
            return BadInput.of(command, "option", error.option_name, f"an option that there is ({near or '--help'})")
        case "MissingParameter":
            return BadInput.of(command, _name(error), "nothing", "it to be given")
        case "BadOptionUsage":
            takes = "no value" if "does not take" in said else "a value"
            return BadInput.of(command, error.option_name, said, takes)
        case "BadParameter":
            return BadInput.of(command, _name(error), *_found_and_expected(error, said))
        case "UsageError" if said.startswith(_TOO_MANY):
            _, _, extra = said.removesuffix(")").rpartition(" (")
            return BadInput.of(command, "arguments", extra, f"no more of them than `{command} --help` says")
        case _:
            return BadInput.of(command, "arguments", said, f"what `{command} --help` says")


def _name(error: Any) -> str:
    """Of an option its long name, of an argument its name in the usage line."""
    if error.param is None:
        return str(error.param_hint or "argument")
    if error.param.param_type_name == "option":
        return str(max(error.param.opts, key=len))
    return str(error.param.metavar or error.param.name).strip("[].")


def _found_and_expected(error: Any, said: str) -> tuple[object, str]:
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return said, "a value that it takes"
    _, value, expected = first_fault(cause)
    _, is_one_of, names = expected.rstrip(".").rpartition(" is not one of ")
    return value, f"one of {names}" if is_one_of else expected
