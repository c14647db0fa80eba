"""A data-parallel plan: where the replicas are, and what of their traffic crosses the wide area."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.judge.fidelity import order_check
from testbed.judge.messages import Likeness, message_times
from testbed.model.simulate import makespan
from testbed.plan.costs import largest_burst_bytes, predict, problem
from testbed.plan.framing import wire_bytes
from testbed.plan.host_costs import GLOO_BYTES, SHARED_STAGGER_S, SHARED_STAGGER_S_PER_BYTE, STAGGER_S_PER_BYTE
from testbed.plan.memory_bytes import buffer_bytes
from testbed.plan.plan import Clock, Plan
from testbed.plan.traffic import planned_traffic
from testbed.planning.left_out import warnings
from testbed.planning.resolve import generate, make_plan, pipeline_nodes, require_trainable, with_cases, with_clock
from testbed.planning.schedules import choose
from testbed.spec.choice import ScheduleChoice
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.trace.tables import ALL_GATHER

ROOT = Path(__file__).parents[2]
CHOICE = ScheduleChoice(schedule="1f1b")


def plan(**settings: str) -> Plan:
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", dotted)
    return make_plan(load_topology(ROOT / "topologies/two-dc-longhaul.yaml"), workload)


def _makespan(of: Plan, choice: ScheduleChoice) -> float:
    return float(predict(of, choice, generate(of, choice).schedule).makespans()[0])


def test_replicas_stand_beside_each_other_and_share_the_wide_area() -> None:
    two = plan(parallelism__data="2")
    assert pipeline_nodes(two.jobs[0]) == ("paris/0", "paris/1", "warsaw/0", "warsaw/1")
    assert pipeline_nodes(two.jobs[0], 1) == ("paris/2", "paris/3", "warsaw/2", "warsaw/3")
    shared = problem(two, CHOICE)
    # parameters stay inside a datacenter; on the cut both pipelines' messages meet
    assert all(ring.routes == {} for ring in (*shared.all_gather, *shared.reductions))
    assert [p / m for p, m in zip(shared.planned_bytes, shared.message_bytes, strict=True)] == [1, 2, 1]
    assert [pipeline.route(1, 2) for pipeline in shared.pipelines] == [(0,), (0,)]


def test_ranks_begin_one_after_the_other_so_that_no_link_is_shared_by_chance() -> None:
    two = plan(parallelism__data="2")
    schedule = generate(two, CHOICE).schedule
    begins_s = problem(two, CHOICE).begins_s
    trace = predict(two, CHOICE, schedule)
    firsts = trace.actions[(trace.actions["stage"] == 0) & (trace.actions["microbatch"] == 0)]
    reached = {int(row["replica"]): float(row["reached_s"]) for row in firsts if row["kind"] == 0}
    assert reached == pytest.approx({0: 0.0, 1: begins_s[4]})
    gathers = trace.messages[trace.messages["kind"] == ALL_GATHER]
    begins = {int(row["source_rank"]): float(row["sent_s"]) for row in gathers}
    assert begins == pytest.approx(dict(enumerate(begins_s)))
    assert list(begins_s) == sorted(set(begins_s)), "no two at once"
    assert problem(plan(), CHOICE).begins_s == (), "a single pipeline has nobody to wait for"


def test_on_a_real_clock_ranks_that_begin_on_one_link_are_further_apart() -> None:
    within, across = plan(parallelism__data="2"), _apart()

    def more_on_a_real_clock(made: Plan) -> list[float]:
        real, virtual = (problem(with_clock(made, Clock(name)), CHOICE).begins_s for name in ("real", "virtual"))
        return [one - other for one, other in zip(real, virtual, strict=True)]

    more = more_on_a_real_clock(across)
    # 2 MB and headers from each of four ranks on either side; a guest takes no time for a byte
    size = wire_bytes(2e6) + GLOO_BYTES
    shared_s, each_s = SHARED_STAGGER_S + SHARED_STAGGER_S_PER_BYTE * size, STAGGER_S_PER_BYTE * size
    assert more == pytest.approx([rank * each_s + rank % 4 * shared_s for rank in range(8)], rel=1e-3)
    more = more_on_a_real_clock(within)
    assert more == pytest.approx([rank * more[1] for rank in range(8)]), "parameters stay inside a datacenter"


def _apart() -> Plan:
    """A pipeline in each datacenter."""
    return plan(
        parallelism__data="2",
        placement="[paris/0, paris/1, paris/2, paris/3]",
        data_parallel="{replicas: [[warsaw/0, warsaw/1, warsaw/2, warsaw/3]], parameters: 4 MB}",
    )


def test_a_pipeline_in_each_datacenter_reduces_across_the_wide_area() -> None:
    apart = with_clock(_apart(), Clock("virtual"))
    # two replicas: half of the bytes to the other, once, in both directions
    for ring in problem(apart, CHOICE).all_gather:
        assert (ring.wire_bytes, ring.routes) == ({1: wire_bytes(2e6) + GLOO_BYTES}, {(0, 1): (0,), (1, 0): (1,)})
        assert len(ring.steps) == 2
    seconds = [_makespan(apart, choice) for choice in choose(apart, ["1f1b"])]
    alone = plan(placement="[paris/0, paris/1, paris/2, paris/3]")
    wire_s, delay_s = 2e6 * 8 / 1e9, 0.0102
    assert seconds[0] - _makespan(alone, CHOICE) == pytest.approx(2 * (wire_s + delay_s), rel=0.02)


def test_parameters_default_to_those_of_the_largest_stage() -> None:
    workload = plan(parallelism__data="2").jobs[0].workload
    # 2 blocks of 4 d^2 + 2 d (4 d) weights and 4 d of norms; the first stage has embeddings of bytes and positions too
    largest = 2 * (12 * 64**2 + 4 * 64) + (256 + workload.model.sequence) * 64  # type: ignore[attr-defined]  # of the GPT
    assert workload.stage_bytes(4) == 4 * largest
    assert workload.cell_bytes(4, 2) == 4 * largest / 2
    given = plan(parallelism__data="2", data_parallel="{parameters: 4 MB}").jobs[0].workload
    assert [given.stage_bytes(stages) for stages in (4, 8)] == [4e6, 2e6]


def test_parameters_are_at_least_those_that_the_model_has() -> None:
    require_trainable(plan(parallelism__data="2"))
    few = with_choices(plan(parallelism__data="2", data_parallel="{parameters: 100 kB}"))
    with pytest.raises(BadInput, match=r"data_parallel.parameters: got '100 kB', expected at least .* largest stage"):
        require_trainable(few)


def with_choices(of: Plan, choice: ScheduleChoice = CHOICE) -> Plan:
    return with_cases(of, [choice], {choice.label: generate(of, choice)})


def test_what_crosses_every_direction_is_planned_with_the_replicas_messages() -> None:
    """A pipeline in each datacenter: nothing but parameters and gradients, half of a stage's each, crosses."""
    apart = with_choices(
        plan(
            parallelism__data="2",
            placement="[paris/0, paris/1, paris/2, paris/3]",
            data_parallel="{replicas: [[warsaw/0, warsaw/1, warsaw/2, warsaw/3]], parameters: 4 MB}",
        )
    )
    there, back = planned_traffic(apart, apart.cases[0])
    assert there == back
    # per stage a gather and a reduction, and as many are acknowledged
    assert there.messages == 4 * 2 * 2
    assert there.wire_bytes == pytest.approx(8 * (wire_bytes(2_000_000) + GLOO_BYTES), rel=0.01)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("algorithm: tree", r"data_parallel.algorithm: got 'tree', expected .*hierarchical"),
        ("algorithm: torch", r"data_parallel.algorithm: got 'torch', expected sharding: none"),
        ("sharding: zero-3", r"data_parallel.sharding: got 'zero-3', expected .*zero-1"),
        ("algorithm: hierarchical, chunks: 0", r"data_parallel.chunks: got 0, expected"),
        ("chunks: 2", r"data_parallel.chunks: got 2, expected algorithm: hierarchical beside it"),
    ],
)
def test_an_exchange_that_there_is_not_is_refused_in_one_line(asked: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        plan(parallelism__data="2", data_parallel=f"{{{asked}}}")
    assert "\n" not in str(refused.value)


def two_by_two(asked: str) -> Plan:
    """A stage of 4 MB with two replicas in each of two datacenters."""
    replicas = "[[paris/1], [warsaw/0], [warsaw/1]]"
    return plan(
        parallelism="{pipeline: 1, data: 4}",
        microbatches="1",
        placement="[paris/0]",
        message="null",
        data_parallel=f"{{{asked}, replicas: {replicas}, parameters: 4 MB}}",
    )


def test_without_shards_nothing_is_gathered_and_two_levels_cross_once() -> None:
    """All-reduce of 4 MB over 1 Gbit/s and 10.2 ms: two levels take 1 delay and 4 MB each way.

    A ring of four takes 6 MB, two of its messages of 1 MB cross at once, and three such pairs wait for each other.
    """
    two_levels, ring = two_by_two("sharding: none, algorithm: hierarchical"), two_by_two("sharding: none")
    alone_s = 0.06
    for of, delays, in_turn, megabytes in ((two_levels, 1, 4, 4), (ring, 3, 4, 6)):
        costs = problem(of, CHOICE)
        assert (costs.all_gather, costs.reduction(0).kind) == ((), "all-reduce")
        exchanged_s = _makespan(of, CHOICE) - alone_s
        assert exchanged_s == pytest.approx(delays * 0.0102 + 8e-3 * in_turn, rel=0.015)
        there, back = planned_traffic(with_choices(of), with_choices(of).cases[0])
        assert there.wire_bytes == pytest.approx(1e6 * megabytes, rel=0.015)
        assert back.wire_bytes == pytest.approx(1e6 * megabytes, rel=0.015)


def test_both_halves_of_zero_1_cross_once_too() -> None:
    """Two levels: half of the 4 MB each way before the first F, and again after the last W."""
    two_levels = two_by_two("algorithm: hierarchical")
    assert _makespan(two_levels, CHOICE) - 0.06 == pytest.approx(2 * (0.0102 + 8e-3 * 2), rel=0.02)


def test_gloos_own_all_reduce_is_said_not_to_be_modelled() -> None:
    assert any("gloo's own all-reduce" in line for line in warnings(two_by_two("sharding: none, algorithm: torch")))
    assert warnings(two_by_two("sharding: none")) == []


def test_a_rank_that_sends_all_its_gradients_at_once_has_room_for_them() -> None:
    whole = two_by_two("sharding: none, algorithm: hierarchical, chunks: 2")
    of, both_stages = with_choices(whole), with_choices(whole, ScheduleChoice(schedule="zb-v"))
    assert 4_000_000 < largest_burst_bytes(of) < 4_000_000 * 1.05, "in whole segments"
    # halves of it, and each is reduced by itself
    assert 4_000_000 < largest_burst_bytes(both_stages) < 4_000_000 * 1.1
    # a member receives 3/4 of the vector once inside and once between, for two iterations, and sends from one message
    assert buffer_bytes(of) > 4 * 2 * 4_000_000


def test_what_a_replica_sends_is_compared_with_what_it_was_to_send() -> None:
    """Also where all pipelines are alike: some of their messages stay in a datacenter, others do not."""
    of = two_by_two("sharding: none")
    predicted = predict(of, CHOICE, generate(of, CHOICE).schedule)
    measured = replace(predicted, messages=predicted.messages.copy())
    measured.messages["awaited"] = True
    for column in ("sent_s", "arrived_s", "taken_s"):
        measured.messages[column] += 0.0003 * (3 - measured.messages["source_rank"])
    times = message_times(measured, predicted, paced=True, ranks=Likeness(problem(of, CHOICE).first_like))
    assert abs(times.arrival_off_s[~np.isnan(times.arrival_off_s)]).max() == pytest.approx(0.0009)


def test_of_messages_that_share_a_link_chance_may_tell_which_comes_first() -> None:
    of = plan(
        parallelism__pipeline="2",
        parallelism__data="2",
        placement="[paris/0, paris/1]",
        data_parallel="{replicas: [[warsaw/0, warsaw/1]], parameters: 4 MB}",
    )
    predicted = predict(of, CHOICE, generate(of, CHOICE).schedule)
    measured = replace(predicted, messages=predicted.messages.copy())
    rows = measured.messages
    rows["awaited"] = True
    there = np.flatnonzero((rows["kind"] == ALL_GATHER) & (rows["source_rank"] < 2))
    assert len(there) == 2
    rows["arrived_s"][there] = rows["taken_s"][there] = rows["arrived_s"][there][::-1]
    first_like = problem(of, CHOICE).first_like
    one_by_one = message_times(measured, predicted, paced=True, ranks=Likeness(first_like)).extra_s[there]
    assert abs(one_by_one).min() > 0.01
    sites = ("paris", "paris", "warsaw", "warsaw")
    together = message_times(measured, predicted, paced=True, ranks=Likeness(first_like, sites=sites))
    assert together.extra_s[there] == pytest.approx([0, 0], abs=1e-9)
    # what it came out of turn by is not lost with that
    assert together.median_overtaken_s() == pytest.approx(abs(one_by_one).max())
    within, beyond = (order_check(together.median_overtaken_s(), length_s) for length_s in (1e3, 1e-3))
    assert within.ok
    assert "out of turn" in beyond.reasons[0]


def test_a_job_with_another_replica_first_is_the_same_job() -> None:
    """Also for its collectives: the reduction takes as long whichever replica is looked at first."""
    of = plan(
        parallelism__pipeline="2",
        parallelism__data="3",
        placement="[paris/0, paris/1]",
        data_parallel="{replicas: [[warsaw/0, paris/2], [warsaw/1, warsaw/2]], parameters: 4 MB}",
    )
    one = replace(problem(of, CHOICE), begins_s=())
    schedule = generate(of, CHOICE).schedule
    views = one.with_each_first()
    assert len(views) > 1
    assert [makespan(view, schedule) for view in views] == pytest.approx([makespan(one, schedule)] * len(views))
