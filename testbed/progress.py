"""Progress of long work: a live display on a terminal, one plain line per step elsewhere, nothing when quiet."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from testbed.units import show_time

if TYPE_CHECKING:
    from testbed.schedule.proof import Standing, Watch


class Reporter:
    """Where a command says what it is doing. Always on stderr, so that stdout stays the result."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.live = self.console.is_terminal and not quiet

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Step]:
        """A piece of work; `total` is its number of units where that is known."""
        if not self.live:
            self.say(f"{title} ...")
            yield Step(None, None)
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30))
        with Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=self.console) as progress:
            yield Step(progress, progress.add_task(title, total=total))

    @contextmanager
    def solving(self) -> Iterator[Watch]:
        """Solvers at work, one after the other: a live line on a terminal, elsewhere one per better schedule."""
        if not self.live:
            yield _SolverLines(self)
            return
        display = _SolverDisplay()
        with Live(display, console=self.console, refresh_per_second=4, transient=True):
            yield display


class _SolverLines:
    """One line per better schedule."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._last: tuple[str, float] | None = None

    def __call__(self, name: str, standing: Standing) -> None:
        if math.isfinite(standing.makespan_s) and (name, standing.makespan_s) != self._last:
            self._last = name, standing.makespan_s
            self._reporter.say(standing_line(name, standing, standing.wall_s))


class _SolverDisplay:
    """The line of the solver that reported last; it counts down by itself."""

    def __init__(self) -> None:
        self._name = ""
        self._standing: Standing | None = None
        self._heard = 0.0

    def __call__(self, name: str, standing: Standing) -> None:
        self._name, self._standing, self._heard = name, standing, time.monotonic()

    def __rich__(self) -> Text:
        if self._standing is None:
            return Text("")
        wall_s = self._standing.wall_s + time.monotonic() - self._heard
        return Text(standing_line(self._name, self._standing, wall_s))


def standing_line(name: str, standing: Standing, wall_s: float) -> str:
    """Best so far, proven bound, gap and time left, in one line."""
    left = f"{max(0.0, standing.time_limit_s - wall_s):.0f} s of {standing.time_limit_s:g} s left"
    if math.isinf(standing.makespan_s):
        return f"{name}: looking for a schedule to begin from, {left}"
    best, bound = show_time(standing.makespan_s), show_time(standing.bound_s)
    return f"{name}: best {best}, proven bound {bound}, gap {standing.gap:.1%}, {left}"


class Step:
    """A piece of work under way."""

    def __init__(self, progress: Progress | None, task: int | None) -> None:
        self._progress, self._task = progress, task

    def advance(self, detail: str | None = None) -> None:
        """One unit is done."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, **({"description": detail} if detail else {}))  # type: ignore[arg-type]

    def detail(self, text: str) -> None:
        """What is being done now."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text)  # type: ignore[arg-type]
