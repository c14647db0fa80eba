"""Finds what is registered under a group: built in, by an installed package's entry point, or as FILE.py:NAME.

A file's content is what counts: it is read once, where the user names it, and travels with the plan from there. So
guests and forked workers, which may not see the file, run the same text.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, TypeVar

from testbed.errors import BadInput, TestbedError, meant, shown
from testbed.files import read_text

T = TypeVar("T")

_IN_FILE = re.compile(r"(?P<file>[^\0]+\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
IN_FILE_PATTERN = r"^[^\u0000]+\.py:[A-Za-z_][A-Za-z0-9_]*$"
"""The same for JSON Schema."""
MOST_BYTES = 32_000_000


class Unusable(BadInput):
    """A name that stands for nothing that can be used; `value` and `expected` are for whoever knows the field."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(f"got {shown(value)}, expected {expected}")
        self.value, self.expected = value, expected

    def at(self, source: str, field: str) -> BadInput:
        """The same error, naming file and field."""
        return BadInput.of(source, field, self.value, self.expected)


class InFile(NamedTuple):
    """FILE.py:NAME."""

    file: str
    name: str


def in_file(reference: str) -> InFile | None:
    """What FILE.py:NAME refers to; None for any other text."""
    match = _IN_FILE.fullmatch(reference)
    return None if match is None else InFile(match["file"], match["name"])


def read_content(file: str, directory: Path) -> str:
    """The text of a file that is named relative to `directory`. Raises Unusable."""
    try:
        return read_text(directory / file, MOST_BYTES)
    except BadInput as error:
        why = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
        raise Unusable(file, f"a readable file ({why})") from error


def load_from_text(reference: InFile, content: str) -> Any:
    """The value NAME of the module that `content` is. The same content is run once per process.

    Raises Unusable naming the error in the file, or what the file has instead of NAME.
    """
    module_name = f"{_MODULE}{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    module = sys.modules.get(module_name)
    if module is None:
        module = _run(module_name, reference, content)
    if not hasattr(module, reference.name):
        there = [name for name, value in vars(module).items() if _made_there(name, value, module_name)]
        raise Unusable(
            f"{reference.file}:{reference.name}", f"a name in that file ({', '.join(there) or 'it has none'})"
        )
    return getattr(module, reference.name)


_MODULE = "testbed_file_"
"""What the names of modules begin with that are files of a user."""


def is_of_file(variables: Mapping[str, Any]) -> bool:
    """Whether these are the global variables of such a module."""
    return str(variables.get("__name__", "")).startswith(_MODULE)


_end_process = os._exit


def _exit_of_files(status: int) -> NoReturn:
    """os._exit, which a user's file may not end the testbed by: nothing would be said, kept or put away."""
    if is_of_file(sys._getframe(1).f_globals):
        raise SystemExit(status)
    _end_process(status)


def _made_there(name: str, value: object, module_name: str) -> bool:
    if name.startswith("_") or isinstance(value, ModuleType):
        return False
    own = getattr(value, "__module__", module_name) if callable(value) else module_name  # an object's is its class's
    return own == module_name


def _run(module_name: str, reference: InFile, content: str) -> ModuleType:
    module = ModuleType(module_name)
    module.__file__ = reference.file
    linecache.cache[reference.file] = (len(content), None, content.splitlines(keepends=True), reference.file)
    sys.modules[module_name] = module  # dataclasses and pydantic look their module up there
    os._exit = _exit_of_files
    try:
        exec(compile(content, reference.file, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise Unusable(
            reference.file, f"a module that can be imported ({problem_in(reference.file, error)})"
        ) from error
    return module


def problem_in(file: str, error: BaseException) -> str:
    """The error in one line, with the line of the file that it happened in."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    said = " ".join(str(error).split())
    return f"{type(error).__name__}{f' in line {line}' if line else ''}: {said}"


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """While code of a user's own runs: what it prints must not stand in a result, such as `--json` on stdout.

    Of threads whose code runs at the same time the last one puts standard output back.
    """
    with _REDIRECTED.lock:
        if not _REDIRECTED.by:
            _REDIRECTED.stdout, sys.stdout = sys.stdout, sys.stderr
        _REDIRECTED.by += 1
    try:
        yield
    finally:
        with _REDIRECTED.lock:
            _REDIRECTED.by -= 1
            if not _REDIRECTED.by:
                sys.stdout = _REDIRECTED.stdout


@contextmanager
def own_code(reference: InFile | None, refused: Callable[[str], Exception]) -> Iterator[None]:
    """While code runs that may be of a user's file: it prints to standard error, and an error of it is what `refused`
    makes of the problem in words, with the file's line."""
    try:
        with prints_to_stderr():
            yield
    except TestbedError:
        raise
    except (Exception, SystemExit) as error:
        if reference is None:
            raise
        raise refused(problem_in(reference.file, error)) from error


class _Redirected:
    """Standard output while it is standard error."""

    def __init__(self) -> None:
        self.lock, self.stdout, self.by = threading.Lock(), sys.stdout, 0


_REDIRECTED = _Redirected()


class Registry(Mapping[str, T]):
    """What is registered under a group, by name. Names are cheap to list; a value is imported when it is asked for.

    Built-in names stand in a table of "module:attribute" in the code and cannot be overridden; entry points of
    installed packages add to them.
    """

    def __init__(self, group: str, built_in: Mapping[str, str], check: Callable[[str, object], T]) -> None:
        """`check` turns what was loaded under a name into a value, or raises Unusable."""
        self.group = group
        self.built_in = built_in
        self._check = check

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from sorted({point.name for point in entry_points(group=self.group)} - set(self.built_in))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or bool(entry_points(group=self.group, name=str(name)))

    def __getitem__(self, name: str) -> T:
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            return self._check(name, getattr(importlib.import_module(module), attribute))
        points = list(entry_points(group=self.group, name=name))
        if not points:
            raise KeyError(name)
        return self._check(name, self._from_package(points))

    def _from_package(self, points: list[EntryPoint]) -> object:
        if len({point.value for point in points}) > 1:
            packages = ", ".join(sorted(point.dist.name for point in points if point.dist))
            raise Unusable(points[0].name, f"a name that one package registers (these do: {packages})")
        try:
            return points[0].load()
        except (Exception, SystemExit) as error:
            problem = f"{type(error).__name__}: {error}"
            raise Unusable(
                points[0].name, f"an entry point that can be imported ({points[0].value}: {problem})"
            ) from error

    def find(self, name: str, content: str | None = None) -> T:
        """The value of a registered name, or of FILE.py:NAME where `content` is what the file holds.

        Raises Unusable naming what is registered.
        """
        reference = in_file(name)
        if reference is not None:
            if content is None:
                raise Unusable(name, "what the file holds to be read first")
            with prints_to_stderr():
                return self._check(name, load_from_text(reference, content))
        try:
            return self[name]
        except KeyError:
            raise Unusable(name, f"one of {', '.join(self)}, or FILE.py:NAME{meant(name, self)}") from None
