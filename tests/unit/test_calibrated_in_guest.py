"""What `testbed calibrate` asks of a guest: the clock and the shaper that were given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import run_testbed

from testbed.errors import ExitCode
from testbed.vm import command
from testbed.vm.guest_work import Assignment

pytest.importorskip("torch")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Assignment]:
    """What guests are given to do, which none does."""
    given: list[Assignment] = []

    def boot(_chosen: object, work: Sequence[Assignment], *_: object, **__: Any) -> SimpleNamespace:
        given.extend(work)
        return SimpleNamespace(ended=[SimpleNamespace(code=ExitCode.OK, document=None)])

    monkeypatch.setattr(command, "choose_machine", lambda _clock: None)
    monkeypatch.setattr(command, "_boot", boot)
    return given


@pytest.mark.parametrize("what", [(), ("--engine", "tiny-gpt-pp4")])
@pytest.mark.parametrize(
    ("words", "clock", "shaper"),
    [
        (("--clock", "virtual"), "virtual", "netem"),
        (("--clock", "virtual", "--shaper", "relay"), "virtual", "relay"),
        (("--vm", "--shaper", "relay"), "real", "relay"),
    ],
)
def test_the_shaper_and_the_clock_are_those_that_were_given(
    asked: list[Assignment], what: tuple[str, ...], words: tuple[str, ...], clock: str, shaper: str
) -> None:
    done = run_testbed("calibrate", "two-dc-longhaul", *what, *words)
    assert done.returncode == ExitCode.OK, done.stderr
    (one,) = asked
    assert (one.shaper, json.loads(one.plan)["clock"]["name"]) == (shaper, clock)
