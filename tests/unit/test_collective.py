"""Data-parallel collectives in the model: by hand, on links of their own and on links that messages share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made import fitting, quick

from testbed.model.bounds import lower_bound
from testbed.model.bubble import time_by_cause
from testbed.model.gather import gathered, idle_gather_s, idle_reduction_s
from testbed.model.lower import Load
from testbed.model.simulate import makespan as seconds
from testbed.model.simulate import simulate, simulate_jobs
from testbed.pipeline.algorithms import Members, exchange
from testbed.pipeline.collectives import NO_COLLECTIVE, Collective
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import PipelineRoutes, Problem, uniform
from testbed.schedule.registry import generate
from testbed.trace.tables import MESSAGE_KINDS


def makespan(problem: Problem, name: str = "1f1b") -> float:
    return float(simulate(problem, generate(name, problem)).makespans()[0])


def gathering(members: int, size: float, routes: dict[tuple[int, int], tuple[int, ...]]) -> Collective:
    return Collective(exchange("ring", Members(("",) * members, True)).gather, {1: size}, routes, {}, "all-gather")


def reduction(members: int, size: float, routes: dict[tuple[int, int], tuple[int, ...]]) -> Collective:
    return Collective(exchange("ring", Members(("",) * members, True)).reduction, {1: size}, routes)


def own_ring(problem: Problem, delay_s: float, wire_s: float, stage: int, members: int = 2) -> Problem:
    """The problem with further replicas beside it; those of one stage have a ring with links of its own."""
    first = len(problem.links)
    links = (*problem.links, *[LinkCost(delay_s, wire_s)] * members)
    routes: dict[tuple[int, int], tuple[int, ...]] = {(i, (i + 1) % members): (first + i,) for i in range(members)}
    rings = [
        tuple(what if s == stage else NO_COLLECTIVE for s in range(problem.n_stages))
        for what in (gathering(members, 1.0, routes), reduction(members, 1.0, routes))
    ]
    pipelines = (*problem.pipelines, *[PipelineRoutes()] * (members - 1))
    return replace(problem, links=links, pipelines=pipelines, all_gather=rings[0], reductions=rings[1])


def kind(messages: np.ndarray, name: str) -> np.ndarray:
    return messages[messages["kind"] == MESSAGE_KINDS.index(name)]  # type: ignore[no-any-return]


def test_the_first_stage_pays_gather_and_reduction_in_full() -> None:
    """Nothing can run before rank 0 has its parameters, and rank 0 ends last: 7 s and 7 s on top."""
    plain = uniform(4, 8)
    assert makespan(own_ring(plain, 2, 5, stage=0)) == makespan(plain) + 14


def test_steps_of_a_ring_follow_each_other() -> None:
    plain = uniform(4, 8)
    ring = own_ring(plain, 2, 5, stage=0, members=4)
    assert makespan(ring) == makespan(plain) + 2 * 3 * (2 + 5)
    assert (idle_gather_s(ring, 0), idle_reduction_s(ring, 0)) == (21, 21)
    assert gathered(ring).ready_s == (21, 0, 0, 0)


def test_a_slow_edge_is_passed_by_every_share_in_turn() -> None:
    """Three members, one edge at 9 s a message, the others at 1 s: dependencies decide, not rounds in step."""
    ring = own_ring(uniform(1, 1), 0, 1, stage=0, members=3)
    links = (LinkCost(0.0, 9.0), *ring.links[1:])
    slow = replace(ring, links=links)
    messages = kind(simulate(slow, generate("gpipe", slow)).messages, "all-gather")
    # 0 -> 1: its own share 0-9, then what came from member 2 at 1: 9-18; 1 -> 2: 0-1, and 0's share 9-10
    assert sorted(messages["arrived_s"].tolist()) == [1, 1, 2, 9, 10, 18]


def test_the_last_stage_hides_what_fits_into_the_fill() -> None:
    """Rank 3 begins at 3 s, and its last gradient is ready 3 input gradients and a W before rank 0's."""
    plain = uniform(4, 8)
    schedule = generate("1f1b", plain)
    ends = simulate(plain, schedule).actions
    slack = ends["end_s"].max() - ends["end_s"][ends["rank"] == 3].max()
    assert slack == 6
    assert makespan(own_ring(plain, 1, 2, stage=3)) == makespan(plain)
    # one second more than its fill of 3 s, and one more than its slack behind: the first delays all, the second not
    assert makespan(own_ring(plain, 2, 2, stage=3)) == makespan(plain) + 1


def test_messages_wait_for_a_gather_on_their_link() -> None:
    """Rank 1's parameters take the link to it until 10; F0 is ready at 1 and waits."""
    pair = uniform(2, 1, wire_s=1)
    ring = gathering(2, 10.0, {(1, 0): (0,)})
    shared = replace(pair, pipelines=(*pair.pipelines, PipelineRoutes()), all_gather=(NO_COLLECTIVE, ring))
    messages = simulate(shared, generate("gpipe", shared)).messages
    assert kind(messages, "activation")["arrived_s"].max() == 11.0
    gather = kind(messages, "all-gather")
    assert (gather["stage"].tolist(), gather["microbatch"].tolist()) == ([1, 1], [0, 0])
    assert gather["arrived_s"].tolist() == [0.0, 10.0]


def test_a_gradient_waits_for_a_reduction_on_its_link() -> None:
    """Both are ready when rank 1's full backward ends: the message goes first, the reduction behind it."""
    ring = reduction(2, 10.0, {(0, 1): (1,)})
    alone = uniform(2, 1, wire_s=1)
    pair = replace(alone, pipelines=(*alone.pipelines, PipelineRoutes()), reductions=(NO_COLLECTIVE, ring))
    messages = simulate(pair, generate("gpipe", pair)).messages
    first = messages[messages["source_rank"] < 2]
    # F0 0-1, on the wire 1-2, F 2-3, B 3-5; the gradient takes the link 5-6, then the reduction 6-16
    assert kind(first, "gradient")["arrived_s"].tolist() == [6.0]
    reduced = kind(first, "reduce-scatter")
    assert (reduced["sent_s"].tolist(), reduced["arrived_s"].tolist()) == ([5.0], [16.0])
    assert simulate(pair, generate("gpipe", pair)).makespans()[0] == 16


def test_a_replica_stands_for_itself() -> None:
    """The second pipeline crosses a slow link, the first does not: the slower decides, whichever is listed first."""
    links = (LinkCost(10.0, 0.0), LinkCost(10.0, 0.0))
    far, near = PipelineRoutes({(0, 1): (0,), (1, 0): (1,)}), PipelineRoutes()
    near_first = replace(uniform(2, 4), links=links, pipelines=(near, far))
    far_first = replace(uniform(2, 4), links=links, pipelines=(far, near))
    alone = replace(uniform(2, 4), links=links, pipelines=(far,))
    assert makespan(near_first) == makespan(far_first) == makespan(alone) > makespan(uniform(2, 4))


def test_jobs_share_the_links_and_begin_when_they_should() -> None:
    job = uniform(2, 4, wire_s=1, memory=4.0)
    schedule = generate("gpipe", job)
    alone = float(simulate(job, schedule).makespans()[0])
    together = simulate_jobs([Load(job, schedule), Load(job, schedule)])
    later = simulate_jobs([Load(job, schedule), Load(job, schedule, start_s=1000.0)])
    assert together.makespans()[0] > alone
    ends = {rank: later.actions["end_s"][later.actions["rank"] == rank].max() for rank in range(4)}
    assert max(ends[0], ends[1]) == alone
    assert max(ends[2], ends[3]) == 1000 + alone
    with pytest.raises(ValueError, match="share one network"):
        simulate_jobs([Load(job, schedule), Load(uniform(2, 4, wire_s=2, memory=4.0), schedule)])


@pytest.mark.parametrize(("name", "more"), [("crosspipe-greedy", 0), ("wave-greedy", 0), ("search", 1)])
def test_schedules_made_for_the_links_know_of_the_gather(name: str, more: float) -> None:
    """A gather that holds up the first stage costs its own time and no more, and the bound says so too.

    A search this short may end a slot off.
    """
    plain = fitting(name, 4, 8, delay_s=2, cuts=(1,), memory=4.0)
    late = own_ring(plain, 0, 6, stage=0)
    before = seconds(plain, quick(name, plain))
    after = seconds(late, quick(name, late))
    assert after <= before + 12 + more + 1e-9
    assert lower_bound(late).seconds >= lower_bound(plain).seconds + 6


@pytest.mark.parametrize("name", ["wave-greedy", "search"])
def test_schedules_that_are_judged_by_the_model_know_of_the_reduction(name: str) -> None:
    """The last stage's reduction takes 20 s: a schedule made without it ends later than one made for it."""
    plain = fitting(name, 4, 8, delay_s=2, cuts=(1,), memory=4.0)
    reduced = replace(own_ring(plain, 0, 20, stage=3), all_gather=())
    blind = quick(name, plain)
    assert seconds(reduced, quick(name, reduced)) < seconds(reduced, blind)


def test_data_parallelism_is_a_cause_of_its_own() -> None:
    plain = uniform(4, 8, delay_s=1, cuts=(1,))
    schedule = generate("1f1b", plain)
    causes = time_by_cause(own_ring(plain, 2, 5, stage=0), schedule)
    assert causes.data_parallel_s == 14
    assert causes._replace(data_parallel_s=0.0) == time_by_cause(plain, schedule)
