"""Looks at routes that a job has left: how large, when, beside an iteration or behind it, and what they show."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path as File
from typing import Any

import pytest

sys.path.insert(0, str(File(__file__).parents[2] / "benchmarks"))

from parts.recovering_routes import TRIANGLE

from testbed.adaptation import controller
from testbed.adaptation.adaptable_job import AdaptableJob, adaptable_job, planned_belief
from testbed.adaptation.estimates import (
    RECOGNISED,
    Belief,
    Estimator,
    PathEstimate,
    exactly,
    path_of,
    vouched_for,
)
from testbed.adaptation.looks import LEAST_PACKETS, MOST_TAKEN, WAITS, Hope, Looks, hopes, packets_of
from testbed.adaptation.may_change import MayChange
from testbed.adaptation.rehearsal import Rehearsal, rehearse
from testbed.adaptation.rehearsal_changes import change
from testbed.adaptation.sightings import PROBE_BYTES, Crossing, Path, Sighting, TrainTimes
from testbed.lab.trains import arrivals
from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose

PP4 = File(__file__).parents[2] / "workloads/tiny-gpt-pp4.yaml"
NORTH, NORTH_BACK = Path("a", "b", (0,)), Path("b", "a", (1,))
SOUTH, SOUTH_BACK = Path("a", "b", (2,), "south"), Path("b", "a", (3,), "south")
PLANNED = PathEstimate(exactly(0.01), exactly(1e9))
SLOW = PathEstimate(exactly(0.01), exactly(1e8))
MESSAGE = 1e6
PACKETS = 417
"""Of a train at 1 Gbit/s, times being off by 0.1 ms."""


def belief(**others: PathEstimate) -> Belief:
    paths = dict.fromkeys((NORTH, NORTH_BACK, SOUTH, SOUTH_BACK), PLANNED)
    slow = {"north": NORTH, "back": NORTH_BACK, "south": SOUTH}
    return Belief({**paths, **{slow[name]: estimate for name, estimate in others.items()}}, {})


# --- how large, and what it shows -----------------------------------------------------------------


@pytest.mark.parametrize(("rate_bps", "noise_s"), [(1e9, 1e-4), (3.3e8, 7e-4), (2e7, 5e-5)])
def test_a_train_is_as_long_as_shows_a_rate_through_the_noise(rate_bps: float, noise_s: float) -> None:
    """Packets that come early or late by the noise leave what is read of a message within what counts as the same."""
    packets = packets_of(rate_bps, noise_s, 1e9)
    size = packets * PROBE_BYTES
    exact = TrainTimes(0.01, 0.01 + 8 * (size - PROBE_BYTES) / rate_bps, size)
    late = exact._replace(last_s=exact.last_s + noise_s)
    messages_s = [train.crossing(1e8, rate_bps).message_s for train in (exact, late)]
    if packets > LEAST_PACKETS:
        assert messages_s[1] / messages_s[0] - 1 == pytest.approx(RECOGNISED, rel=0.1)
    assert messages_s[1] / messages_s[0] - 1 < 1.1 * RECOGNISED


def test_a_train_is_never_longer_than_a_message_or_shorter_than_some_packets() -> None:
    assert packets_of(1e9, 1.0, 3e5) == 200
    assert packets_of(1e6, 1e-6, 3e5) == packets_of(math.inf, 1.0, 3e5) == LEAST_PACKETS


def test_a_train_tells_delay_and_rate() -> None:
    size = 100 * PROBE_BYTES
    seen = TrainTimes(0.02 + 8 * PROBE_BYTES / 2e8, 0.02 + 8 * size / 2e8, size).crossing(MESSAGE, 1e9)
    assert path_of(seen, seen.probe_s, seen.message_s) == pytest.approx((0.02, 2e8))


@pytest.mark.parametrize(("planned_bps", "read_bps"), [(1e9, 1e9), (1e8, 2e8)])
def test_a_sender_that_is_slower_than_a_link_knows_only_what_its_rate_is_at_least(
    planned_bps: float, read_bps: float
) -> None:
    size = 100 * PROBE_BYTES
    came = TrainTimes(0.02, 0.02 + 8 * (size - PROBE_BYTES) / 2e8, size, 8 * size / 2e8)
    seen = came.crossing(MESSAGE, planned_bps)
    assert path_of(seen, seen.probe_s, seen.message_s)[1] == pytest.approx(read_bps)


def test_what_came_of_a_train_tells_of_all_of_it() -> None:
    whole = {number: 0.01 + 1e-5 * number for number in range(100)}
    some = {number: seconds for number, seconds in whole.items() if 3 < number < 90 and number % 3}
    assert arrivals(whole, 100, 1e-3) == pytest.approx((0.01, 0.01 + 99e-5, 1e-3))
    assert arrivals(some, 100, 1e-3) == pytest.approx((0.01, 0.01 + 99e-5, 1e-3))
    assert arrivals({number: whole[number] for number in range(49)}, 100, 1e-3) is None


# --- when -----------------------------------------------------------------------------------------


def test_there_is_hope_only_for_what_was_left_and_is_not_as_planned() -> None:
    def gain_s(hoped: Belief) -> float:
        return 0.1 if hoped.paths[NORTH] == hoped.paths[NORTH_BACK] == PLANNED else 0.0

    slow, used = belief(north=SLOW, back=SLOW), (SOUTH, SOUTH_BACK)
    assert hopes(slow, belief(), used, gain_s) == [Hope((NORTH, NORTH_BACK), 0.1)]
    assert hopes(slow, belief(), (NORTH, NORTH_BACK), gain_s) == [], "it is in use, and seen"
    assert hopes(belief(), belief(), used, gain_s) == [], "as planned, it would have been taken"
    assert hopes(belief(south=SLOW), belief(), (NORTH, NORTH_BACK), lambda _: 0.0) == [], "it would bring nothing"


def test_a_link_that_is_seen_to_be_as_planned_vouches_for_all_paths_over_it() -> None:
    """Of a detour over that link and one in use nothing has to be seen: what was the matter with it is over."""
    detour, used = Path("a", "c", (0, 4)), Path("b", "c", (4,))
    known = belief()
    planned = replace(known, paths={**known.paths, detour: PLANNED, used: PLANNED})
    left = replace(planned, paths={**planned.paths, NORTH: SLOW, detour: SLOW})
    assert vouched_for(left, planned, {used, NORTH}) == [], "it is slow"
    seen = replace(left, paths={**left.paths, NORTH: PLANNED})
    assert vouched_for(seen, planned, {used, NORTH}) == [detour]
    assert vouched_for(seen, planned, {NORTH}) == [], "of its other link nothing is known"
    estimator = Estimator(planned)
    estimator.use([NORTH, NORTH_BACK, detour, used])
    slow, good = (Crossing(one.crossing_s(PROBE_BYTES), one.crossing_s(MESSAGE), MESSAGE) for one in (SLOW, PLANNED))
    estimator.learn(Sighting(1.0, {NORTH: slow, detour: slow, used: good}, {}))
    estimator.learn(Sighting(1.0, {NORTH: slow, detour: slow, used: good}, {}))
    assert estimator.belief.paths[detour] != PLANNED
    estimator.use([SOUTH, SOUTH_BACK, used])
    learnt = estimator.learn(Sighting(1.0, {used: good}, {}, {NORTH: good}))
    assert set(learnt.changes) == {"a -> b", "a -> c"}
    assert estimator.belief.paths[detour] == PLANNED
    hoped = hopes(left, planned, (SOUTH, SOUTH_BACK, used), lambda hoped: float(hoped.paths[detour] == PLANNED))
    assert Hope((NORTH, NORTH_BACK), 1.0) in hoped, "one look for both"


def looked_at(iterations: int, gain_s: float, *, shared: bool = False, iteration_s: float = 1.0) -> list[int]:
    """Behind which of so many iterations a route is looked at that stays slow."""
    looks, slow, found = Looks(belief(), MESSAGE), belief(north=SLOW, back=SLOW), list[int]()
    looks.ended(slow, {NORTH, NORTH_BACK}, iteration_s)
    seen = set[Path]()
    for iteration in range(iterations):
        hope = Hope((NORTH, NORTH_BACK), gain_s)
        look = looks.next([hope], lambda _: 1e-4, frozenset(), lambda _: shared)
        seen = set(look.paths) if look else set()
        if look:
            found.append(iteration)
            looks.took(0.0 if look.beside else look.costs_s)
        looks.ended(slow, seen, iteration_s)
    return found


def test_looks_become_rarer_the_longer_it_lasts_and_the_less_it_brings() -> None:
    """Young's formula: twice as far apart where it has lasted four times as long, or would bring a fourth."""
    every = looked_at(1500, 0.1)
    gaps = [after - before for before, after in pairwise(every)]
    assert gaps == sorted(gaps)
    costs_s = 8 * PACKETS * PROBE_BYTES / 1e8
    for place, gap in zip(every[1:], gaps, strict=True):
        assert gap == pytest.approx(math.sqrt(2 * costs_s * (place + 1) / 0.1), abs=1.01)
    assert len(looked_at(1500, 0.025)) == pytest.approx(len(every) / 2, rel=0.1)


def test_a_look_that_another_has_to_confirm_is_taken_at_once() -> None:
    looks, slow = Looks(belief(), MESSAGE), belief(north=SLOW, back=SLOW)
    looks.ended(slow, {NORTH, NORTH_BACK}, 1.0)
    rarely = Hope((NORTH, NORTH_BACK), 1e-9)
    assert looks.next([rarely], lambda _: 1e-4, frozenset(), lambda _: False) is None
    assert looks.next([rarely], lambda _: 1e-4, {NORTH_BACK}, lambda _: False) is not None


def test_a_job_never_waits_longer_for_looks_than_its_share() -> None:
    taken = looked_at(1000, 1.0, shared=True)
    look_s = PLANNED.delay_s.value + 8 * PACKETS * PROBE_BYTES / 1e8
    assert 0.5 * MOST_TAKEN < len(taken) * look_s / 1000 <= MOST_TAKEN
    assert taken[0] >= WAITS * look_s / MOST_TAKEN - 1


# --- in a rehearsal -------------------------------------------------------------------------------


LINKS: list[dict[str, Any]] = [
    {"name": "north", "between": ["paris", "warsaw"], "delay": "10 ms", "rate": "1 Gbit/s"},
    {"name": "south", "between": ["paris", "warsaw"], "delay": "40 ms", "rate": "300 Mbit/s"},
]
PAIR = {"name": "pair", "datacenters": {"paris": {"nodes": 2}, "warsaw": {"nodes": 2}}, "links": LINKS}


def job_of(topology: dict[str, Any], *settings: str) -> AdaptableJob:
    plan = load_plan(topology, PP4, settings=["memory=8", "message=1.2 MB", *settings])
    return adaptable_job(plan, choose(plan, ["crosspipe-greedy"]), MayChange(routes=2))


def rehearsed(job: AdaptableJob, *events: str, iterations: int = 60) -> Rehearsal:
    changes = [change(event, job.plan) for event in events]
    return rehearse(job, changes, iterations, controller.choose("ski-rental"), swap_s=0.02)


@pytest.fixture(scope="module")
def pair() -> AdaptableJob:
    return job_of(PAIR)


def test_a_route_that_recovers_is_seen_and_taken_again(pair: AdaptableJob) -> None:
    found = rehearsed(pair, "link north rate x0.1 at 5 to 20")
    assert found.rows[10].running == "crosspipe-greedy over south"
    back = next(row.iteration for row in found.rows[11:] if "south" not in row.running)
    assert 20 < back <= 26
    assert all(look.beside for look in found.looks)
    assert sum(row.look_s for row in found.rows) == 0
    seen = next(row for row in found.rows if row.iteration >= 20 and row.look is not None)
    assert set(seen.step.learnt.changes) == {"paris -> warsaw", "warsaw -> paris"}


def test_one_that_does_not_is_looked_at_ever_more_rarely(pair: AdaptableJob) -> None:
    found = rehearsed(pair, "link north rate x0.1 at 5", iterations=100)
    assert "south" in found.rows[-1].running
    at = [row.iteration for row in found.rows if row.look is not None]
    assert 5 <= len(at) <= 25
    assert at[-1] - at[-2] >= at[1] - at[0]
    assert not any(row.step.learnt.alarms for row in found.rows[6:])


def test_where_nothing_happens_nothing_is_looked_at(pair: AdaptableJob) -> None:
    found = rehearsed(pair, iterations=30)
    assert found.looks == []
    assert found.gain_s == 0


def test_a_look_in_the_way_of_messages_is_taken_between_iterations_and_paid_for() -> None:
    job = job_of(TRIANGLE, "placement=[a/0, a/1, b/0, c/0]")
    assert job.recipes[0].setting.paths[2].pair == ("b", "c")
    assert len(job.recipes[0].setting.paths[2].route) == 2
    found = rehearsed(job, "link ac rate x0.03 at 5 to 60", iterations=100)
    assert found.looks
    assert not any(look.beside for look in found.looks)
    waited_s = sum(row.look_s for row in found.rows)
    assert 0 < waited_s <= MOST_TAKEN * found.total_s("adapted")
    row = next(row for row in found.rows if row.look is not None and row.iteration > 40)
    before = found.rows[row.iteration - 1]
    assert before.look is None
    assert row.adapted_s - row.look_s == pytest.approx(before.adapted_s), "in no iteration, and in what it took"


def test_what_a_job_crosses_is_what_all_its_messages_cross(pair: AdaptableJob) -> None:
    north, south = pair.settings
    assert set(pair.crossed(north)) == {0, 1}
    assert set(pair.crossed(south)) == {2, 3}
    assert planned_belief(pair).paths.keys() == {*north.paths, *south.paths}
