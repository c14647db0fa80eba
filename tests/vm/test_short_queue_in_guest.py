"""A queue that holds less than is under way: the gate's probe of the rate is paced, and readers are woken late."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from one_boot import MARKS, Asked, Measured, planned

pytestmark = MARKS


def asked(place: Path) -> dict[str, Asked]:
    words = ("two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--iterations", "1", "--set", "message=100 kB")
    return {"short-queue": Asked(planned(place, *words, "--set", "links.0.queue=400 kB"))}


def test_a_link_with_a_short_queue_is_as_asked(measured: Mapping[str, Measured]) -> None:
    (row,) = measured["short-queue"].document["schedules"]
    assert row["trusted"], row["reasons"]
