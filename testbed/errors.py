"""Every error the testbed raises on purpose, each with the exit code that the command line returns for it."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from reprlib import Repr
from typing import Self


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    REGRESSION = 1
    BAD_INPUT = 2
    MACHINE_LACKS = 3
    RUN_FAILED = 4
    UNTRUSTED = 5


_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxtuple = 2, 3, 4, 4
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 60, 60, 40

_MOST_NAMES = 12


def shown(value: object) -> str:
    """A value as an error shows it: short, on one line, whatever it is."""
    text = repr(value) if isinstance(value, bool | float | None) else _SHORT.repr(value)
    return text if len(text) <= 100 else f"{text[:70]}...{text[-20:]}"


def require(good: bool, source: str, field: str, value: object, expected: str) -> None:
    """Raises BadInput unless a value is `good`."""
    if not good:
        raise BadInput.of(source, field, value, expected)


def listed(names: Iterable[object]) -> str:
    """Names joined by commas; of many only the first."""
    every = [str(name) for name in names]
    more = len(every) - _MOST_NAMES
    return ", ".join(every if more <= 0 else [*every[:_MOST_NAMES], f"and {more} more"]) or "none"


def few(texts: Sequence[str], most: int = 3) -> str:
    """Texts joined by commas, at most so many of them, and how many more there are."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def nearest(name: object, known: Iterable[object]) -> str | None:
    """The one of the `known` names that somebody may have meant; None where none is near."""
    from difflib import get_close_matches  # only where something is wrong already

    near = get_close_matches(str(name).lower(), [str(candidate) for candidate in known], n=1, cutoff=0.6)
    return near[0] if near else None


def meant(name: object, known: Iterable[object]) -> str:
    """The same as words behind what is expected; "" where no name is near."""
    near = nearest(name, known)
    return "" if near is None else f" (did you mean {near}?)"


def _printable(text: str) -> str:
    """On one line, and such that any terminal can show it."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


_MOST_CHARACTERS = 600


def _clipped(text: str) -> str:
    """Printable, and no longer than a person reads."""
    plain = _printable(text[: _MOST_CHARACTERS + 1])
    return plain if len(plain) <= _MOST_CHARACTERS else f"{plain[:_MOST_CHARACTERS]}..."


def in_words(error: OSError | MemoryError) -> str:
    """What the machine refused, on one line: the reason, the file if it is about one, and what gives more of it."""
    if isinstance(error, MemoryError):
        return f"no memory left{f' ({_clipped(str(error))})' if str(error) else ''}"
    about = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    said = error.strerror or str(error) or type(error).__name__
    more = ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        more = f" (at most {most} at once: ulimit -n 65536 allows more)"
    elif error.errno == errno.EAGAIN and isinstance(error, BlockingIOError) and not about:
        more = " (as from a limit of processes: ulimit -u, or pids.max of the cgroup)"
    return _clipped(f"{f'{about}: ' if about else ''}{said}{more}")


class TestbedError(Exception):
    """Base of all our errors; `exit_code` is what the command line returns."""

    __test__ = False  # the name begins with "Test", but pytest must not collect it
    exit_code: ExitCode = ExitCode.RUN_FAILED


class BadInput(TestbedError):
    """A file, option or value that cannot be used. Nothing was started."""

    exit_code = ExitCode.BAD_INPUT

    @classmethod
    def of(cls, source: str, field: str, value: object, expected: str) -> Self:
        """The one form every input error has: where, which field, what was found, what was expected."""
        error = cls(f"{_clipped(source)}: {_clipped(field)}: got {shown(value)}, expected {_clipped(expected)}")
        error.source = source
        return error

    @classmethod
    def of_all(cls, source: str, faults: Sequence[tuple[str, object, str]]) -> Self:
        """All that is wrong with one source, as (field, value, expected): of several a line for each, below a head."""
        if len(faults) == 1:
            return cls.of(source, *faults[0])
        lines = [
            f"  {_clipped(field)}: got {shown(value)}, expected {_clipped(expected)}"
            for field, value, expected in faults[:_MOST_NAMES]
        ]
        more = len(faults) - len(lines)
        error = cls(
            "\n".join([f"{_clipped(source)}: {len(faults)} faults", *lines, *([f"  and {more} more"] * bool(more))])
        )
        error.source = source
        return error

    source = ""
    """Where it is: a file, or what only whoever called knows the file of (naming_files)."""


@contextmanager
def naming_files(files: Mapping[str, str]) -> Iterator[None]:
    """Errors of what is called by a name, such as a workload, name the file as well: name -> file."""
    try:
        yield
    except BadInput as error:
        file = files.get(error.source)
        if file is None or file in str(error):
            raise
        raise BadInput(f"{_printable(file)}: {str(error).removeprefix(f'{error.source}: ')}") from error


class DoesNotFit(BadInput):
    """A schedule that this plan has no room for (too little memory, too few layers, or made for another size), or a
    policy that is made for other networks, or for fewer flows.

    Where several are tried it is left out, and the others go on; any other error is never left out.
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
