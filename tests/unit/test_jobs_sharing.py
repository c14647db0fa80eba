"""Jobs on shared links: CASSINI's score and shifts against brute force, Crux' intensities and order by hand."""

from __future__ import annotations

import random
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.prediction import predict_jobs
from testbed.planning.resolve import make_plan
from testbed.planning.schedules import choose, make, with_selected
from testbed.routing.apply import demands, with_policies
from testbed.routing.cassini import demands_alone, shared_links
from testbed.routing.compatibility import (
    MOST_CIRCLE,
    DemandSpan,
    SharedLink,
    best_shifts,
    circle_of,
    demand_of,
    mean_score,
    score,
)
from testbed.routing.crux import intensities
from testbed.routing.planner import Reach
from testbed.routing.policies import choose as policy
from testbed.spec import load_workload
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

PP4 = Path(__file__).parents[2] / "workloads/tiny-gpt-pp4.yaml"
REACH = Reach(elephants_from=10e3)
LINE: dict[str, Any] = {
    "name": "line",
    "datacenters": {"a": {"nodes": 3}, "b": {"nodes": 3}},
    "links": [{"between": ["a", "b"], "delay": "5 ms", "rate": "100 Mbit/s"}],
}
TWO_WAYS: dict[str, Any] = {
    **LINE,
    "links": [*LINE["links"], {"between": ["a", "b"], "name": "north", "delay": "5.1 ms", "rate": "100 Mbit/s"}],
}


def job(name: str, number: int, **settings: str) -> Workload:
    placed = {"parallelism.pipeline": "2", "placement": f"[a/{number}, b/{number}]", "memory": "4", "name": name}
    asked = {"schedules": "[1f1b]", "microbatches": "1", "message": "500 kB", **placed, **settings}
    return load_workload(PP4, asked)


def planned(topology: dict[str, Any], *workloads: Workload) -> Plan:
    plan = make_plan(validate(Topology, topology, "topology.yaml"), *workloads)
    return with_selected(plan, [make(plan, choose(plan, ["1f1b"], job=job), job=job) for job in range(len(workloads))])


# --- CASSINI: the score ----------------------------------------------------------------------------


def integrated(
    spans: list[list[DemandSpan]], periods_s: list[float], shifts_s: list[float], rate_bps: float, circle_s: float
) -> float:
    """The score by summing over every stretch between two changes of any demand, without steps."""
    edges, laid = {0.0, circle_s}, []
    for mine, period_s, shift_s in zip(spans, periods_s, shifts_s, strict=True):
        for turn in range(-2, round(circle_s / period_s) + 2):
            for span in mine:
                begin_s, end_s = (each + shift_s + turn * period_s for each in span[:2])
                laid.append((begin_s, end_s, span.rate_bps))
                edges |= {edge for edge in (begin_s, end_s) if 0 < edge < circle_s}
    over = 0.0
    ordered = sorted(edges)
    for begin_s, end_s in pairwise(ordered):
        middle_s = (begin_s + end_s) / 2
        wanted = sum(rate for first_s, last_s, rate in laid if first_s <= middle_s < last_s)
        over += (end_s - begin_s) * max(0.0, wanted - rate_bps)
    return 1 - over / circle_s / rate_bps


def drawn_jobs(seed: int, jobs: int) -> tuple[list[list[DemandSpan]], list[int]]:
    """Per job its bursts, which begin and end at whole steps of one second, and the steps of its iteration."""
    draw = random.Random(seed)
    steps = [draw.choice((6, 9, 12, 7)) for _ in range(jobs)]
    spans = []
    for count in steps:
        first, second, third, fourth = sorted(draw.sample(range(count + 1), 4))
        spans.append([DemandSpan(first, second, draw.choice((0.5, 1.0))), DemandSpan(third, fourth, 1.0)])
    return spans, steps


@pytest.mark.parametrize("seed", range(12))
def test_the_score_is_the_integral_over_the_circle(seed: int) -> None:
    spans, steps = drawn_jobs(seed, 2 + seed % 2)
    link = SharedLink(1.0, tuple(demand_of(mine, 1.0, count) for mine, count in zip(spans, steps, strict=True)))
    draw = random.Random(seed + 100)
    shifts = [draw.randrange(-count, count) for count in steps]
    expected = integrated(spans, list(map(float, steps)), list(map(float, shifts)), 1.0, float(circle_of(steps)))
    assert score(link, shifts) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_shifts_have_the_best_score_of_all(seed: int) -> None:
    spans, steps = drawn_jobs(seed, 2 + seed % 2)
    draw = random.Random(seed + 200)
    links = [
        SharedLink(
            rate,
            tuple(demand_of(mine, 1.0, count) * draw.choice((0, 1)) for mine, count in zip(spans, steps, strict=True)),
        )
        for rate in (1.0, 1.0, 0.75)
    ]
    best = max(mean_score(links, shifts) for shifts in product(*map(range, steps)))
    found = best_shifts(links, steps)
    assert found[0] == 0
    assert mean_score(links, found) == pytest.approx(best, abs=1e-9)


def test_four_jobs_in_quarters_are_moved_apart_one_by_one() -> None:
    """More combinations than are all tried: each sends for a quarter of the time, so all fit beside each other."""
    demand = demand_of([DemandSpan(0.0, 6.0, 1.0)], 1.0, 24)
    link = SharedLink(1.0, (demand,) * 4)
    assert score(link, (0, 0, 0, 0)) == pytest.approx(1 - 3 * 0.25)
    assert score(link, best_shifts([link], [24] * 4)) == 1.0


def test_a_burst_over_the_end_of_the_iteration_goes_on_at_its_beginning() -> None:
    assert demand_of([DemandSpan(2.5, 5.0, 8.0)], 1.0, 4).tolist() == [8.0, 0.0, 4.0, 8.0]


def test_iterations_without_a_small_common_multiple_have_a_circle_all_the_same() -> None:
    assert circle_of([72, 108]) == 216
    assert circle_of([997, 1009]) == MOST_CIRCLE * 997


# --- CASSINI: plans --------------------------------------------------------------------------------


def test_jobs_whose_bursts_meet_are_moved_apart() -> None:
    plan = planned(LINE, job("first", 0), job("second", 1))
    later, (remark,) = with_policies(plan, [policy("cassini")], REACH)
    file.check(later, "plan.json")
    before, after = (predict_jobs(one, one.cases[0]) for one in (plan, later))
    assert max(one.together_s / one.alone_s for one in before) > 1.1
    assert max(one.together_s / one.alone_s for one in after) < 1.005
    # a message of 500 kB takes 40 ms at 100 Mbit/s
    assert 0.038 <= max(later.cases[0].starts_s) <= 0.045
    assert "compatibility 1.0000, all at once 0." in remark


def test_a_job_wants_of_a_link_what_it_sends_there() -> None:
    plan = planned(LINE, job("first", 0, microbatches="3"), job("second", 1))
    wanted = demands_alone(plan, plan.cases[0])
    for one, messages in zip(wanted, (3, 1), strict=True):
        assert len(one.spans) == 2  # activations there, gradients back
        for spans in one.spans.values():
            size = sum((span.end_s - span.begin_s) * span.rate_bps / 8 for span in spans)
            assert size == pytest.approx(messages * 500e3, rel=0.06)  # and headers
            assert all(before.end_s <= after.begin_s for before, after in pairwise(spans))
    links = shared_links(plan, plan.cases[0], wanted, [72, 36])
    assert [len(demand) for link in links for demand in link.demands_bps] == [72, 36, 72, 36]


def test_the_order_of_jobs_decides_nothing() -> None:
    jobs = job("first", 0), job("second", 1, message="300 kB")
    starts = [
        with_policies(planned(LINE, *listed), [policy("cassini")], REACH)[0].cases[0].starts_s
        for listed in (jobs, jobs[::-1])
    ]
    assert starts[0] == starts[1][::-1]
    assert max(starts[0]) > 0


def test_a_round_makes_unequal_iterations_meet_and_drift_makes_shifts_worthless() -> None:
    jobs = job("first", 0), job("second", 1, message="300 kB")
    found = {
        circle: with_policies(planned(LINE, *jobs), [policy(f"cassini,circle={circle}")], REACH)
        for circle in ("round", "multiple")
    }
    assert max(found["round"][0].cases[0].starts_s) > 0.02
    assert "compatibility 1.0000" in found["round"][1][0]
    assert found["multiple"][0].cases[0].starts_s == (0.0, 0.0)
    assert "compatibility 0.97" in found["multiple"][1][0]


def test_one_job_is_compatible_with_nobody() -> None:
    plan, (remark,) = with_policies(planned(TWO_WAYS, job("first", 0)), [policy("cassini")], REACH)
    assert plan.cases[0].starts_s == ()
    assert "only its routes are chosen" in remark


@pytest.mark.parametrize(
    ("text", "expected"),
    [("cassini,routes=crux", "a policy that chooses routes alone"), ("cassini,steps=1", "at least 2")],
)
def test_what_cassini_refuses(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        with_policies(planned(LINE, job("first", 0), job("second", 1)), [policy(text)], REACH)


# --- Crux ------------------------------------------------------------------------------------------


def test_intensity_is_work_over_the_longest_transfer() -> None:
    """By hand: two ranks with so many microbatches of a forward and a backward; so many messages over 100 Mbit/s."""
    slots = {"pacing": "{F: 10 ms, I: 10 ms, W: 10 ms}"}
    plan = planned(LINE, job("lean", 0, microbatches="4", message="100 kB", **slots), job("fat", 1, **slots))
    found = intensities(plan, plan.cases[0], demands(plan, plan.cases[0], REACH))
    assert found[0] == pytest.approx(4 * 2 * 30e-3 / (4 * 100e3 * 8 / 100e6), rel=0.08)  # headers
    assert found[1] == pytest.approx(2 * 30e-3 / (500e3 * 8 / 100e6), rel=0.08)


def test_the_most_intense_job_chooses_first_and_the_others_make_way() -> None:
    """Two links: the lean job takes the first one though it sends less, and the fat ones share the other by bytes."""
    lean = job("lean", 2, message="100 kB", **{"pacing.F": "50 ms"})
    plan = planned(TWO_WAYS, job("fat", 0), job("fatter", 1, message="700 kB"), lean)
    routed, (remark,) = with_policies(plan, [policy("crux")], REACH)
    file.check(routed, "plan.json")
    names = [one.partition(" ")[0] for one in remark.partition("transfer: ")[2].split(", ")]
    assert names == ["lean", "fat", "fatter"]
    links = plan.network.directions
    of = {
        plan.jobs[number].name: {
            links[index].link
            for flow, route in zip(routed.flows, routed.cases[0].routes, strict=True)
            for index in route
            if flow.source in plan.jobs[number].mesh.ranks
        }
        for number in range(3)
    }
    assert of["lean"].isdisjoint(of["fat"])
    assert of["fatter"] == of["lean"]  # where less is under way
    assert np.prod([len(mine) for mine in of.values()]) == 1
