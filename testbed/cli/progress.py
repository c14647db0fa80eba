"""Progress for a person: a live display on a terminal, one plain line per step elsewhere, nothing when quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from testbed.cli.notices import said_by_the_library
from testbed.progress import NoBar, ProgressStep, SolverLines, indented, standing_line

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

    from testbed.search.incumbent import Standing, Watch


class Terminal:
    """A Reporter for a person. Always on stderr, so that stdout stays the result."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.console = Console(stderr=True, quiet=quiet)
        self.live = self.console.is_terminal and not quiet

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """A detail that stays, less prominent."""
        self.console.print(indented(text), highlight=False, markup=False, soft_wrap=True, style="dim")

    def pass_on(self, text: str) -> None:
        """What another process said, as it is."""
        self.console.print(text, end="", highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[ProgressStep]:
        """A piece of work; `total` is its number of units where that is known."""
        if not self.live:
            self.say(f"{title} ...")
            yield NoBar()
            return
        # slow to import: only where there is a terminal
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        class TimeLeft(ProgressColumn):
            """By the pace so far; nothing before the first unit is done, and after the last."""

            def render(self, task: Task) -> Text:
                left_s = None if task.finished else task.time_remaining
                return Text("" if left_s is None else f"{left_s:.0f} s left")

        bar_and_count = (BarColumn(bar_width=20), MofNCompleteColumn())
        done = bar_and_count if total is not None else ()
        left = (TimeLeft(),) if total is not None else ()
        columns = (
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            *done,
            TimeElapsedColumn(),
            *left,
        )
        with Progress(*columns, console=self.console) as progress:
            bar = _Bar(progress, progress.add_task(title, total=total))
            yield bar
            bar.finish(title)

    @contextmanager
    def solving(self) -> Iterator[Watch]:
        """Solvers at work, one after the other: a live line on a terminal, elsewhere one per better schedule.

        What the library has to say meanwhile is said as well.
        """
        with said_by_the_library(self.say):
            if not self.live:
                yield SolverLines(self.say)
                return
            from rich.live import Live

            display = _SolverDisplay()
            with Live(display, console=self.console, refresh_per_second=4, transient=True):
                yield display


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


class _Bar:
    """A step's bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self, detail: str | None = None) -> None:
        self._progress.update(self._task, advance=1, **({"description": detail} if detail else {}))  # type: ignore[arg-type]

    def detail(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def finish(self, title: str) -> None:
        """The line that stays: what it was, not the last detail, and done."""
        (task,) = self._progress.tasks
        done = task.completed or 1  # a step of unknown length was one piece of work
        self._progress.update(self._task, description=title, total=done, completed=done)
