"""Whether all that a lab consists of lives: without one of its processes nothing it says is to be relied on."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from testbed.errors import RunFailed, in_words

_ENDING_S, _LOOK_S = 0.5, 0.02
"""How long a process may take to have ended once its devices are gone, and how often that is looked at."""


class Liveness:
    """Of the processes that a lab consists of."""

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """`processes` says which there are now: what each is, in words, and its process id."""
        self._processes = processes

    def require(self, meanwhile: str) -> None:
        """Raises RunFailed, naming it, when a part of the lab has ended."""
        if (gone := self._gone()) is not None:
            raise RunFailed(f"{gone} ended while {meanwhile}")

    @contextmanager
    def blaming(self, meanwhile: str) -> Iterator[None]:
        """Of what goes wrong in the body, raise RunFailed that names the part of the lab that has ended, if one has.

        Who talks to a dead router or relay finds no such file, no such device or no answer: true, and no help.
        """
        try:
            yield
        except (OSError, RunFailed) as error:
            if (gone := self._gone_by_now()) is not None:
                raise RunFailed(f"{gone} ended while {meanwhile} ({error})") from error
            if isinstance(error, OSError):
                raise RunFailed(f"failed while {meanwhile}: {in_words(error)}") from error
            raise

    def _gone(self) -> str | None:
        """The part of the lab that has ended; None while all of them live."""
        return next((what for what, pid in self._processes().items() if _has_ended(pid)), None)

    def _gone_by_now(self) -> str | None:
        """The same after a moment: what ends has closed its devices before it has ended."""
        until = time.monotonic() + _ENDING_S
        while (gone := self._gone()) is None and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return gone


def _has_ended(pid: int) -> bool:
    """Of a child, whether somebody has asked for its exit status or not."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 0)[0])
    finally:
        os.close(descriptor)
