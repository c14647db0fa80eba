"""Ranks that become slower while they train: what a line may say, and what is predicted of every iteration."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from in_process import run_testbed

from testbed.errors import BadInput
from testbed.plan.drawn_slots import SlowerRank, slots_of
from testbed.plan.plan import Plan
from testbed.plan.timeline import Moment, RankSlower
from testbed.planning import file
from testbed.planning.drawn_iterations import rank_changes, slower_ranks
from testbed.planning.prediction import predict_training
from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose, make, with_selected
from testbed.spec.event_text import read_event
from testbed.trace.predictions import predicted_times_s

ROOT = Path(__file__).parents[2]
TOPOLOGY, WORKLOAD = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
STAGES = (0, 1, 2, 3)
VARYING = "pacing={F: {median: 20 ms, p95: 30 ms}, I: 20 ms, W: 20 ms}"


def planned(*events: str, settings: tuple[str, ...] = ()) -> Plan:
    plan = load_plan(TOPOLOGY, WORKLOAD, settings=["iterations=6", "warmup=1", *settings], events=events)
    return with_selected(plan, [make(plan, choose(plan, ["1f1b"]))])


def times(plan: Plan) -> list[float]:
    """Of every measured iteration, as predicted."""
    return list(map(float, predicted_times_s(predict_training(plan, plan.cases[0]).trace, range(1, 7))))


def test_slots_are_longer_from_an_iteration_on_until_another() -> None:
    (workload,) = (job.workload for job in planned().jobs)
    slower = (SlowerRank(0, 2, 1.5, first=3, end=5), SlowerRank(0, 2, 2.0, first=4))
    plain = slots_of(workload, STAGES, 0)
    shares = [(slots_of(workload, STAGES, number, slower) / plain)[0, :, 0, 0] for number in range(2, 7)]
    assert [round(float(share[2]), 9) for share in shares] == [1, 1.5, 3, 2, 2]
    assert all((share[[0, 1, 3]] == 1).all() for share in shares)


def test_a_job_may_be_called_as_what_an_event_is_of() -> None:
    """And a link or a datacenter `rank`."""
    one, other = read_event("link rank 3 slower x2 at 4"), read_event("link rank down at 4")
    assert (one.what, one.name, one.rank, other.what, other.name) == ("rank", "link", 3, "link", "rank")


def test_every_iteration_is_predicted_with_the_slots_that_it_has() -> None:
    steady, *_ = times(planned())
    found = times(plan := planned("rank 2 slower x1.5 at iteration 2 to 4"))
    assert found[:2] == [steady] * 2 == found[4:]
    assert found[2] == found[3] > 1.1 * steady
    factors = times(planned(settings=("pacing={F: 20 ms, I: 20 ms, W: 20 ms, factors: [1, 1, 1.5, 1]}",)))
    assert found[2] == pytest.approx(factors[0], rel=1e-9)
    assert [(one.round, one.said[-4:]) for one in rank_changes(plan, plan.cases[0])] == [(3, "to 4"), (5, "over")]


def test_drawn_slots_are_drawn_as_before_and_longer() -> None:
    plain, slow = planned(settings=(VARYING,)), planned("rank 1 slower x1.7 at 3", settings=(VARYING,))
    assert times(plain)[:3] == times(slow)[:3]
    assert all(now > before for before, now in zip(times(plain)[3:], times(slow)[3:], strict=True))
    loads = [predict_training(plan, plan.cases[0]).loads_of(5)[0].slots_s for plan in (plain, slow)]
    assert loads[0] is not None
    assert loads[1] is not None
    assert np.allclose(loads[1][0, 1], 1.7 * loads[0][0, 1], atol=2e-9)
    assert (loads[1][0, 0] == loads[0][0, 0]).all()


def test_beside_a_link_that_changes_and_an_outage_over_an_iterations_end() -> None:
    link = planned().network.directions[0].link
    steady, *_ = times(planned())
    events = f"link {link} rate 40 % at iteration 1 + 100 ms", "rank 0 slower x2 at iteration 3"
    both, first, second = times(planned(*events)), times(planned(events[0])), times(planned(events[1]))
    assert both[:3] == first[:3]
    assert both[3] > max(first[3], second[3])
    late = f"link {link} down for 700 ms at iteration 1 + {steady - 0.001:.6f} s"
    for settings in ((), (VARYING,)):
        held = times(planned(late, "rank 0 slower x2 at iteration 2", settings=settings))
        assert held[2] > times(planned("rank 0 slower x2 at iteration 2", settings=settings))[2]
        assert max(held) < 4 * steady


def test_a_rank_of_several_replicas_and_jobs() -> None:
    replicas = ("parallelism={pipeline: 2, data: 2, tensor: 1}", "data_parallel.parameters=1 MB")
    plan = planned("rank 3 slower x1.5 at 1", settings=replicas)
    assert slower_ranks(plan, plan.cases[0], 0) == (SlowerRank(1, 1, 1.5, 2),)
    workloads = WORKLOAD, WORKLOAD
    topology = ROOT / "topologies/geopipe-three-region.yaml"
    with pytest.raises(BadInput, match=r"expected JOB rank 1 ..., of jobs tiny-gpt-pp4, tiny-gpt-pp4-2"):
        load_plan(topology, *workloads, events=["rank 1 slower x1.5 at 1"])
    several = load_plan(topology, *workloads, events=["tiny-gpt-pp4-2 rank 1 slower x1.5 at 1"])
    assert several.events == (
        RankSlower("tiny-gpt-pp4-2", Moment(1), 1, 1.5, "tiny-gpt-pp4-2 rank 1 slower x1.5 at 1"),
    )


def test_a_plan_keeps_them_and_refuses_what_cannot_be() -> None:
    plan = planned("rank 2 slower x1.5 at iteration 2 to 4", "rank 0 slower x3 at 5")
    text = file.to_json(plan)
    assert file.from_json(text, "plan.json") == plan
    for was, now, expected in (
        ('"rank": 2', '"rank": 9', "events.0.rank: got 9, expected 0 to 3"),
        ('"factor": 1.5', '"factor": 0', "events.0.factor: got 0.0, expected 0.01 to 1000"),
        ('"until": 4', '"until": 1', "events.0.until: got 1, expected more than 2"),
    ):
        assert was in text
        with pytest.raises(BadInput, match=re.escape(expected)):
            file.from_json(text.replace(was, now), "plan.json")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("rank 4 slower x2 at 1", "rank: got 4, expected 0 to 3"),
        ("rank 1 slower x2 at 9", "at.iteration: got 9, expected 0 to 5"),
        ("rank 1 slower x0 at 1", "got 'x0', expected a factor from x0.01 to x1000"),
        ("rank 1 slower x2 at iteration 3 + 20 ms", "expected rank 1 slower x2 at iteration 3: .*from a beginning on"),
        ("rank 1 slower x2 at 3 to 3", "got 3, expected more than 3"),
        ("rank x slower x2 at 3", "got 'x', expected the number of a rank"),
        ("other rank 1 slower x2 at 3", "got 'other', expected one of the jobs"),
        ("rank 1 slower x2 for 3 s at 1", "expected .JOB. rank 2 slower x1.5"),
        ("rank 1 fails at 3", "expected .JOB. rank 2 slower x1.5; what fails is said with --failure"),
    ],
)
def test_the_command_says_what_is_wrong(event: str, expected: str) -> None:
    words = ("predict", "two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--set", "iterations=6")
    done = run_testbed(*words, "--event", event, COLUMNS="500")
    assert done.returncode == 2, done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: --event"), done.stderr
    assert re.search(expected, done.stderr), done.stderr


def test_computation_without_slots_cannot_be_stretched() -> None:
    with pytest.raises(BadInput, match="no slots to stretch"):
        load_plan(TOPOLOGY, WORKLOAD, settings=["pacing=none"], events=["rank 1 slower x2 at 1"])


def test_predict_shows_the_iterations_around_it() -> None:
    words = ("predict", "two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--set", "iterations=6")
    shown = run_testbed(*words, "--event", "rank 2 slower x1.5 at 2 to 4", "--quiet", COLUMNS="80").stdout
    assert "iterations as links and ranks change" in shown
    assert "rank 2 slower x1.5 at 2 to 4: over" in " ".join(shown.split())
