"""Messages over links that lose or delay packets by chance are held against the model, as far as chance allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.judge.messages import KnownTimes
from testbed.judge.network_chance import FlowChance, at_least
from testbed.plan.left_to_chance import Chance, chances_of_pairs, left_to_chance, touched_at
from testbed.plan.plan import Plan
from testbed.planning.resolve import make_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.planning.training_prediction import link_events_of
from testbed.session.network_accounts import lossless
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import load_workload

ITERATIONS, EACH = 10, 6
WORKLOAD = Path(__file__).parents[2] / "workloads/tiny-gpt-pp4.yaml"
LINKS: Sequence[Mapping[str, Any]] = [
    {"between": ["a", "b"], "delay": "5 ms", "rate": "100 Mbit/s", "forward": {"jitter": "1 ms", "loss": "1 %"}},
    {"between": ["b", "c"], "delay": "9 ms", "rate": "100 Mbit/s", "jitter": "2 ms", "loss": "2 %"},
]


def drawn(draw: np.random.Generator, *, lost: float, jitter_s: float, shift_s: float, begins: int = 0) -> KnownTimes:
    """Times of six messages in each of ten iterations; some are not known, since they lay ready."""
    number, columns = [], []
    for iteration in range(ITERATIONS):
        extra_s = draw.uniform(-jitter_s, jitter_s, EACH) + shift_s * (iteration >= begins)
        extra_s += (draw.random(EACH) < lost) * draw.exponential(0.1, EACH)
        ready = draw.random(EACH) < 0.7 * draw.integers(2)
        ready[0] = False
        known = np.sort(extra_s[~ready])
        number.append(len(known))
        columns.append(known[(len(known) - 1) * np.array((0, 3, 2)) // 4])
    return KnownTimes(np.full(ITERATIONS, EACH), np.array(number), *np.array(columns).T)


def moved(known: KnownTimes, chance: FlowChance) -> list[int]:
    """In which iterations."""
    return np.flatnonzero(np.nan_to_num(chance.shift_s(known)) != 0).tolist()


@pytest.mark.parametrize("jitter_s", [0.0, 3e-3])
@pytest.mark.parametrize("lost", [0.0, 0.02, 0.2, 0.6])
def test_of_1000_drawn_runs_none_is_taken_for_a_change_and_nearly_every_slower_link_is_one(
    lost: float, jitter_s: float
) -> None:
    draw, false, seen = np.random.default_rng(1), 0, 0
    chance = FlowChance(jitter_s, lost, 0.0)
    for _ in range(1000):
        false += bool(moved(drawn(draw, lost=lost, jitter_s=jitter_s, shift_s=0.0), chance))
        seen += len(moved(drawn(draw, lost=lost, jitter_s=jitter_s, shift_s=10e-3), chance)) >= 6
    assert false == 0, f"{false} of 1000 of which nothing changed"
    assert seen >= 950 * (lost < 0.5), f"{seen} of 1000 that were slower from the beginning on"


@pytest.mark.parametrize(("shift_s", "begins"), [(10e-3, 2), (10e-3, 8), (-4e-3, 3)])
def test_the_iterations_are_named(shift_s: float, begins: int) -> None:
    known = drawn(np.random.default_rng(2), lost=0.001, jitter_s=1e-3, shift_s=shift_s, begins=begins)
    assert moved(known, FlowChance(1e-3, 0.001, 0.0)) == [*range(begins, ITERATIONS)]


def test_a_message_that_another_may_delay_is_not_held_against_it() -> None:
    known = drawn(np.random.default_rng(3), lost=0.0, jitter_s=0.0, shift_s=1e-3)
    assert moved(known, FlowChance(0.0, 0.0, 0.0)) == [*range(ITERATIONS)]
    assert not moved(known, FlowChance(0.0, 0.0, order_s=1e-3))


def test_of_what_is_not_held_against_the_model_nothing_is_known() -> None:
    known = drawn(np.random.default_rng(3), lost=0.0, jitter_s=0.0, shift_s=1.0)
    assert np.isnan(FlowChance(None, 0.0, 0.0).shift_s(known)).all()


@pytest.mark.parametrize(("count", "of", "chance"), [(0, 5, 0.0), (1, 5, 0.0), (3, 7, 0.2), (7, 7, 0.9), (2, 2, 1.0)])
def test_how_likely_so_many_are(count: int, of: int, chance: float) -> None:
    each = [math.comb(of, n) * chance**n * (1 - chance) ** (of - n) for n in range(count, of + 1)]
    assert at_least(count, of, chance) == pytest.approx(sum(each))


def plan_of(*events: str, links: Sequence[Mapping[str, Any]] = LINKS) -> Plan:
    """Three stages at three datacenters in a row."""
    topology = {"name": "t", "datacenters": {name: {"nodes": 1} for name in "abc"}, "links": links, "events": [*events]}
    settings = {
        "placement": "[a/0, b/0, c/0]",
        "parallelism": "{pipeline: 3}",
        "model": "{layers: 3, d_model: 16, heads: 2, sequence: 8}",
    }
    plan = make_plan(validate(Topology, topology, "t"), load_workload(WORKLOAD, settings | {"schedules": "[1f1b]"}))
    made = make(plan, choose(plan))
    return with_cases(plan, made.choices, made.made)


def test_chance_adds_up_along_a_route_and_is_that_of_the_worst_time() -> None:
    plan = plan_of()
    pairs = [(0, 1), (1, 0), (0, 2), (1, 1)]
    there, back, far, nowhere = chances_of_pairs(plan, plan.cases[0], pairs, ())
    assert there == pytest.approx(Chance(1e-3, 0.01))
    assert back == nowhere == Chance(0.0, 0.0)
    assert far == pytest.approx(Chance(3e-3, 1 - 0.99 * 0.98))
    assert left_to_chance(plan, ())
    later = plan_of("link a--b loss 30 % at iteration 2", "link a--b jitter 4 ms at iteration 3")
    found = chances_of_pairs(later, later.cases[0], pairs[:2], link_events_of(later, later.cases[0]))
    assert found == [pytest.approx(Chance(4e-3, 0.3))] * 2


def test_where_one_case_loses_packets_no_case_is_on_a_lossless_network() -> None:
    """TCP sends again early in all of them, as the routes have no floor for its timeouts: also what only waits."""
    steady = [{name: value for name, value in link.items() if name not in ("loss", "forward")} for link in LINKS]
    plan = plan_of(links=steady)
    assert lossless(plan, plan.cases[0])
    assert not lossless(plan_of(), plan_of().cases[0])
    later = plan_of("link b--c loss 1 % at iteration 2", links=steady)
    assert not lossless(later, replace(later.cases[0], alone="tiny-gpt-pp4"))


def test_a_flow_beside_one_that_loses_packets_is_touched_as_much() -> None:
    ways = [("a/0->a (card)", "a->b"), ("a/0->a (card)",), ("a->b",), ("c->d",)]
    assert touched_at([0.1, 0.0, 0.3, 0.0], ways) == {"a/0->a (card)": 0.1, "a->b": 0.3, "c->d": 0.0}


def test_losses_touch_messages_by_their_packets() -> None:
    assert Chance(0.0, 0.0).touches(1e6) == 0.0
    assert Chance(0.0, 0.01).touches(9014) == pytest.approx(1 - 0.99**2)
    assert Chance(0.0, 0.01).touches(9015) == pytest.approx(1 - 0.99**4)


def test_losses_touch_all_messages_for_which_the_window_may_stay_too_small() -> None:
    """sqrt(1.5 / 0.01) = 12 packets are under way, 6 after a loss: on a busy connection for many messages."""
    chance = Chance(0.0, 0.01)
    assert chance.touches(6 * 9014) < 0.2
    assert chance.touches(7 * 9014) == 1.0
    assert Chance(0.0, 0.0).touches(1e9) == 0.0
    assert chance.touches(9014, 8 * 9014) == pytest.approx(1 - 0.99**16), "eight that count with their mean"
