"""Imports in a guest with few system calls: one takes there as long as a hundred take elsewhere.

Most of what Python and torch ask of the kernel while they import 2,000 modules is for somebody who is not there: other
threads, for which there are locks (Python 3.11 and 3.12 read the clock for each that they take), readers of messages
with lines of source, for which `inspect` follows every link on the way to every module's file, and files that change:
what a directory is asked about is the same in every question. And memory that is asked of the kernel and given back for
every module.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.machinery import SourceFileLoader
from types import FrameType, FunctionType, ModuleType
from typing import Any

_BUFFER = bytearray(2**20)
"""Hardly any module has more."""

_KNOWN: dict[str, os.stat_result | tuple[int | None, str | None]] = {}
"""What was asked of files. Kept: memory that is given back between what modules have made is what a process that is
forked later would fill, and copy page after page for it."""

_SLOTS = 100_000
"""Of a frame that makes Python's stack grow once: 0.8 MB, of which nothing is touched, and as much room behind it."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Meanwhile imports lock nothing, and take few calls for a file: for a process with one thread.

    Of files that nobody changes: what was asked of one is remembered until the end.
    """
    bootstrap: Any = vars(importlib)["_bootstrap"]
    of_files: Any = vars(importlib)["_bootstrap_external"]
    changes: list[tuple[Any, str, Any]] = [
        (bootstrap._imp, "acquire_lock", _nothing),
        (bootstrap._imp, "release_lock", _nothing),
        (SourceFileLoader, "get_data", _data),
        (of_files, "_path_stat", _remembered(of_files._path_stat)),
        (inspect, "getmodule", _by_frame(inspect.getmodule)),
    ]
    if unlocked := getattr(bootstrap, "_DummyModuleLock", None):  # as for Python without threads
        changes.append((bootstrap, "_ModuleLock", unlocked))
    with ExitStack() as stack:
        for owner, name, value in changes:
            stack.enter_context(_changed(owner, name, value))
        yield


def with_room(work: Callable[[], None]) -> None:
    """Call it with room behind it on Python's stack.

    That is chunks of 16 KB, each of which is asked of the kernel when a call needs it, and given back as the call
    returns: where `work` lies at the end of one, the import of every module takes a new one. A frame that is larger
    than a chunk has a chunk of its own, of the next power of two.
    """

    def roomy() -> None:
        work()

    FunctionType(roomy.__code__.replace(co_stacksize=_SLOTS), {}, closure=roomy.__closure__)()


def _remembered(stat: Callable[[str], os.stat_result]) -> Callable[[str], os.stat_result]:
    def remembered(path: str) -> os.stat_result:
        if path not in _KNOWN:
            try:
                _KNOWN[path] = stat(path)
            except OSError as error:
                _KNOWN[path] = error.errno, error.strerror
        found = _KNOWN[path]
        if isinstance(found, os.stat_result):
            return found
        raise OSError(*found, path)

    return remembered


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


def _data(_loader: SourceFileLoader, path: str) -> bytes | memoryview:
    """Of a module's file, all. Raises OSError. Python's own asks for its size, its place and its kind besides.

    What is compiled is read into the same memory each time, and is there until the next file is.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        whole = memoryview(_BUFFER if path.endswith(".pyc") else bytearray(len(_BUFFER)))
        size = os.readv(file, [whole])
        if size < len(whole):
            return whole[:size] if whole.obj is _BUFFER else bytes(whole[:size])
        pieces = [bytes(whole)]
        while piece := os.read(file, len(_BUFFER)):
            pieces.append(piece)
    finally:
        os.close(file)
    return b"".join(pieces)


def _by_frame(others: Callable[..., ModuleType | None]) -> Callable[..., ModuleType | None]:
    """`inspect.getmodule`: of a frame, which knows its module's name, without a look at all modules' files."""

    def found(of: object, filename: str | None = None) -> ModuleType | None:
        if isinstance(of, FrameType):
            return sys.modules.get(of.f_globals.get("__name__", ""))
        return others(of, filename)

    return found
