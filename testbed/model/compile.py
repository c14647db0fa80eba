"""Compiles plain functions on arrays, and keeps the machine code under the hash of the sources that it was made from.

numba alone would notice a change of the function's own file, not of the files that it calls into. Of older sources'
machine code only what was used last is kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numba
from numba.core.caching import FunctionCache

_SOURCES = (Path(__file__).parent, Path(__file__).parents[1] / "schedule")

_LOG = logging.getLogger(__name__)

KEPT = 8
"""Versions of the sources whose machine code is kept: several checkouts may take turns."""


def _cache_directory() -> Path | None:
    """Where machine code of exactly these sources lies; None where nothing can be written."""
    total = hashlib.sha256(numba.__version__.encode())
    for path in sorted(path for directory in _SOURCES for path in directory.rglob("*.py")):
        total.update(path.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(base) if base else Path.home() / ".cache"
        directory = home / "testbed" / "compiled" / total.hexdigest()[:16]
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


_PROBE_BYTES = 65_536


def prune(caches: Path, kept: int = KEPT) -> None:
    """Remove machine code of all versions of the sources but the `kept` ones that were used last."""
    used = {}
    for path in caches.iterdir():
        with suppress(FileNotFoundError):  # another process has just removed it
            used[path] = path.stat().st_mtime
    for path in sorted(used, key=lambda path: used[path], reverse=True)[kept:]:
        shutil.rmtree(path, ignore_errors=True)  # what is left goes next time


_CACHE = _cache_directory()
if _CACHE is not None:
    numba.config.CACHE_DIR = str(_CACHE)  # type: ignore[attr-defined]


class _Kept(FunctionCache):
    """numba's cache on disk; where that takes no more or has lost something, a function is compiled anew."""

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with suppress(OSError):
            yield


def compiled(function: Any) -> Any:
    """The function, compiled at its first call. Its calls lead to compiled functions only."""
    dispatcher = numba.njit(function)
    if _CACHE is not None:
        dispatcher._cache = _Kept(dispatcher.py_func)  # type: ignore[no-untyped-call]
    return dispatcher


def compiled_modules(modules: Sequence[ModuleType], using: SimpleNamespace | None = None) -> SimpleNamespace:
    """What the modules list under COMPILED, compiled, each calling the compiled form of the others and of `using`."""
    namespace: dict[str, Any] = {}
    for module in modules:
        namespace |= vars(module)
    namespace |= vars(using) if using is not None else {}
    made = {}
    for module in modules:
        for name in module.COMPILED:
            plain = getattr(module, name)
            twin = FunctionType(plain.__code__, namespace, name, plain.__defaults__)
            twin.__qualname__, twin.__module__ = plain.__qualname__, plain.__module__
            made[name] = namespace[name] = compiled(twin)
    return SimpleNamespace(**made)


def _announce(cache: Path | None) -> None:
    """Say that there is a wait to come."""
    if cache is None:
        _LOG.info("compiling the event model: about 12 s, every time, since its machine code can be kept nowhere ...")
    elif not any(cache.rglob("*.nbi")):
        _LOG.info("compiling the event model: about 12 s, once for this version ...")


_announce(_CACHE)
