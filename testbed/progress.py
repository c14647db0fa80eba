"""Progress of long work: a live display on a terminal, one plain line per step elsewhere, nothing when quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Reporter:
    """Where a command says what it is doing. Always on stderr, so that stdout stays the result."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.live = self.console.is_terminal and not quiet

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(text, highlight=False, markup=False)

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
