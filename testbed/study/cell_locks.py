"""The directory of a study, which several commands may fill at once: whoever measures a cell has its lock.

A lock is flock's on a file, locks/KEY: it goes with its process, however that ends. Between machines it holds where the
file system has flock for all of them: NFS from Linux 2.6.12 on (not mounted `nolock`, nor `local_lock=flock`), Lustre
mounted with `flock`, GPFS, CephFS.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from testbed.errors import BadInput

CELLS = "cells"
"""The directory, in that of the study, with one for every cell."""

_LOCKS = "locks"
"""Beside it, with a file for every cell: a run locks its own directory by itself."""


def cells_directory(directory: Path) -> Path:
    """Where the cells of a study lie, new or of an earlier try. Raises BadInput."""
    try:
        for name in (CELLS, _LOCKS):
            (directory / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(directory, error) from error
    return directory / CELLS


class CellLocks:
    """The cells that this command is at work on."""

    def __init__(self, directory: Path) -> None:
        """`directory` is the study's."""
        self._locks = directory / _LOCKS
        self._held: dict[str, int] = {}

    def __enter__(self) -> CellLocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in list(self._held):
            self.release(key)

    def take(self, key: str) -> bool:
        """Whether the cell is ours from now on; not while another command has it. Raises BadInput, as without flock."""
        place = self._locks / key
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise _unusable(place, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            raise BadInput.of("--out", "file", str(place), f"a file system with flock ({error.strerror})") from error
        self._held[key] = descriptor
        return True

    def release(self, key: str) -> None:
        """Let others have a cell."""
        descriptor = self._held.pop(key)
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # whoever inherited it would keep it
        os.close(descriptor)


def _unusable(place: Path, error: OSError) -> BadInput:
    return BadInput.of("--out", "directory", str(place), f"a place to write ({error.strerror})")
