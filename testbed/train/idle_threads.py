"""When threads of gloo's wake that have nothing to do."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_TIMERSLACK = 29
_EXACTLY_NS, _SELDOM_NS = 1, 100_000_000


def sleep_exactly() -> None:
    """Have the sleeps of this process, and of those forked from it, end on time: otherwise up to 50 us late."""
    _set_slack(_EXACTLY_NS)


@contextmanager
def seldom_awake() -> Iterator[None]:
    """Have threads that are started meanwhile wake up to 100 ms late where nothing but time wakes them.

    Gloo's wait 10 ms for a message, look whether they are to end, and wait again. Of 16 ranks on the virtual clock that
    was two system calls in five. Its kernel lets them be as late as they may (vm/patches); others do not, where it
    would make an end later that costs real time.
    """
    _set_slack(_SELDOM_NS)
    try:
        yield
    finally:
        sleep_exactly()


def _set_slack(slack_ns: int) -> None:
    """Of this thread, and those that it starts."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, slack_ns)
