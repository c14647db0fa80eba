"""Compiles plain functions on arrays, and keeps the machine code under the hash of what it was made from.

numba alone would notice a change of the function's own file, not of the files that it calls into; and it would compile
anew for a comment. So what is hashed is the syntax of the modules whose functions are compiled together, without their
comments and docstrings, and the constants that they take from elsewhere. Of older machine code only what was used last
is kept.
"""

from __future__ import annotations

import ast
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from testbed.model.machine_code import caches, prune

_LOG = logging.getLogger(__name__)

_PROBE_BYTES = 65_536
"""Written to see whether there is room for machine code."""


_COMPILER: Any = numba.njit  # its annotations leave some options out
_WITH_RUNTIME = _COMPILER(_nrt=True)  # said, as a function would do without the runtime if its first caller does
_WITHOUT_LOCK = _COMPILER(_nrt=True, nogil=True)
_BARE = _COMPILER(_nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Without numba's runtime, which counts references, and not to be called from Python."""


class CompiledFunctions(SimpleNamespace):
    """Functions of some modules, compiled, as attributes."""

    def __init__(self, modules: Sequence[ModuleType], functions: Mapping[str, Any], kept: Path | None) -> None:
        super().__init__(**functions)
        self.modules_compiled = tuple(modules)
        """Theirs, and those of all that they call."""
        self.machine_code = kept
        """The directory in which it is kept, if any."""


def compiled_modules(
    modules: Sequence[ModuleType], using: CompiledFunctions | None = None, *, announced: str | None = None
) -> CompiledFunctions:
    """What the modules list under COMPILED, compiled, each calling the compiled form of the others and of `using`.

    A function is compiled at its first call. Its calls lead to compiled functions only, and the types of its arguments
    are those of the modules. What they list under INLINED becomes part of its callers, and counts no references: to
    hand a NamedTuple of many arrays to another compiled function would count those to each array, at every call. So it
    may allocate nothing: no new array, no item of a list. What they list under WITHOUT_LOCK runs beside other threads.
    `announced`: what it is and how long it takes, said in advance where there is a wait.
    """
    sources = (*modules, *(using.modules_compiled if using is not None else ()))
    directory = cache_directory(sources)
    if announced is not None:
        announce(directory, announced)
    namespace: dict[str, Any] = {}
    for module in modules:
        namespace |= vars(module)
    namespace |= vars(using) if using is not None else {}
    made = {}
    for module in modules:
        for name in _functions(module):
            plain = getattr(module, name)
            twin = FunctionType(plain.__code__, namespace, name, plain.__defaults__)
            twin.__qualname__, twin.__module__ = plain.__qualname__, plain.__module__
            if name in module.COMPILED:
                compiler = _WITHOUT_LOCK if name in getattr(module, "WITHOUT_LOCK", ()) else _WITH_RUNTIME
                made[name] = namespace[name] = _compiled(twin, directory, compiler)
            else:
                namespace[name] = _BARE(twin)
    return CompiledFunctions(sources, made, directory)


def _functions(module: ModuleType) -> tuple[str, ...]:
    return (*module.COMPILED, *getattr(module, "INLINED", ()))


def _compiled(function: FunctionType, directory: Path | None, compiler: Any) -> Any:
    dispatcher = compiler(function)
    if directory is not None:
        dispatcher._cache = _Kept(function, directory)
    return dispatcher


# --- what machine code is made from ------------------------------------------------------------


def digest(modules: Iterable[ModuleType]) -> str:
    """Hash of all that decides the machine code of the modules' functions: equal where comments alone differ."""
    total = hashlib.sha256(f"{numba.__version__} {sys.implementation.cache_tag}".encode())
    for module in modules:
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        total.update(repr((module.__name__, syntax(source), _constants(module))).encode())
    return total.hexdigest()[:16]


def syntax(source: str) -> str:
    """A module's syntax tree as text, without what says nothing to the compiler: comments, docstrings, lines."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [each for each in node.body if not _is_docstring(each)]
    return ast.dump(tree)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _constants(module: ModuleType) -> dict[str, object]:
    """The values of the names that compiled functions take from their module, wherever that has them from."""
    names = sorted({name for made in _functions(module) for name in getattr(module, made).__code__.co_names})
    values = {name: vars(module).get(name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str, tuple))}


# --- where it is kept --------------------------------------------------------------------------


def cache_directory(modules: Sequence[ModuleType]) -> Path | None:
    """Where machine code of exactly these modules lies; None where nothing can be written."""
    try:
        directory = caches() / f"{modules[0].__name__}-{digest(modules)}"
        new = not directory.is_dir()
        directory.mkdir(parents=True, exist_ok=True)
        os.utime(directory)  # when it was used last
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(bytes(_PROBE_BYTES))
        if new:
            prune(directory.parent)
    except (OSError, RuntimeError):  # no home, not ours, read-only, full: compile anew every time
        return None
    return directory


def announce(cache: Path | None, what: str) -> None:
    """Say that there is a wait to come."""
    if cache is None:
        _LOG.info("compiling %s, every time, since its machine code can be kept nowhere ...", what)
    elif not any(cache.rglob("*.nbi")):
        _LOG.info("compiling %s, once for this version ...", what)


class _Directory(NamedTuple):
    """What numba asks where to keep a function's machine code."""

    path: Path

    def get_cache_path(self) -> str:
        return str(self.path)

    def get_source_stamp(self) -> str:
        """Of no age: the directory's name says what it was made from."""
        return ""

    def ensure_cache_path(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)


class _NamedFiles(CompileResultCacheImpl):  # type: ignore[misc]  # it has no types
    """A function's files by its name alone, where numba's own have the line that it begins in."""

    def __init__(self, function: FunctionType, directory: Path) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Directory(directory)
        self._filename_base = f"{function.__module__}.{function.__qualname__}"


class _Kept(FunctionCache):  # type: ignore[misc]  # as above
    """numba's cache on disk; where that takes no more or has lost something, a function is compiled anew."""

    def __init__(self, function: FunctionType, directory: Path) -> None:
        self._impl_class: Any = partial(_NamedFiles, directory=directory)
        super().__init__(function)

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with suppress(OSError):
            yield
