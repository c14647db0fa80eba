"""A data-parallel plan: where the replicas are, and what of their traffic crosses the wide area."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.plan.costs import predict, problem
from testbed.plan.framing import wire_bytes
from testbed.plan.host_costs import GLOO_BYTES
from testbed.plan.plan import Plan
from testbed.plan.resolve import generate, make_plan, pipeline_nodes, require_trainable, with_cases
from testbed.plan.schedules import choose
from testbed.plan.traffic import planned_traffic
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
    assert all(ring.routes == {} for ring in (*shared.all_gather, *shared.reduce_scatter))
    assert [p / m for p, m in zip(shared.planned_bytes, shared.message_bytes, strict=True)] == [1, 2, 1]
    assert [paths.route(1, 2) for paths in shared.paths] == [(0,), (0,)]


def test_ranks_begin_one_after_the_other_so_that_no_link_is_shared_by_chance() -> None:
    two = plan(parallelism__data="2")
    schedule = generate(two, CHOICE).schedule
    turn_s = problem(two, CHOICE).turn_s
    assert turn_s > 0
    trace = predict(two, CHOICE, schedule)
    firsts = trace.actions[(trace.actions["stage"] == 0) & (trace.actions["microbatch"] == 0)]
    reached = {int(row["replica"]): float(row["reached_s"]) for row in firsts if row["kind"] == 0}
    assert reached == pytest.approx({0: 0.0, 1: 4 * turn_s})
    gathers = trace.messages[trace.messages["kind"] == ALL_GATHER]
    begins = {int(row["source_rank"]): float(row["sent_s"]) for row in gathers}
    assert begins == pytest.approx({rank: rank * turn_s for rank in range(8)})
    assert problem(plan(), CHOICE).turn_s == 0, "a single pipeline has nobody to wait for"


def test_a_pipeline_in_each_datacenter_reduces_across_the_wide_area() -> None:
    apart = plan(
        parallelism__data="2",
        placement="[paris/0, paris/1, paris/2, paris/3]",
        data_parallel="{replicas: [[warsaw/0, warsaw/1, warsaw/2, warsaw/3]], parameters: 4 MB}",
    )
    # two replicas: half of the bytes to the other, once, in both directions
    for ring in problem(apart, CHOICE).all_gather:
        assert (ring.wire_bytes, ring.routes) == (wire_bytes(2e6) + GLOO_BYTES, {(0, 1): (0,), (1, 0): (1,)})
        assert len(ring.steps) == 2
    seconds = [_makespan(apart, choice) for choice in choose(apart, ["1f1b"])]
    alone = plan(placement="[paris/0, paris/1, paris/2, paris/3]")
    wire_s, delay_s = 2e6 * 8 / 1e9, 0.0102
    assert seconds[0] - _makespan(alone, CHOICE) == pytest.approx(2 * (wire_s + delay_s), rel=0.02)


def test_parameters_default_to_those_of_the_largest_stage() -> None:
    workload = plan(parallelism__data="2").jobs[0].workload
    # 2 blocks of 4 d^2 + 2 d (4 d) weights and 4 d of norms; the first stage has embeddings of bytes and positions too
    largest = 2 * (12 * 64**2 + 4 * 64) + (256 + workload.model.sequence) * 64
    assert workload.stage_bytes(4) == 4 * largest
    assert workload.shard_bytes(4) == 4 * largest / 2
    given = plan(parallelism__data="2", data_parallel="{parameters: 4 MB}").jobs[0].workload
    assert [given.stage_bytes(stages) for stages in (4, 8)] == [4e6, 2e6]


def test_parameters_are_at_least_those_that_the_model_has() -> None:
    require_trainable(plan(parallelism__data="2"))
    few = with_choices(plan(parallelism__data="2", data_parallel="{parameters: 100 kB}"))
    with pytest.raises(BadInput, match=r"data_parallel.parameters: got '100 kB', expected at least .* largest stage"):
        require_trainable(few)


def with_choices(of: Plan) -> Plan:
    return with_cases(of, [CHOICE], {CHOICE.label: generate(of, CHOICE)})


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
