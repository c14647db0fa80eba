"""Where compiled functions' machine code is kept: a directory for each set of modules that are compiled together.

A directory's name is the first of the modules and a hash of what they are compiled from (model/compile.py).
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from testbed.files import user_cache

KEPT = 48
"""Directories that are kept: eight versions of the six sets of modules, as several checkouts may take turns."""


def caches() -> Path:
    """Where all of them lie, if there are any. Raises RuntimeError for a user without home."""
    return user_cache("compiled")


def by_use(caches: Path) -> list[Path]:
    """All directories in there, those that were used last first."""
    used = {}
    for path in caches.iterdir():
        with suppress(FileNotFoundError):  # another process has just removed it
            used[path] = path.stat().st_mtime
    return sorted(used, key=lambda path: used[path], reverse=True)


def prune(caches: Path, kept: int = KEPT) -> None:
    """Remove all but the `kept` directories that were used last."""
    for path in by_use(caches)[kept:]:
        shutil.rmtree(path, ignore_errors=True)  # what is left goes next time


def copy_used_last(target: Path) -> None:
    """Copy into a new directory, for each set of modules, what was used last; whoever needs another compiles it."""
    target.mkdir(parents=True)
    with suppress(OSError, RuntimeError):  # no home, or none of them yet; one that another process has just removed
        chosen = {path.name.rpartition("-")[0]: path for path in reversed(by_use(caches()))}
        for path in chosen.values():
            shutil.copytree(path, target / path.name)
