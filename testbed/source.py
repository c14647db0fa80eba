"""Which testbed this is, for manifests; and a frozen copy of it, for guests whose input must not change under them."""

from __future__ import annotations

import compileall
import hashlib
import json
import py_compile
import shutil
import subprocess
from pathlib import Path
from typing import Any

from testbed.errors import RunFailed

PACKAGE = Path(__file__).parent

_STAMP = "source.json"
"""In a frozen copy: what `identity` said when it was made. A checkout has none."""

_GIT_LIMIT_S = 10


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


def freeze(directory: Path, *, guest_path: str | None = None) -> Path:
    """Copy the package into `directory` (made new), compiled; returns the copy, a directory `testbed`.

    `guest_path` is where a guest will see the copy: the same files then give the same bytes wherever they are copied
    from, byte-code included, whatever was compiled before. Raises RunFailed when a file does not compile.
    """
    said = identity() if guest_path is None else {"source": identity()["source"]}
    copy = directory / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # never checked against the sources: a guest would spend system calls on that
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(copy, quiet=2, ddir=guest_path or str(PACKAGE), invalidation_mode=unchecked):
        raise RunFailed(f"a file of {PACKAGE} does not compile; python -m compileall names it")
    (copy / _STAMP).write_text(json.dumps(said), encoding="utf-8")
    return copy


def _digest(package: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
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
