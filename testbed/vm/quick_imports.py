"""Imports in a guest with few system calls: one takes there as long as a hundred take elsewhere.

Most of what Python and torch ask of the kernel while they import 2,000 modules is for somebody who is not there: other
threads, for which there are locks (Python 3.11 and 3.12 read the clock for each that they take), and readers of
messages with lines of source, for which `inspect` follows every link on the way to every module's file.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.machinery import SourceFileLoader
from types import FrameType, ModuleType
from typing import Any

_READ_BYTES = 2**20
"""At once: hardly any module has more."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Meanwhile imports lock nothing, and take few calls for a file: for a process with one thread."""
    bootstrap: Any = vars(importlib)["_bootstrap"]
    changes: list[tuple[Any, str, Any]] = [
        (bootstrap._imp, "acquire_lock", _nothing),
        (bootstrap._imp, "release_lock", _nothing),
        (SourceFileLoader, "get_data", _data),
        (inspect, "getmodule", _by_frame(inspect.getmodule)),
    ]
    if unlocked := getattr(bootstrap, "_DummyModuleLock", None):  # as for Python without threads
        changes.append((bootstrap, "_ModuleLock", unlocked))
    with ExitStack() as stack:
        for owner, name, value in changes:
            stack.enter_context(_changed(owner, name, value))
        yield


@contextmanager
def _changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _nothing() -> None:
    pass


def _data(_loader: SourceFileLoader, path: str) -> bytes:
    """Of a module's file, all. Raises OSError. Python's own asks for its size, its place and its kind besides."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = [os.read(file, _READ_BYTES)]
        while len(pieces[-1]) == _READ_BYTES:
            pieces.append(os.read(file, _READ_BYTES))
    finally:
        os.close(file)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _by_frame(others: Callable[..., ModuleType | None]) -> Callable[..., ModuleType | None]:
    """`inspect.getmodule`: of a frame, which knows its module's name, without a look at all modules' files."""

    def found(of: object, filename: str | None = None) -> ModuleType | None:
        if isinstance(of, FrameType):
            return sys.modules.get(of.f_globals.get("__name__", ""))
        return others(of, filename)

    return found
