"""Data-parallel collectives in the model: by hand, on links of their own and on links that messages share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import fitting, quick

from testbed.model.bounds import lower_bound
from testbed.model.bubble import time_by_cause
from testbed.model.simulate import simulate
from testbed.pipeline.collective import NO_COLLECTIVE, Collective
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import Problem, uniform
from testbed.schedule.registry import generate
from testbed.trace.tables import ACTIVATION, ALL_GATHER, GRADIENT, NO_MICROBATCH, REDUCE_SCATTER


def makespan(problem: Problem, name: str = "1f1b") -> float:
    return float(simulate(problem, generate(name, problem)).makespans()[0])


def own_link(problem: Problem, delay_s: float, wire_s: float, stage: int, rounds: int = 1) -> Problem:
    """The problem with a ring of one stage on a further link."""
    ring = Collective(((len(problem.links),),), 1.0, rounds)
    rings = tuple(ring if s == stage else NO_COLLECTIVE for s in range(problem.n_stages))
    links = (*problem.links, LinkCost(delay_s, wire_s))
    return replace(problem, links=links, all_gather=rings, reduce_scatter=rings)


def test_the_first_stage_pays_gather_and_reduction_in_full() -> None:
    """Nothing can run before rank 0 has its parameters, and rank 0 ends last: 7 s and 7 s on top."""
    plain = uniform(4, 8)
    assert makespan(own_link(plain, 2, 5, stage=0)) == makespan(plain) + 14


def test_rounds_of_a_ring_pay_the_delay_each() -> None:
    plain = uniform(4, 8)
    assert makespan(own_link(plain, 2, 5, stage=0, rounds=3)) == makespan(plain) + 2 * (3 * 2 + 5)


def test_the_last_stage_hides_what_fits_into_the_fill() -> None:
    """Rank 3 begins at 3 s, and its last gradient is ready 3 input gradients and a W before rank 0's."""
    plain = uniform(4, 8)
    schedule = generate("1f1b", plain)
    ends = simulate(plain, schedule).actions
    slack = ends["end_s"].max() - ends["end_s"][ends["rank"] == 3].max()
    assert slack == 6
    assert makespan(own_link(plain, 1, 2, stage=3)) == makespan(plain)
    # one second more than its fill of 3 s, and one more than its slack behind: the first delays all, the second not
    assert makespan(own_link(plain, 2, 2, stage=3)) == makespan(plain) + 1


def test_messages_wait_for_a_gather_on_their_link() -> None:
    """Rank 0's parameters come from beside it, rank 1's take the link to it until 10; F0 is ready at 1 and waits."""
    pair = uniform(2, 1, wire_s=1)
    rings = (NO_COLLECTIVE, Collective(((0,),), 10.0, 1))
    shared = replace(pair, all_gather=rings)
    messages = simulate(shared, generate("gpipe", shared)).messages
    forward = messages[messages["kind"] == ACTIVATION]
    gather = messages[messages["kind"] == ALL_GATHER]
    assert forward["arrived_s"].tolist() == [11.0]
    assert (gather["stage"].tolist(), gather["microbatch"].tolist()) == ([1], [NO_MICROBATCH])
    assert gather["arrived_s"].tolist() == [10.0]


def test_a_gradient_waits_for_a_reduction_on_its_link() -> None:
    """Both are ready when rank 1's full backward ends: the message goes first, the reduction behind it."""
    pair = replace(uniform(2, 1, wire_s=1), reduce_scatter=(NO_COLLECTIVE, Collective(((1,),), 10.0, 1)))
    messages = simulate(pair, generate("gpipe", pair)).messages
    reduced = messages[messages["kind"] == REDUCE_SCATTER]
    gradient = messages[messages["kind"] == GRADIENT]
    # F0 0-1, on the wire 1-2, F 2-3, B 3-5; the gradient takes the link 5-6, then the reduction 6-16
    assert gradient["arrived_s"].tolist() == [6.0]
    assert (reduced["sent_s"].tolist(), reduced["arrived_s"].tolist()) == ([5.0], [16.0])
    assert simulate(pair, generate("gpipe", pair)).makespans()[0] == 16


@pytest.mark.parametrize("name", ["crosspipe-greedy", "wave-greedy", "search"])
def test_schedules_made_for_the_links_know_of_the_gather(name: str) -> None:
    """A gather that holds up the first stage costs its own time and no more, and the bound says so too."""
    plain = fitting(name, 4, 8, delay_s=2, cuts=(1,), memory=4.0)
    late = own_link(plain, 0, 6, stage=0)
    before = simulate(plain, quick(name, plain)).makespans()[0]
    after = simulate(late, quick(name, late)).makespans()[0]
    assert after <= before + 12 + 1e-9
    assert lower_bound(late).seconds >= lower_bound(plain).seconds + 6


def test_data_parallelism_is_a_cause_of_its_own() -> None:
    plain = uniform(4, 8, delay_s=1, cuts=(1,))
    schedule = generate("1f1b", plain)
    causes = time_by_cause(own_link(plain, 2, 5, stage=0), schedule)
    assert causes.data_parallel_s == 14
    assert causes._replace(data_parallel_s=0.0) == time_by_cause(plain, schedule)
