"""Progress of long work: what whoever works tells whoever watches. On a terminal that is cli/progress.py."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from testbed.units import show_time

if TYPE_CHECKING:
    from testbed.search.incumbent import Standing, Watch


class ProgressStep(Protocol):
    """A piece of work under way."""

    def advance(self, detail: str | None = None) -> None:
        """One unit is done."""

    def detail(self, text: str) -> None:
        """What is being done now."""


class Reporter(Protocol):
    """Where work says what it is doing."""

    quiet: bool
    """Whether nothing is shown: errors are not said to a reporter, and are printed all the same."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def note(self, text: str) -> None:
        """A detail that stays, less prominent."""

    def pass_on(self, text: str) -> None:
        """What another process said, as it is."""

    def step(self, title: str, total: int | None = None) -> AbstractContextManager[ProgressStep]:
        """A piece of work; `total` is its number of units where that is known."""

    def solving(self) -> AbstractContextManager[Watch]:
        """Solvers at work, one after the other."""


class NoBar:
    """A step of which nothing is shown while it lasts."""

    def advance(self, detail: str | None = None) -> None:
        """See Step."""

    def detail(self, text: str) -> None:
        """See Step."""


class Lines:
    """A Reporter that writes a line per step on stderr, or nothing: for benchmarks and tests."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, text: str) -> None:
        """See Reporter."""
        self.pass_on(f"{text}\n")

    def note(self, text: str) -> None:
        """See Reporter."""
        self.say(indented(text))

    def pass_on(self, text: str) -> None:
        """See Reporter."""
        if not self.quiet:
            sys.stderr.write(text)
            sys.stderr.flush()

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[ProgressStep]:
        """See Reporter."""
        self.say(f"{title} ...")
        yield NoBar()

    @contextmanager
    def solving(self) -> Iterator[Watch]:
        """See Reporter."""
        yield SolverLines(self.say)


_MARK = "\x1e"
"""Begins a line that is no text: what a step has come to, for the process that shows it."""


class Marks(Lines):
    """Lines, and between them marks of how far each step is: for a guest, whose host shows them (`Replay`)."""

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[ProgressStep]:
        """See Reporter."""
        self._mark(begin=title, total=total)
        try:
            yield _MarkedStep(self._mark)
        finally:
            self._mark(end=sys.exception() is None)

    def _mark(self, **what: object) -> None:
        self.pass_on(f"{_MARK}{json.dumps(what)}\n")


class _MarkedStep:
    """A step that is shown elsewhere."""

    def __init__(self, mark: Callable[..., None]) -> None:
        self._mark = mark

    def advance(self, detail: str | None = None) -> None:
        """See Step."""
        self._mark(advance=detail)

    def detail(self, text: str) -> None:
        """See Step."""
        self._mark(detail=text)


class Replay:
    """Takes what `Marks` wrote in another process, in pieces as they come, and tells a reporter of it."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._open: list[tuple[ExitStack, ProgressStep]] = []
        self._partial = ""

    def __call__(self, text: str) -> None:
        """Hear a piece."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            if line.startswith(_MARK):
                self._replay(json.loads(line.removeprefix(_MARK)))
            else:
                self._reporter.pass_on(f"{line}\n")

    def close(self) -> None:
        """The other process is gone: a step that it left open has failed."""
        if self._partial and not self._partial.startswith(_MARK):
            self._reporter.pass_on(self._partial)
        self._partial = ""
        while self._open:
            self._end(well=False)

    def _replay(self, what: dict[str, Any]) -> None:
        if "begin" in what:
            stack = ExitStack()
            self._open.append((stack, stack.enter_context(self._reporter.step(what["begin"], what["total"]))))
        elif "end" in what:
            self._end(well=what["end"])
        elif "advance" in what:
            self._open[-1][1].advance(what["advance"])
        else:
            self._open[-1][1].detail(what["detail"])

    def _end(self, *, well: bool) -> None:
        stack, _ = self._open.pop()
        with suppress(_Failed), stack:
            if not well:
                raise _Failed


class _Failed(Exception):
    """Stands for what ended a step in the other process, which tells of it itself."""


def indented(text: str) -> str:
    """A note, set off from the step that it belongs to, in lines of at most 80 columns."""
    return textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


class SolverLines:
    """One line per better schedule."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last: tuple[str, float, bool] | None = None

    def __call__(self, name: str, standing: Standing) -> None:
        """Hear how far the solver of schedule `name` has come."""
        news = (name, standing.makespan_s, standing.interrupted)
        if math.isfinite(standing.makespan_s) and news != self._last:
            self._last = news
            self._say(standing_line(name, standing, standing.wall_s))


def standing_line(name: str, standing: Standing, wall_s: float) -> str:
    """Best so far, proven bound, gap and time left, in one line."""
    left = f"{max(0.0, standing.time_limit_s - wall_s):.0f} s of {standing.time_limit_s:g} s left"
    if math.isinf(standing.makespan_s):
        return f"{name}: looking for a schedule to begin from, {left}"
    best, bound = show_time(standing.makespan_s), show_time(standing.bound_s)
    if standing.interrupted:
        return f"{name}: interrupted, goes on with the best so far, {best} (Ctrl-C again ends it all)"
    return f"{name}: best {best}, proven bound {bound}, gap {standing.gap:.1%}, {left}"
