"""Progress on a terminal: a step that is over says what it was, and looks finished."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from testbed.cli.progress import Terminal


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
