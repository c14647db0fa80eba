"""Progress on a terminal: a step that is over says what it was, and looks finished."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress

import pytest
from rich.console import Console

from testbed.cli.progress import Terminal
from testbed.progress import Lines, Marks, Replay


def left_on_screen(details: Sequence[str], total: int | None, error: Exception | None = None) -> str:
    """The line that a step leaves on a terminal."""
    reporter, stream = Terminal(quiet=False), io.StringIO()
    reporter.console, reporter.live = Console(file=stream, width=80, force_terminal=True, color_system=None), True
    try:
        with reporter.step("building a lab", total=total) as step:
            for detail in details:
                step.detail(detail) if total is None else step.advance(detail)
            if error is not None:
                raise error
    except RuntimeError:
        pass
    written = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in re.split(r"[\r\n]", stream.getvalue())]
    return [line for line in written if line.strip()][-1]


@pytest.mark.parametrize(("total", "count"), [(None, ""), (3, "3/3"), (5, "3/3")])
def test_a_step_that_is_over(total: int | None, count: str) -> None:
    line = left_on_screen(["containers", "links", "routes"], total)
    assert line.startswith("✓ building a lab")
    assert count in line
    assert "?" not in line
    assert "routes" not in line


@pytest.mark.parametrize("total", [None, 3])
def test_a_step_that_failed_does_not_look_finished(total: int | None) -> None:
    line = left_on_screen(["containers"], total, RuntimeError())
    assert "✓" not in line
    assert "containers" in line


def test_a_step_says_how_long_it_will_take() -> None:
    """Of what is shown while it lasts: by its pace so far, and no longer once it is over."""
    reporter, stream = Terminal(quiet=False), io.StringIO()
    reporter.console, reporter.live = Console(file=stream, width=80, force_terminal=True, color_system=None), True
    with reporter.step("training", total=4) as step:
        for _ in range(3):
            time.sleep(0.15)
            step.advance()
        time.sleep(0.25)  # four times a second it is drawn
    assert re.search(r"3/4 .* \d+ s left", stream.getvalue())
    assert " left" not in stream.getvalue().splitlines()[-1]


class Heard(Lines):
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []

    def pass_on(self, text: str) -> None:
        self.told.append(text)

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Heard]:
        self.told.append((title, total))
        try:
            yield self
        except BaseException:
            self.told.append("failed")
            raise
        self.told.append("done")

    def advance(self, detail: str | None = None) -> None:
        self.told.append(("advance", detail))

    def detail(self, text: str) -> None:
        self.told.append(("detail", text))


def written(quiet: bool = False) -> str:
    """What a guest writes, two steps and a line, the second one failing."""
    errors = io.StringIO()
    with redirect_stderr(errors):
        guest = Marks(quiet=quiet)
        with guest.step("building") as step:
            step.detail("links")
        with suppress(RuntimeError), guest.step("training", total=2) as step:
            guest.note("a note")
            step.advance("1f1b: 0.8 s")
            raise RuntimeError
        guest.say("error: it failed")
    return errors.getvalue()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_what_a_guest_does_is_shown_by_its_host(size: int) -> None:
    """Its steps as steps, with their units, so that a terminal can say what time is left."""
    reporter, text = Heard(), written()
    replay = Replay(reporter)
    for place in range(0, len(text), size):
        replay(text[place : place + size])
    replay.close()
    begun = [("building", None), ("detail", "links"), "done", ("training", 2), "  a note\n", ("advance", "1f1b: 0.8 s")]
    assert reporter.told == [*begun, "failed", "error: it failed\n"]
    assert written(quiet=True) == ""


def test_a_guest_that_is_killed_leaves_no_step_open() -> None:
    reporter = Heard()
    replay = Replay(reporter)
    replay(written().partition("a note")[0])
    replay("\nTraceback")
    replay.close()
    assert reporter.told[-1] == "failed"
    assert "Traceback" in reporter.told
