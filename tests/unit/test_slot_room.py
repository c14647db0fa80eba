"""Whether slots have room for what tensor ranks send each other in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.pipeline.ir import Kind
from testbed.plan.costs import problem_of_case
from testbed.plan.plan import Plan
from testbed.planning.left_out import left_out
from testbed.planning.prediction import predict_together
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.planning.slot_room import overruns

DELAY_MS = 5
FORWARDS = 4
"""Of the first of four stages under 1F1B, until the first gradient comes back."""
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


def slow_cards(slots: str) -> Plan:
    """Two tensor ranks a stage, each with its half of a message of 1 MB: 40 ms on its card; their sums are short."""
    inside = "inside: {delay: 10 us, rate: 100 Mbit/s}"
    sites = f"topology.datacenters={{paris: {{nodes: 8, {inside}}}, warsaw: {{nodes: 8, {inside}}}}}"
    small = ["model.d_model=8", "model.heads=2", "model.sequence=8", "message=1 MB"]
    job = [*small, "parallelism.tensor=2", f"pacing={{{slots}, I: 500 ms, W: 500 ms}}", "schedules=[1f1b]", sites]
    empty = load_plan(Path("two-dc-longhaul"), Path("tiny-gpt-pp4"), settings=job)
    choices = choose(empty)
    return with_cases(empty, choices, make(empty, choices, strict=True).made)


def test_a_sum_waits_for_the_messages_that_left_before_it_and_for_no_other() -> None:
    """Behind each forward of 30 ms the card has 40 ms more to carry."""
    known = slow_cards("F: 30 ms")
    (case,), (job,) = known.cases, known.jobs
    problem = problem_of_case(known, case)
    found = overruns(problem, job, predict_together(known, case)).worst[Kind.F, 0]
    message_s = problem.message_bytes[0] * problem.links[problem.pipelines[0].rank_cards[0]].seconds_per_byte
    expected_s = found.slot_s + (FORWARDS - 1) * (message_s - found.slot_s)
    assert message_s == pytest.approx(0.04, rel=0.1)
    assert found.takes_s == pytest.approx(expected_s, rel=0.1)


@pytest.mark.parametrize(("median_ms", "p95_ms", "fits"), [(150, 180, True), (60, 110, False), (30, 40, False)])
def test_slots_that_are_drawn_are_looked_at_one_by_one(median_ms: float, p95_ms: float, *, fits: bool) -> None:
    """A median that has room for a message says nothing of the shorter ones."""
    said = left_out(slow_cards(f"F: {{median: {median_ms} ms, p95: {p95_ms} ms, each: action}}"))
    assert any("actions will overrun" in line for line in said) is not fits
    of_medians = left_out(slow_cards(f"F: {median_ms} ms"))
    assert any("actions will overrun" in line for line in of_medians) is (median_ms < 40)
