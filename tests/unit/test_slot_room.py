"""Whether slots have room for what tensor ranks send each other in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.plan.plan import Plan
from testbed.planning.left_out import left_out
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose, make

DELAY_MS = 5
TRIPS = 2 * 4
"""Of four sums, two for each layer: the word that a summand is awaited, and it. The first word may be there already."""


def plan(slot_ms: float, *settings: str) -> Plan:
    """Two layers to a stage, two tensor ranks each, and slots of which only that of forwards is short."""
    inside = f"inside: {{delay: {DELAY_MS} ms, rate: 100 Gbit/s}}"
    sites = f"topology.datacenters={{paris: {{nodes: 8, {inside}}}, warsaw: {{nodes: 8, {inside}}}}}"
    slots = f"pacing={{F: {slot_ms} ms, I: 500 ms, W: 500 ms}}"
    job = ["parallelism.tensor=2", "model.layers=8", slots, "schedules=[1f1b]", sites, *settings]
    empty = load_plan(Path("two-dc-longhaul"), Path("tiny-gpt-pp4"), settings=job)
    choices = choose(empty)
    return with_cases(empty, choices, make(empty, choices, strict=True).made)


@pytest.mark.parametrize(("slot_ms", "fits"), [(TRIPS * DELAY_MS + 6, True), ((TRIPS - 1) * DELAY_MS - 1, False)])
def test_a_sum_behind_a_sum_takes_two_trips(slot_ms: float, *, fits: bool) -> None:
    said = [line for line in left_out(plan(slot_ms)) if "actions will overrun" in line]
    assert bool(said) is not fits
    if not fits:
        assert "F of stage 0" in said[0]
