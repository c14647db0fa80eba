"""Many messages that are sent long before the link has carried them: TCP's windows hold none of them back, or each is
noticed when its own end comes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from one_boot import MARKS, Asked, Measured, planned

pytestmark = MARKS

SLOTS = "pacing={F: 10 ms, I: 10 ms, W: 10 ms}"
SLOW = ("parallelism.pipeline=2", "microbatches=7", "message=1.7 MB", "links.0.rate=200 Mbit/s", SLOTS)
"""All activations are handed to the link in the time in which it carries one."""


def asked(place: Path) -> dict[str, Asked]:
    words = ("two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "crosspipe-greedy", "--iterations", "3")
    settings = {
        "otn-lossless": ("recompute=true", "memory=2"),  # which allow a rank all seven in flight
        "tcp-default": ("transport=tcp-default", "memory=7"),
    }
    return {
        name: Asked(planned(place, *words, *(word for one in (*SLOW, *mine) for word in ("--set", one))))
        for name, mine in settings.items()
    }


def test_windows_have_room_for_what_recomputing_lets_a_rank_send(measured: Mapping[str, Measured]) -> None:
    (row,) = measured["otn-lossless"].document["schedules"]
    assert row["trusted"], row["reasons"]
    assert abs(row["error"]) < 5e-4


def test_ends_of_messages_that_wait_for_a_window_are_noticed(measured: Mapping[str, Measured]) -> None:
    """Ordinary TCP's window opens in the first iterations; messages keep the link busy all the same."""
    (row,) = measured["tcp-default"].document["schedules"]
    assert row["measured_s"] == pytest.approx(row["predicted_s"], rel=0.01)
