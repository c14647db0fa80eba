"""What a job believes of links and ranks, from nothing but the times of its own messages and actions."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path as File

import pytest

from testbed.adaptation.adaptable_job import AdaptableJob, adaptable_job, planned_belief
from testbed.adaptation.adapting import adapting_job
from testbed.adaptation.believed_problem import believed
from testbed.adaptation.controller import never, ski_rental
from testbed.adaptation.estimates import Belief, Estimator, PathEstimate, exactly, path_of
from testbed.adaptation.prospects import Prospects
from testbed.adaptation.rehearsal_changes import change
from testbed.adaptation.rehearsal_world import AS_PACED, OneJobsWorld, SlotVariation
from testbed.adaptation.sightings import PROBE_BYTES, ActionTimes, Crossing, Path, Sighting, sighting
from testbed.errors import BadInput
from testbed.model.simulate import makespan
from testbed.pipeline.ir import Kind
from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose

ROOT = File(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
THERE, BACK = Path("paris", "warsaw", (0,)), Path("warsaw", "paris", (1,))
SIZE = 1e6
SMALL = ["model={kind: linear, layers: 4, d_model: 8, sequence: 4}", "pacing={F: 20 ms, I: 20 ms, W: 20 ms}"]


def path(delay_s: float, rate_bps: float) -> PathEstimate:
    return PathEstimate(exactly(delay_s), exactly(rate_bps))


def seen(delay_s: float = 0.01, rate_bps: float = 1e9, slot_s: float = 0.02, deviation_s: float = 0.0) -> Sighting:
    there = path(delay_s, rate_bps)
    crossing = Crossing(there.crossing_s(PROBE_BYTES), there.crossing_s(SIZE), SIZE)
    return Sighting(1.0, {THERE: crossing}, {(0, Kind.F): ActionTimes(slot_s, deviation_s, 8)})


@pytest.fixture
def estimator() -> Estimator:
    slots = {(0, kind): exactly(0.02) for kind in (Kind.F, Kind.B, Kind.I, Kind.W)}
    return Estimator(Belief({THERE: path(0.01, 1e9)}, slots))


@pytest.fixture
def job() -> AdaptableJob:
    plan = load_plan(LONGHAUL, PP4)
    return adaptable_job(plan, choose(plan, ["1f1b", "crosspipe-greedy"]))


@pytest.mark.parametrize(("delay_s", "rate_bps"), [(0.01, 1e9), (0.04, 2e8), (0.0, 1e7)])
def test_two_sizes_tell_the_delay_from_the_rate(delay_s: float, rate_bps: float) -> None:
    crossing = seen(delay_s, rate_bps).crossings[THERE]
    assert path_of(crossing, crossing.probe_s, crossing.message_s) == pytest.approx((delay_s, rate_bps))


def test_a_message_that_takes_no_longer_than_a_probe_has_any_rate() -> None:
    assert path_of(Crossing(0.01, 0.01, SIZE), 0.01, 0.01) == (0.01, float("inf"))


def test_what_is_as_planned_changes_nothing(estimator: Estimator) -> None:
    before = estimator.belief
    for _ in range(20):
        assert estimator.learn(seen()) == ((), ())
    assert estimator.belief == before


@pytest.mark.parametrize(("delay_s", "rate_bps"), [(0.04, 1e9), (0.01, 5e8), (0.04, 2.5e8), (0.002, 1e9)])
def test_a_large_change_is_believed_at_once(estimator: Estimator, delay_s: float, rate_bps: float) -> None:
    for _ in range(5):
        estimator.learn(seen())
    assert estimator.learn(seen(delay_s, rate_bps)) == (("paris -> warsaw",), ("paris -> warsaw",))
    assert not estimator.doubts
    found = estimator.belief.paths[THERE]
    assert (found.delay_s.value, found.rate_bps.value) == pytest.approx((delay_s, rate_bps))
    assert found.delay_s.low < found.delay_s.value < found.delay_s.high
    assert estimator.learn(seen(delay_s, rate_bps)) == ((), ())


@pytest.mark.parametrize(("delay_s", "rate_bps"), [(0.0125, 1e9), (0.0075, 1e9), (0.01, 7.5e8)])
def test_a_small_change_is_believed_when_the_next_iteration_says_the_same(
    estimator: Estimator, delay_s: float, rate_bps: float
) -> None:
    for _ in range(5):
        estimator.learn(seen())
    first = estimator.learn(seen(delay_s, rate_bps))
    assert first.alarms == ("paris -> warsaw",)
    assert not first.changes
    assert estimator.doubts
    second = estimator.learn(seen(delay_s, rate_bps))
    assert second == ((), ("paris -> warsaw",))
    assert not estimator.doubts
    found = estimator.belief.paths[THERE]
    assert (found.delay_s.value, found.rate_bps.value) == pytest.approx((delay_s, rate_bps))


def test_a_single_late_probe_is_not_believed(estimator: Estimator) -> None:
    before = estimator.belief
    for _ in range(5):
        estimator.learn(seen())
    late = seen()
    crossing = late.crossings[THERE]
    assert not estimator.learn(late._replace(crossings={THERE: crossing._replace(probe_s=0.015)})).changes
    assert estimator.belief == before


def test_a_single_late_iteration_is_believed_only_until_the_next_one(estimator: Estimator) -> None:
    before = estimator.belief
    for _ in range(5):
        estimator.learn(seen())
    estimator.learn(seen(0.04))
    assert estimator.belief != before
    estimator.learn(seen())
    assert estimator.belief == before


def test_what_comes_back_is_recognised_by_the_first_iteration(estimator: Estimator) -> None:
    planned = estimator.belief
    for delay_s in (0.01, 0.01, 0.04, 0.04, 0.04):
        estimator.learn(seen(delay_s))
    slow = estimator.belief
    for delay_s, belief in ((0.01, planned), (0.04, slow), (0.01, planned)):
        learnt = estimator.learn(seen(delay_s))
        assert learnt == (("paris -> warsaw",), ("paris -> warsaw",))
        assert not estimator.doubts
        assert estimator.belief == belief
        estimator.learn(seen(delay_s))


def test_what_is_new_again_is_not_recognised(estimator: Estimator) -> None:
    for delay_s in (0.01, 0.01, 0.04, 0.04, 0.0349):
        learnt = estimator.learn(seen(delay_s))
    assert learnt == (("paris -> warsaw",), ())
    assert estimator.doubts


def test_less_than_a_tenth_is_not_believed(estimator: Estimator) -> None:
    for iteration in range(40):
        assert not estimator.learn(seen(slot_s=0.02 if iteration < 10 else 0.0215)).changes


def test_what_was_different_from_the_beginning_is_found_without_an_alarm(estimator: Estimator) -> None:
    learnt = [estimator.learn(seen(0.05)) for _ in range(2)]
    assert [bool(each.changes) for each in learnt] == [False, True]


def test_a_slow_rank_is_slow_in_kinds_that_the_schedule_does_not_have(estimator: Estimator) -> None:
    for slot_s in (0.02, 0.02, 0.03, 0.03):
        estimator.learn(seen(slot_s=slot_s))
    assert [slot.value for slot in estimator.belief.slots.values()] == pytest.approx([0.03] * 4)


def test_a_rank_that_is_evidently_slower_is_believed_at_once(estimator: Estimator) -> None:
    learnt = [estimator.learn(seen(slot_s=slot_s)).changes for slot_s in (0.02, 0.02, 0.03)]
    assert learnt == [(), (), ("rank 0",)]
    assert not estimator.doubts


def test_another_schedules_kinds_of_actions_are_no_other_rank() -> None:
    """B takes as long as I and W together: what a rank's actions take in the mean is something else after a swap."""
    slots = {(0, Kind.F): 0.02, (0, Kind.B): 0.04, (0, Kind.I): 0.02, (0, Kind.W): 0.02}
    estimator = Estimator(Belief({}, {which: exactly(slot_s) for which, slot_s in slots.items()}))
    for kinds in [(Kind.F, Kind.B)] * 3 + [(Kind.F, Kind.I, Kind.W)] * 3:
        seen_slots = {(0, kind): ActionTimes(slots[0, kind], 0.0, 8) for kind in kinds}
        assert estimator.learn(Sighting(1.0, {}, seen_slots)) == ((), ())


def test_slots_that_vary_much_are_no_other_rank_by_chance(estimator: Estimator) -> None:
    """By a quarter, where the mean of eight actions is known to 13 %: neither at once nor confirmed."""
    learnt = [estimator.learn(seen(slot_s=slot_s, deviation_s=0.37 * slot_s)) for slot_s in (0.02, 0.02, 0.025, 0.025)]
    assert not any(each.changes for each in learnt)


def test_what_is_slower_for_long_is_found_where_slots_vary_much(estimator: Estimator) -> None:
    learnt = [estimator.learn(seen(slot_s=slot_s, deviation_s=0.37 * slot_s)) for slot_s in [0.02] * 5 + [0.03] * 9]
    assert [iteration for iteration, each in enumerate(learnt) if each.changes] != []


def test_intervals_hold_the_truth_of_slots_that_vary() -> None:
    held, draw = 0, random.Random(3)
    for _ in range(100):
        estimator = Estimator(Belief({}, {(0, Kind.F): exactly(0.02)}))
        for _ in range(2):
            slots = [draw.gauss(0.03, 0.0009) for _ in range(30)]
            mean = sum(slots) / 30
            deviation = (sum((slot - mean) ** 2 for slot in slots) / 30) ** 0.5
            estimator.learn(Sighting(1.0, {}, {(0, Kind.F): ActionTimes(mean, deviation, 30)}))
        estimate = estimator.belief.slots[0, Kind.F]
        held += estimate.low <= 0.03 <= estimate.high
    assert held >= 88


def test_the_window_says_between_what_an_estimate_lies(estimator: Estimator) -> None:
    for delay_s in (0.01, 0.01, 0.0125, 0.0126):
        estimator.learn(seen(delay_s))
    delay = estimator.belief.paths[THERE].delay_s
    assert delay == pytest.approx((0.0125, 0.0125, 0.0126))


# --- what the event model shows of a job ----------------------------------------------------------


def test_a_job_sees_its_messages_and_slots_and_nothing_else(job: AdaptableJob) -> None:
    world = OneJobsWorld(job, [], AS_PACED)
    prospect = Prospects(job).under(planned_belief(job))[0]
    found = sighting(world.trace(prospect, 0), job.ranks, world.probes_s(0, prospect.setting))
    assert set(found.crossings) == {THERE, BACK}
    crossing = found.crossings[THERE]
    assert path_of(crossing, crossing.probe_s, crossing.message_s) == pytest.approx((0.0102, 1e9), rel=1e-2)
    assert all(slot.mean_s == pytest.approx(0.02) for slot in found.slots.values())
    assert found.iteration_s == pytest.approx(prospect.predicted_s)


def test_waiting_for_a_receiver_is_no_slow_link() -> None:
    plan = load_plan(LONGHAUL, PP4, settings=["receives=late"])
    late = adaptable_job(plan, choose(plan, ["zb-h1"]))
    world, estimator = OneJobsWorld(late, [], AS_PACED), Estimator(planned_belief(late))
    running = Prospects(late).under(estimator.belief)[0]
    found = sighting(world.trace(running, 0), late.ranks, world.probes_s(0, running.setting))
    for crossing in found.crossings.values():
        assert path_of(crossing, crossing.probe_s, crossing.message_s) == pytest.approx((0.0102, 1e9), rel=2e-2)


@pytest.mark.parametrize("message", ["3 kB", "30 kB"])
def test_word_of_a_receive_is_shorter_than_a_probe(tmp_path: File, message: str) -> None:
    """On a slow link by as much as a short message is longer than one."""
    slow = tmp_path / "slow.yaml"
    slow.write_text(LONGHAUL.read_text().replace("1 Gbit/s", "3 Mbit/s"))
    plan = load_plan(slow, PP4, settings=[*SMALL, "receives=late", f"message={message}"])
    late = adaptable_job(plan, choose(plan, ["zb-h1"]))
    as_planned = planned_belief(late)
    for factor in (1.0, 0.6, 0.4, 3.0):
        changes = [change(f"link paris--warsaw rate x{factor:g} at 0", plan)] if factor != 1 else []
        world = OneJobsWorld(late, changes, AS_PACED)
        adapting = adapting_job(late, never(), 0.0)
        for iteration in range(3):
            belief = adapting.after(iteration, world.seen(adapting.running, iteration)).belief
        for path, planned in as_planned.paths.items():
            known = belief.paths[path]
            assert known.rate_bps.value == pytest.approx(factor * planned.rate_bps.value, rel=0.05)
            assert known.delay_s.value == pytest.approx(planned.delay_s.value, rel=0.05)


@pytest.mark.parametrize("receives", ["early", "late"])
def test_messages_that_are_shorter_than_a_probe_tell_no_rate(tmp_path: File, receives: str) -> None:
    """It is believed to be as planned: what they take longer, or less long, is the delay's."""
    slow = tmp_path / "slow.yaml"
    slow.write_text(LONGHAUL.read_text().replace("1 Gbit/s", "3 Mbit/s"))
    plan = load_plan(slow, PP4, settings=[*SMALL, f"receives={receives}", "message=1 kB"])
    job = adaptable_job(plan, choose(plan, ["zb-h1"]))
    for event, delay_s, rate_bps in (
        ("", 0.0102, 3e6),
        ("delay x4", 0.0408, 3e6),
        ("rate x0.4", 0.0162, 3e6),
        ("delay 0 ms", 0.0, 3e6),
        ("rate x3", 0.0102 + 0.004 / 3 - 0.004, 3e6),
    ):
        changes = [change(f"link paris--warsaw {event} at 2", plan)] if event else []
        world, adapting = OneJobsWorld(job, changes, AS_PACED), adapting_job(job, never(), 0.0)
        for iteration in range(5):
            step = adapting.after(iteration, world.seen(adapting.running, iteration))
            assert not step.learnt.changes or (event and iteration >= 2)
        for known in step.belief.paths.values():
            assert (known.delay_s.value, known.rate_bps.value) == pytest.approx((delay_s, rate_bps), rel=2e-2, abs=1e-5)


def test_a_probe_that_is_faster_than_the_rate_allows_is_believed(estimator: Estimator) -> None:
    short = Crossing(5e-6, 5e-6, 1000.0)
    for _ in range(3):
        estimator.learn(seen()._replace(crossings={THERE: short}))
    found = estimator.belief.paths[THERE]
    assert (found.delay_s.value, found.rate_bps.value) == pytest.approx((0.0, 8 * PROBE_BYTES / 5e-6))


def test_a_path_whose_messages_all_lay_ready_is_learnt_from_its_probes(job: AdaptableJob) -> None:
    """A receiver that is always busy tells nothing of when messages came."""
    prospect = Prospects(job).under(planned_belief(job))[0]
    world = OneJobsWorld(job, [change("link paris--warsaw delay x3 at 5", job.plan)], AS_PACED)
    estimator = Estimator(planned_belief(job))
    for iteration in range(8):
        trace = world.trace(prospect, iteration)
        forward = trace.messages["source_rank"] < trace.messages["target_rank"]
        trace = replace(trace, messages=trace.messages.copy())
        trace.messages["arrived_s"][forward] = float("nan")
        learnt = estimator.learn(sighting(trace, job.ranks, world.probes_s(iteration, prospect.setting)))
        assert bool(learnt.changes) == (iteration == 5)
    for path in estimator.belief.paths:
        planned = planned_belief(job).paths[path]
        assert estimator.belief.paths[path].delay_s.value == pytest.approx(3 * planned.delay_s.value, rel=1e-3)
        assert estimator.belief.paths[path].rate_bps.value == pytest.approx(planned.rate_bps.value, rel=1e-3)


def test_of_cuts_some_of_whose_messages_are_shorter_than_a_probe_it_takes_what_they_tell() -> None:
    """Of two, one each: probes alone."""
    long, short = Crossing(0.010, 0.013, 3000.0), Crossing(0.010, 0.010, 1200.0)
    for one, longer, size in ((long, 0.4, 1200.0), (short, 2.5, 1200.0)):
        read = Sighting(1.0, {THERE: one}, {}).of_other_actions(1.0, longer).crossings[THERE]
        assert (read.probe_s, read.message_bytes) == (0.010, size)
    read = Sighting(1.0, {THERE: long}, {}).of_other_actions(1.0, 2.0).crossings[THERE]
    assert read == pytest.approx(Crossing(0.010, 0.019, 6000.0))


def test_slots_that_vary_are_seen_as_they_are(job: AdaptableJob) -> None:
    world = OneJobsWorld(job, [], SlotVariation(0.03, 1))
    running = Prospects(job).under(planned_belief(job))[0]
    slots = [sighting(world.trace(running, i), job.ranks, {}).slots[1, Kind.F] for i in range(40)]
    mean = sum(slot.mean_s for slot in slots) / 40
    assert mean == pytest.approx(0.02, rel=0.01)
    assert sum(slot.deviation_s for slot in slots) / 40 == pytest.approx(0.03 * 0.02, rel=0.15)


@pytest.mark.parametrize(
    "event",
    ["link paris--warsaw delay x4 at 0", "link paris--warsaw rate x0.3 at 0", "rank 1 slower x1.5 at 0"],
)
def test_what_is_believed_predicts_what_is_measured(job: AdaptableJob, event: str) -> None:
    """Of every candidate, also those that the job has never run."""
    world = OneJobsWorld(job, [change(event, job.plan)], AS_PACED)
    estimator, prospects = Estimator(planned_belief(job)), Prospects(job)
    running = prospects.under(estimator.belief)[0]
    for iteration in range(2):
        probes_s = world.probes_s(iteration, running.setting)
        estimator.learn(sighting(world.trace(running, iteration), job.ranks, probes_s))
    for prospect in prospects.under(estimator.belief):
        assert prospect.predicted_s == pytest.approx(world.iteration_s(prospect, 0), rel=2e-3)


def test_the_planned_belief_is_the_planned_problem(job: AdaptableJob) -> None:
    for recipe in job.recipes:
        assert believed(job, recipe, planned_belief(job)) == recipe.problem


def test_a_believed_path_stands_for_all_links_on_it(job: AdaptableJob) -> None:
    belief = planned_belief(job)
    slow = replace(belief, paths={**belief.paths, THERE: path(0.05, 1e8)})
    problem = believed(job, job.recipes[0], slow)
    assert problem.route_delay(1, 2) == 0.05
    assert problem.route_delay(2, 1) == 0.0102
    schedule = Prospects(job).under(belief)[0].schedule
    assert makespan(problem, schedule) > makespan(job.planned, schedule)


STAR = {
    "name": "star",
    "datacenters": {"a": {"nodes": 1}, "b": {"nodes": 2}, "c": {"nodes": 1}},
    "links": [
        {"name": "ab", "between": ["a", "b"], "delay": "10 ms", "rate": "1 Gbit/s"},
        {"name": "ac", "between": ["a", "c"], "delay": "5 ms", "rate": "500 Mbit/s"},
    ],
}
"""Rank 0 in a, 1 and 2 in b, 3 in c: b reaches c through a, over both links."""


@pytest.mark.parametrize("event", ["link ab rate x0.1 at 0", "link ab delay x4 at 0", "link ac rate x0.2 at 0"])
def test_a_link_that_two_paths_share_is_found_and_shared_in_predictions(event: str) -> None:
    """Full links too, on which no message is ever alone: after a swap nothing else is believed."""
    plan = load_plan(STAR, PP4, settings=["placement=[a/0, b/0, b/1, c/0]"])
    job = adaptable_job(plan, choose(plan, ["zb-h1", "crosspipe-greedy"]))
    world = OneJobsWorld(job, [change(event, plan)], AS_PACED)
    adapting = adapting_job(job, ski_rental(dwell=2), 0.0)
    for iteration in range(8):
        running = adapting.running
        seen_now = sighting(world.trace(running, iteration), job.ranks, world.probes_s(iteration, running.setting))
        step = adapting.after(iteration, seen_now)
        if iteration > 1:
            assert step.stays_s == pytest.approx(seen_now.iteration_s, rel=1e-2)
            assert not step.learnt.changes


def test_readings_of_a_full_link_that_swing_to_and_fro_come_to_rest() -> None:
    """What is believed of it makes messages wait so much longer that each reading is as far off as the last one."""
    full = {"between": ["a", "b"], "name": "ab", "delay": "0.05 ms", "rate": "23 Mbit/s"}
    places = {"name": "full", "datacenters": {"a": {"nodes": 3}, "b": {"nodes": 3}}, "links": [full]}
    shape = ["parallelism={pipeline: 2, data: 3}", "placement=[a/0, b/0]", "receives=late", "message=100 kB"]
    replicas = ["data_parallel={algorithm: direct, parameters: 20 kB, replicas: [[a/1, b/1], [a/2, b/2]]}"]
    rest = ["microbatches=4", "memory=16", "pacing={F: 11 ms, I: 13.2 ms, W: 8.8 ms}"]
    plan = load_plan(places, PP4, settings=[SMALL[0], *shape, *replicas, *rest])
    job = adaptable_job(plan, choose(plan, ["1f1b"]))
    world = OneJobsWorld(job, [change("link ab rate x0.4 at 3", plan)], AS_PACED)
    adapting = adapting_job(job, never(), 0.0)
    for iteration in range(4):
        belief = adapting.after(iteration, world.seen(adapting.running, iteration)).belief
    for known in belief.paths.values():
        assert known.rate_bps.value == pytest.approx(9.2e6, rel=2e-2)


def test_a_full_link_that_is_as_planned_again_is_believed_to_be() -> None:
    """What readings that begin with what is believed of a slow link come to is another link, or nothing."""
    full = {"between": ["a", "b"], "name": "ab", "delay": "0.05 ms", "rate": "10 Mbit/s"}
    places = {"name": "full", "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}}, "links": [full]}
    shape = ["parallelism={pipeline: 2, data: 2}", "placement=[a/0, b/0]", "receives=late", "message=15 kB"]
    replicas = ["data_parallel={algorithm: ring, parameters: 1 MB, replicas: [[a/1, b/1]]}"]
    rest = ["microbatches=8", "microbatch_size=1", "memory=32", "pacing={F: 1.5 ms, I: 1.5 ms, W: 1.2 ms}"]
    plan = load_plan(places, PP4, settings=[SMALL[0], *shape, *replicas, *rest])
    job = adaptable_job(plan, choose(plan, ["zb-h1"]))
    world = OneJobsWorld(job, [change("link ab rate x0.2 at 2 to 5", plan)], AS_PACED)
    adapting, planned = adapting_job(job, never(), 0.0), planned_belief(job)
    for iteration in range(7):
        belief = adapting.after(iteration, world.seen(adapting.running, iteration)).belief
        assert (belief.paths == planned.paths) == (iteration not in {2, 3, 4})


def test_schedules_that_move_weights_and_solvers_are_no_candidates() -> None:
    plan = load_plan(LONGHAUL, PP4)
    found = adaptable_job(plan, choose(plan, ["1f1b", "zb-v", "crosspipe-ud", "pipemorph"]))
    assert [recipe.label for recipe in found.recipes] == ["1f1b", "pipemorph"]
    with pytest.raises(BadInput, match="one or more that need no solver"):
        adaptable_job(plan, choose(plan, ["crosspipe-ud"]))


def test_replicas_and_tensor_ranks_are_seen_by_their_place_in_the_pipeline() -> None:
    """Of three replicas' ranks with the same stages the slowest counts, since the others wait for it."""
    replicas = load_plan(LONGHAUL, PP4, settings=["parallelism={pipeline: 2, data: 2, tensor: 2}"])
    job = adaptable_job(replicas, choose(replicas, ["1f1b", "zb-h1"]))
    assert job.ranks.pipeline_ranks == (0, 0, 1, 1, 0, 0, 1, 1)
    world = OneJobsWorld(job, [], AS_PACED)
    running = Prospects(job).under(planned_belief(job))[0]
    trace = world.trace(running, 0)
    late = trace.actions["rank"] == 6
    trace.actions["end_s"][late] += 0.01
    found = sighting(trace, job.ranks, world.probes_s(0, running.setting))
    planned_s = planned_belief(job).slots
    assert {rank for rank, _ in found.slots} == {0, 1}
    for (rank, kind), slot in found.slots.items():
        assert slot.mean_s == pytest.approx(planned_s[rank, kind].value + 0.01 * (rank == 1))


def test_several_jobs_are_refused(tmp_path: File) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(PP4.read_text().replace("name: tiny-gpt-pp4", "name: other"))
    plan = load_plan(LONGHAUL, PP4, other, settings=["iterations=3"])
    with pytest.raises(BadInput, match="one job"):
        adaptable_job(plan, choose(plan, ["1f1b"]))
