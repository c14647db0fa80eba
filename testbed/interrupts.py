"""Ctrl-C that is never lost, from a command's first moment to its last. Stdlib only: it is there before all else.

Python raises KeyboardInterrupt wherever the main thread happens to be. In what C code calls back (numba's cache does
that), or beside an `except:`, it is swallowed, and the command would go on as if nothing had been said.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 0.2


@contextmanager
def persistent_interrupts() -> Iterator[None]:
    """While the body runs, Ctrl-C raises KeyboardInterrupt in it again and again until it is `dealt_with`.

    What handles a KeyboardInterrupt, or cleans up because of one, is left in peace. For the main thread; nothing
    changes where SIGINT is ignored, as of what a shell starts in the background.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return

    interrupted: list[bool] = []

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        global _unanswered
        interrupted.append(True)
        _unanswered = True
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
        interrupt_unless_held()

    def look_again(_number: int, _frame: FrameType | None) -> None:
        if not _because_of_interrupt(sys.exc_info()[1]):
            interrupt_unless_held()

    def unraisable(lost: sys.UnraisableHookArgs) -> None:
        # of an interrupt the timer will remind; behind one, what it left half made complains as it is finalised
        if not isinstance(lost.exc_value, KeyboardInterrupt) and not interrupted:
            shown_before(lost)

    shown_before = sys.unraisablehook
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGALRM)]
    try:
        sys.unraisablehook = unraisable
        signal.signal(signal.SIGALRM, look_again)
        signal.signal(signal.SIGINT, interrupt)
        yield
    finally:
        dealt_with()
        for number, handler in before:
            signal.signal(number, handler)
        if not interrupted:  # else until the process ends: what was left half made is finalised behind the body, too
            sys.unraisablehook = shown_before


@contextmanager
def as_interrupts(*numbers: int) -> Iterator[None]:
    """In its body these signals do what Ctrl-C does, where they would end the process. Of the main thread.

    Processes that are forked meanwhile are ended by them as ever.
    """
    own, before = os.getpid(), {number: signal.getsignal(number) for number in numbers}
    taken = [number for number, handler in before.items() if handler is signal.SIG_DFL]

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif callable(handler := signal.getsignal(signal.SIGINT)):
            handler(signal.SIGINT, frame)

    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def heard_interrupts() -> Iterator[threading.Event]:
    """In its body Ctrl-C sets the event, wherever it comes; a second one raises KeyboardInterrupt.

    It stays as it is where it does not raise KeyboardInterrupt anyway, and in threads, which hear of no signal.
    """
    heard, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def hear(number: int, frame: FrameType | None) -> None:
        if heard.is_set() and callable(before):
            before(number, frame)
        heard.set()

    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield heard
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


_depth = 0
_postponed = False
_unanswered = False


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Its body is not interrupted by `interrupt_unless_held`; whoever was held back is raised behind it.

    For short work of libraries that an exception from nowhere leaves half made, such as coroutines: Python drops one
    that is raised while they are finalised. In other threads than the main one, which no signal interrupts, it changes
    nothing.
    """
    global _depth, _postponed
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth and _postponed:
            _postponed = False
            raise KeyboardInterrupt


def interrupt_unless_held() -> None:
    """For a signal's handler: raise KeyboardInterrupt, at once or behind the body of `held_interrupts`."""
    global _postponed
    if not _depth:
        raise KeyboardInterrupt
    _postponed = True


def dealt_with() -> None:
    """An interrupt has had its effect: `persistent_interrupts` reminds of it no more, until another one comes."""
    global _unanswered
    if threading.current_thread() is threading.main_thread():
        _unanswered = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def unanswered() -> bool:
    """Whether an interrupt came in `persistent_interrupts` that nothing has dealt with: what failed then failed of it.

    Libraries make exceptions of their own of KeyboardInterrupt, pydantic for one, that tell nothing of it.
    """
    return _unanswered


def _because_of_interrupt(error: BaseException | None) -> bool:
    """Whether an exception is a KeyboardInterrupt, or was raised while one was handled."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__context__
    return False
