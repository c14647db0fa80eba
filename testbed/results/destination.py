"""Where a run writes its results: one run at a time, and older results stay until the new ones are complete."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from testbed.errors import BadInput
from testbed.files import read_json

COMPARISON = "comparison.json"
PICTURE = "timeline.svg"
ADAPTATION_PICTURE = "adaptation.svg"
_FURTHER_PAGES = "timeline-*.svg"
FILES = (
    "manifest.json",
    "plan.json",
    "schedules.json",
    "links.json",
    "actions.parquet",
    "messages.parquet",
    "iterations.parquet",
    "links.parquet",
    "link_events.parquet",
    "baseline_iterations.parquet",
    "evidence.json",
    "numerics.json",
    "parameters.parquet",
    "profile.json",
    "message_costs.json",
    "wan.json",
    PICTURE,
    ADAPTATION_PICTURE,
    COMPARISON,  # the last: it says whether the others are complete
)
"""Everything a run writes beside its logs."""

_BEFORE_MEASURING = ("plan.json", "links.json")
"""What a run writes before it starts workers: all that one leaves whose lab could not be built, or has wrong links."""

EARLIER_FILES = ("events.parquet", "usual.parquet")
"""What runs of earlier versions wrote: replaced as well."""

LOGS = "logs"
PARTS = "parts"
"""Where a run keeps its tables until it ends, case by case."""

LOCK = ".lock"
"""Held by the run that writes into a directory; it stays there afterwards, empty."""


@contextmanager
def results_directory(path: Path, *, overwrite: bool | None) -> Iterator[Path]:
    """The directory to write into while this lasts: `path`, or with `overwrite` of older results a new one beside it.

    The older results are replaced at the end, and only by complete ones (`is_complete`); else they stay as they are,
    and a line on stderr says where the new ones are. Files that no run wrote are never touched. None: who asks has no
    --overwrite.
    Raises BadInput when another run is writing to `path`, or when there is something that may not be overwritten.
    """
    with ExitStack() as stack:
        try:
            _refuse_contents(path, overwrite)
            path.mkdir(parents=True, exist_ok=True)
            _refuse_links(path)
            stack.enter_context(_locked(path))
            _refuse_contents(path, overwrite)  # again: another run may have finished meanwhile
            if not _is_empty(path) and _results_in(path):
                working = stack.enter_context(_beside(path))
            else:
                working = path
                for name in _BEFORE_MEASURING:
                    (path / name).unlink(missing_ok=True)
                (path / LOGS).mkdir(exist_ok=True)
        except OSError as error:
            raise BadInput.of("--out", "directory", str(path), f"a place to write ({error.strerror})") from error
        yield working


def require_place(path: Path, *, overwrite: bool | None) -> None:
    """Raises BadInput now where `results_directory` would later, after long work."""
    try:
        _refuse_contents(path, overwrite)
        there = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise BadInput.of("--out", "directory", str(path), f"a place to write ({error.strerror})") from error


def _refuse_contents(path: Path, overwrite: bool | None) -> None:
    if path.exists() and not path.is_dir():
        raise BadInput.of("--out", "directory", str(path), "a directory, not a file")
    if not overwrite and path.exists() and not _is_empty(path):
        option = "" if overwrite is None else " (or --overwrite)"
        raise BadInput.of("--out", "directory", str(path), f"a new or empty directory{option}")


def _refuse_links(path: Path) -> None:
    """What another user has prepared there must not lead what a run writes, as root, to another place."""
    if path.is_symlink() and path.lstat().st_uid not in (0, os.geteuid()):
        raise BadInput.of("--out", "directory", str(path), "no symbolic link of another user")
    for name in (LOCK, LOGS, PARTS, *FILES, *EARLIER_FILES):
        if (path / name).is_symlink():
            raise BadInput.of("--out", name, f"a symbolic link to {(path / name).readlink()}", "no symbolic link")


def is_complete(directory: Path) -> bool:
    """Whether a run has finished there with every schedule it was to measure."""
    if not (directory / COMPARISON).exists():
        return False
    document = read_json(directory / COMPARISON, "a run's comparison")
    return bool(document.get("complete", True))  # earlier versions wrote it at the end only


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput.of("--out", "directory", str(path), "one that no other run is writing to") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A new directory beside `path`, whose files replace those in it at the end if they are complete."""
    whole = path.resolve()
    working = Path(tempfile.mkdtemp(prefix=f"{whole.name}.partial-", dir=whole.parent))
    working.chmod(path.stat().st_mode & 0o7777)
    (working / LOGS).mkdir()
    try:
        with _locked(working):
            yield working
    finally:
        if is_complete(working):
            _replace(path, working)
        elif _results_in(working):
            print(
                f"the earlier results in {path}/ are kept; the new, incomplete ones are in {working}/", file=sys.stderr
            )
        else:
            shutil.rmtree(working)


def _replace(path: Path, working: Path) -> None:
    """Move the files of a run over those of an earlier one. Without comparison.json, as meanwhile, it is incomplete."""
    for file in (*(path / name for name in (*reversed(FILES), *EARLIER_FILES)), *path.glob(_FURTHER_PAGES)):
        file.unlink(missing_ok=True)
    for name in (LOGS, PARTS):
        shutil.rmtree(path / name, ignore_errors=True)
    (working / LOGS).rename(path / LOGS)
    for file in (*working.glob(_FURTHER_PAGES), *(working / name for name in FILES)):
        with suppress(FileNotFoundError):  # e.g. no picture was wanted
            file.rename(path / file.name)
    shutil.rmtree(working)


def pictures_in(path: Path) -> list[Path]:
    """The pages of the picture of a run."""
    return [file for file in (path / PICTURE, *path.glob(_FURTHER_PAGES)) if file.exists()]


def _results_in(path: Path) -> bool:
    names = (*FILES, *EARLIER_FILES)
    return any((path / name).exists() for name in names) or any(path.glob(f"{LOGS}/rank*.log"))


def _is_empty(path: Path) -> bool:
    """Nothing in it but what this module makes, and a run that ended before it measured anything."""
    ours = (LOCK, LOGS, *_BEFORE_MEASURING)
    return not any(path.glob(f"{LOGS}/*")) and all(entry.name in ours for entry in path.iterdir())
