"""Which testbed this is, for manifests; and a frozen copy of it, for guests whose input must not change under them.

To compile a copy takes longer than to boot a guest, so the last ones that guests had are kept.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from testbed.errors import RunFailed
from testbed.files import user_cache
from testbed.scratch import scratch_directory

PACKAGE = Path(__file__).parent

_STAMP = "source.json"
"""In a frozen copy: what `identity` said when it was made. A checkout has none."""

_GIT_LIMIT_S = 10

_SEAL = "sha256"
"""Beside a copy that is kept: of all that is in it."""

_KEPT_S = 24 * 3600.0
"""So long a copy stays that no guest is booted with: longer than any guest runs."""


def identity() -> dict[str, Any]:
    """For a manifest: `git` (commit and whether files were modified) and `source`, the hash of the package's files.

    In a frozen copy nothing is asked anew: a guest must not spend its time on git, whose own files change on the way.
    One that was made for a guest does not know `git`, whose words depend on where the checkout lies and whose it is.
    """
    stamp = PACKAGE / _STAMP
    if stamp.is_file():
        said: dict[str, Any] = json.loads(stamp.read_text(encoding="utf-8"))
        return said
    return {"git": _git(), "source": _digest(PACKAGE)}


def digest() -> str:
    """The hash of the package's files."""
    return str(identity()["source"]) if (PACKAGE / _STAMP).is_file() else _digest(PACKAGE)


def freeze(directory: Path, *, guest_path: str | None = None) -> Path:
    """Copy the package into `directory` (made new), compiled; returns the copy, a directory `testbed`.

    `guest_path` is where a guest will see the copy: the same files then give the same bytes wherever they are copied
    from, byte-code included, whatever was compiled before. Raises RunFailed when a file does not compile.
    """
    said = identity() if guest_path is None else {"source": digest()}
    copy = directory / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # never checked against the sources: a guest would spend system calls on that
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(copy, quiet=2, ddir=guest_path or str(PACKAGE), invalidation_mode=unchecked):
        raise RunFailed(f"a file of {PACKAGE} does not compile; python -m compileall names it")
    (copy / _STAMP).write_text(json.dumps(said), encoding="utf-8")
    return copy


def kept(guest_path: str) -> Path | None:
    """A directory with a frozen copy for guests that see it there, from an earlier boot where there is one.

    It lies in the user's cache; None where nothing can be kept there.
    """
    try:
        place = user_cache("source")
    except RuntimeError:  # no home
        return None
    name = hashlib.sha256("\n".join((digest(), sys.version, guest_path)).encode()).hexdigest()[:16]
    there = place / name
    try:
        if not _whole(there):
            place.mkdir(parents=True, exist_ok=True)
            _remove_unused(place)
            _keep(there, guest_path)
        os.utime(there)
    except (OSError, RunFailed):  # a full or read-only disk: a guest's copy is made for it alone
        return None
    return there


def _keep(there: Path, guest_path: str) -> None:
    """Make a copy, and put it where it is kept; another command may be about to do the same."""
    with scratch_directory("making-", there.parent) as scratch:
        made = scratch / "made"
        freeze(made, guest_path=guest_path)
        (made / _SEAL).write_text(_digest(made / PACKAGE.name, compiled=True), encoding="ascii")
        if there.exists() and not _whole(there):
            shutil.rmtree(there)
        if not there.exists():
            made.rename(there)


def _whole(copy: Path) -> bool:
    """Whether a copy is there, as it was made."""
    seal = copy / _SEAL
    return seal.is_file() and seal.read_text(encoding="ascii") == _digest(copy / PACKAGE.name, compiled=True)


def _remove_unused(place: Path) -> None:
    for copy in place.iterdir():
        if copy.stat().st_mtime < time.time() - _KEPT_S:
            shutil.rmtree(copy)


def _digest(package: Path, *, compiled: bool = False) -> str:
    """Of all files; of byte-code too if `compiled`."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if not path.is_file() or ("__pycache__" in path.parts and not compiled):
            continue
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(package)} {content}\n".encode())
    return total.hexdigest()


def git_of(directory: Path) -> dict[str, object]:
    """Of the checkout that a directory is in: `commit`, and whether files that git knows were `modified`.

    Where it is in none, or git may not look: `commit` None, and the `reason`.
    """
    return _git(directory, "--untracked-files=no")


def _git(directory: Path = PACKAGE, *options: str) -> dict[str, object]:
    def run(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=False
        )
        if done.returncode:
            raise RunFailed(done.stderr.strip())
        return done.stdout.strip()

    try:
        return {"commit": run("rev-parse", "HEAD"), "modified": bool(run("status", "--porcelain", *options))}
    except (OSError, RunFailed, subprocess.TimeoutExpired) as error:  # an installed package without a checkout: say so
        return {"commit": None, "reason": str(error)}
