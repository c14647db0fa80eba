"""Tensor ranks in plan and model: where they are, what they send, and that a stage begins when all of them can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made import fitting, quick

from testbed.errors import BadInput
from testbed.model.bounds import lower_bound
from testbed.model.execute import execute
from testbed.model.lower import Load, lower
from testbed.model.simulate import makespan, run, simulate
from testbed.pipeline.algorithms import Members, exchange
from testbed.pipeline.collectives import side_by_side
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import NO_TRANSFER, Exchanged, PipelineRoutes, Problem, Transfer
from testbed.plan import costs
from testbed.plan.framing import sent_and_acknowledged, wire_bytes
from testbed.plan.host_costs import GLOO_BYTES
from testbed.plan.mesh import Mesh
from testbed.plan.plan import Plan, TrafficKind
from testbed.plan.traffic import planned_traffic
from testbed.planning import file
from testbed.planning.left_out import warnings
from testbed.planning.resolve import generate, make_plan, with_cases
from testbed.spec.choice import ScheduleChoice
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.trace.tables import ALL_REDUCE, GRADIENT, MESSAGE_KINDS

ROOT = Path(__file__).parents[2]
CHOICE = ScheduleChoice(schedule="1f1b")


def plan(topology: str = "two-dc-longhaul", schedule: str = CHOICE.schedule, **settings: str) -> Plan:
    dotted = {"parallelism.pipeline": "2"} | {name.replace("__", "."): value for name, value in settings.items()}
    datacenters = {"datacenters": dotted.pop("cards")} if "cards" in dotted else {}
    workload = load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", dotted)
    made = make_plan(load_topology(ROOT / f"topologies/{topology}.yaml", datacenters), workload)
    choice = ScheduleChoice(schedule=schedule)
    return with_cases(made, [choice], {choice.label: generate(made, choice)})


def seconds(of: Plan) -> float:
    return float(costs.predict(of, CHOICE, generate(of, CHOICE).schedule).makespans()[0])


# --- where they are --------------------------------------------------------------------------------


def test_tensor_ranks_stand_beside_each_other() -> None:
    two = plan(parallelism__tensor="2", parallelism__data="2").jobs[0]
    assert two.mesh == Mesh(2, 2, 2)
    assert two.nodes[:4] == ("paris/0", "paris/1", "warsaw/0", "warsaw/1")
    assert two.nodes[4:] == ("paris/2", "paris/3", "warsaw/2", "warsaw/3")
    placed = plan(parallelism__tensor="2", parallelism__data="2", placement="[paris/3, paris/0, warsaw/1, warsaw/2]")
    assert placed.jobs[0].nodes == ("paris/3", "paris/0", "warsaw/1", "warsaw/2", *placed.jobs[0].nodes[4:])
    assert [node.split("/")[0] for node in placed.jobs[0].nodes[4:]] == ["paris", "paris", "warsaw", "warsaw"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"placement": "[paris/0, warsaw/0, paris/1, warsaw/1]"},
            r"placement\.1: got 'warsaw/0', expected a node of par",
        ),
        (
            {"data_parallel": "{replicas: [[paris/2, paris/3, paris/1, warsaw/1]]}", "parallelism__data": "2"},
            r"replicas\.0\.3: got 'warsaw/1', expected a node of paris, as the other tensor ranks of pipeline rank 1",
        ),
        ({"placement": "[paris/0, warsaw/0]"}, r"placement: got .*, expected one node for each of 4 ranks"),
        ({"model__heads": "1"}, r"parallelism\.tensor: got 2, expected a divisor of model\.heads \(1\)"),
        ({"parallelism__tensor": "3"}, r"parallelism\.tensor: got 3, expected 1, 2 or 4"),
        ({"parallelism__pipeline": "4", "parallelism__tensor": "4"}, r"\(2, each on 4 nodes\)"),
        (
            {"model": f"{{kind: {ROOT}/examples/my_model.py:Mlp, layers: 4}}"},
            r"parallelism\.tensor: got 2, expected 1: model .* does not say how to split its layers",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(settings: dict[str, str], line: str) -> None:
    with pytest.raises(BadInput, match=line):
        plan(**{"parallelism__tensor": "2"} | settings)


def test_a_plan_file_keeps_tensor_ranks_together() -> None:
    written = plan(parallelism__tensor="2")
    assert file.from_json(file.to_json(written), "plan.json") == written
    (job,) = written.jobs
    apart = replace(written, jobs=(replace(job, nodes=("paris/0", "warsaw/0", "paris/1", "warsaw/1")),))
    with pytest.raises(BadInput, match=r"got 'warsaw/0', expected a node of paris, as the other tensor ranks"):
        file.from_json(file.to_json(apart), "plan.json")


# --- what they send --------------------------------------------------------------------------------


def test_what_crosses_the_wide_area_does_not_grow_with_them() -> None:
    one, four = plan(message="1 MB"), plan(message="1 MB", parallelism__tensor="4")
    assert [of.jobs[0].workload.message_bytes() for of in (one, four)] == [1_000_000, 250_000]
    crossing = [planned_traffic(of, of.cases[0])[0] for of in (one, four)]
    assert crossing[1].messages == 4 * crossing[0].messages
    assert crossing[1].wire_bytes == pytest.approx(crossing[0].wire_bytes, rel=0.01)
    assert seconds(four) == pytest.approx(seconds(one), rel=1e-4)
    kinds = [flow.kind for flow in four.flows]
    assert kinds.count(TrafficKind.TENSOR_PARALLEL) == 2 * 4 * 3
    assert kinds.count(TrafficKind.ACTIVATION) == 4


def test_replicas_exchange_what_each_tensor_rank_has() -> None:
    split = plan(parallelism__tensor="2", parallelism__data="2")
    workload = split.jobs[0].workload
    # 4 blocks of 12 d^2 shared and 4 d of norms each; the first stage's embeddings are on every tensor rank
    largest = 4 * (12 * 64**2 // 2 + 4 * 64) + (256 + workload.model.sequence) * 64  # type: ignore[attr-defined]  # of the GPT
    assert workload.cell_bytes(2, 2) == 4 * largest / 2
    for collective in costs.problem(split, CHOICE).all_gather:
        ends = {(step.source, step.target) for step in collective.steps}
        assert ends == {(0, 2), (2, 0), (1, 3), (3, 1)}  # members are numbered replica by replica


def test_side_by_side_each_group_goes_through_the_whole_algorithm() -> None:
    alone = exchange("hierarchical", Members(("a", "a", "b"), sharded=False, chunks=2)).reduction
    both = side_by_side(alone, 2)
    for group in range(2):
        mine = [index for index, step in enumerate(both) if step.source % 2 == group]
        steps = [both[index] for index in mine]
        assert all(step.target % 2 == group for step in steps)
        ends = [(s.source // 2, s.target // 2) for s in steps]
        assert ends == [(s.source, s.target) for s in alone]
        assert [(s.cells, s.own, s.adds) for s in steps] == [(s.cells, s.own, s.adds) for s in alone]
        for waits in ("after", "behind"):
            found = [tuple(mine.index(before) for before in getattr(s, waits)) for s in steps]
            assert found == [getattr(s, waits) for s in alone]


def test_what_they_send_each_other_is_counted_on_network_cards() -> None:
    alone, split = (plan("two-dc-cards", message="1 MB", parallelism__tensor=t) for t in ("1", "2"))
    workload, m = split.jobs[0].workload, split.jobs[0].workload.microbatches
    card = len(split.network.directions)  # of paris/0, with four blocks and one boundary
    sums = 2 * 2 * 4 * m * (wire_bytes(workload.tensor_bytes()) + GLOO_BYTES)
    parts = m * (wire_bytes(workload.tensor_bytes() // 2) + GLOO_BYTES)
    message = m * (wire_bytes(workload.message_bytes()) + GLOO_BYTES)
    (planned,) = planned_traffic(split, split.cases[0])[card : card + 1]
    assert planned.wire_bytes == pytest.approx(sums + parts + message, rel=0.02)
    assert not any("tensor ranks" in line for line in (*warnings(split), *warnings(alone)))
    slow = "{paris: {nodes: 4, inside: {delay: 10 us, rate: 200 Mbit/s}}, warsaw: {nodes: 4}}"
    short = plan(
        "two-dc-cards", parallelism__tensor="2", pacing="{F: 9 ms, I: 9 ms, W: 9 ms}", message="100 kB", cards=slow
    )
    (line,) = (line for line in warnings(short) if "tensor ranks" in line)
    assert "F of stage 0" in line


def test_slots_need_room_behind_what_replicas_send_in_them() -> None:
    """The gradients of a rank's last stage are reduced while its first stage is still at work."""
    slow = "{paris: {nodes: 4, inside: {delay: 10 us, rate: 1 Gbit/s}}, warsaw: {nodes: 4}}"
    for parameters, reported in (("100 kB", False), ("40 MB", True)):
        reduced = f"{{sharding: none, algorithm: ring, parameters: {parameters}}}"
        mesh = {"parallelism__pipeline": "1", "parallelism__data": "2", "parallelism__tensor": "2"}
        paced = {"pacing": "{F: 40 ms, I: 40 ms, W: 40 ms}", "message": "100 kB"}
        lines = warnings(plan("two-dc-cards", "zb-v", cards=slow, data_parallel=reduced, **mesh, **paced))
        assert any("tensor ranks" in line for line in lines) == reported


@pytest.mark.parametrize("order", [("paris", "warsaw"), ("warsaw", "paris")])
def test_only_the_replicas_with_cards_send_each_other_over_them(order: tuple[str, str]) -> None:
    """Whichever comes first: the one in Paris has cards, and no room in its slots."""
    first, second = ([f"{name}/0", f"{name}/1"] for name in order)
    split = plan(
        "two-dc-cards",
        parallelism="{pipeline: 1, data: 2, tensor: 2}",
        placement=f"[{', '.join(first)}]",
        data_parallel=f"{{replicas: [[{', '.join(second)}]]}}",
        pacing="{F: 9 ms, I: 9 ms, W: 9 ms}",
        message="100 kB",
        cards="{paris: {nodes: 4, inside: {delay: 10 us, rate: 200 Mbit/s}}, warsaw: {nodes: 4}}",
    )
    (line,) = (line for line in warnings(split) if "tensor ranks" in line)
    assert "F of stage 0" in line
    program, _ = lower([Load(costs.problem(split, CHOICE), generate(split, CHOICE).schedule)])
    assert (program.card >= 0).tolist() == [name == "paris" for name in order for _ in range(2)]
    assert (program.sums > 0).any()


def test_what_they_send_each_other_occupies_network_cards() -> None:
    """From the start of an action on: what the action makes goes behind it."""
    split = plan("two-dc-cards", parallelism__tensor="2")
    problem, schedule = costs.problem(split, CHOICE), generate(split, CHOICE).schedule
    sent = sent_and_acknowledged(
        split.jobs[0].workload.tensor_bytes(), split.framing.gso_bytes["paris"], GLOO_BYTES, 114
    )
    assert problem.exchanged[0].forward == sent
    assert problem.exchanged[0].forward_sums == 2 * 4, "two sums in each of four blocks"
    per_byte_s = problem.links[problem.pipelines[0].rank_cards[1]].seconds_per_byte
    more = replace(
        problem,
        exchanged=(
            Exchanged(NO_TRANSFER, NO_TRANSFER),
            Exchanged(NO_TRANSFER, Transfer((problem.whole_backward_s(1) + 5e-3) / per_byte_s)),
        ),
    )
    ways_s = []
    for one in (problem, more):
        rows = simulate(one, schedule).messages
        first = rows[(rows["kind"] == GRADIENT) & (rows["microbatch"] == 0)]
        ways_s.append((first["arrived_s"] - first["sent_s"]).max())
    # but for the announcement of the exchange, which is on the card before it
    assert ways_s[1] - ways_s[0] == pytest.approx(5e-3, abs=1e-6)


# --- when they begin -------------------------------------------------------------------------------


def split_in_two(problem: Problem, slow_s: float) -> Problem:
    """A problem whose messages are sent by two tensor ranks; those of the second go over links of their own."""
    first = len(problem.links)
    links = (*problem.links, LinkCost(slow_s, 0.0))
    routes = {pair: (first,) * len(route) for pair, route in problem.pipelines[0].routes.items()}
    numbers = tuple(tuple(2 * rank + tensor_rank for rank in range(problem.n_ranks)) for tensor_rank in range(2))
    pipelines = (*problem.pipelines, PipelineRoutes(routes))
    return replace(problem, links=links, pipelines=pipelines, tensor=2, numbers=numbers)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "crosspipe-greedy", "interleaved-1f1b", "zb-v"])
def test_a_stage_begins_when_all_of_its_tensor_ranks_have_their_input(name: str) -> None:
    """The ranks act as one whose messages always take the slower of both ways."""
    fast = fitting(name, 3, 4, delay_s=0.5)
    slow = fitting(name, 3, 4, delay_s=2.0)
    schedule = quick(name, slow)
    both = simulate(split_in_two(fast, 2.0), schedule)
    expected = simulate(slow, schedule)
    assert both.makespans()[0] == pytest.approx(expected.makespans()[0])
    assert both.bubble_ratios()[0] == pytest.approx(expected.bubble_ratios()[0])
    assert list(both.actions["rank"]) == sorted(both.actions["rank"])
    for tensor_rank in range(2):
        mine = both.actions[both.actions["rank"] % 2 == tensor_rank]
        np.testing.assert_allclose(mine["start_s"], expected.actions["start_s"])
        assert list(mine["rank"] // 2) == list(expected.actions["rank"])


def test_compiled_and_interpreted_agree_and_no_bound_is_broken() -> None:
    split = split_in_two(fitting("zb-h1", 3, 6, delay_s=0.5, wire_s=0.25), 1.0)
    schedule = quick("zb-h1", split)
    program, _ = lower([Load(split, schedule)])
    plain, compiled = execute(program, program.in_order()), run(program, compiled=True)
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_array_equal(one, other)
    assert lower_bound(split).seconds <= makespan(split, schedule)


@pytest.mark.parametrize("receives", ["early", "late"])
def test_what_a_rank_sends_at_one_instant_leaves_together(receives: str) -> None:
    """The last gradient and the share of the reduction behind it, before those of the other tensor rank."""
    of = plan(
        receives=receives,
        parallelism__data="2",
        parallelism__tensor="2",
        placement="[paris/0, paris/1, warsaw/0, warsaw/1]",
        data_parallel="{replicas: [[warsaw/2, warsaw/3, paris/2, paris/3]], parameters: 1 MB, sharding: none}",
    )
    trace = costs.predict(of, CHOICE, generate(of, CHOICE).schedule)
    rows = trace.messages
    last = rows["sent_s"] == rows["sent_s"][(rows["source_rank"] == 2) & (rows["kind"] == GRADIENT)].max()
    across = np.isin(rows["source_rank"], (2, 3)) & (np.isin(rows["kind"], (GRADIENT, ALL_REDUCE)))
    mine = np.sort(rows[last & across], order="arrived_s")
    assert mine["source_rank"].tolist() in ([2, 2, 3, 3], [3, 3, 2, 2])
    assert [MESSAGE_KINDS[kind] for kind in mine["kind"]] == ["gradient", "all-reduce"] * 2
