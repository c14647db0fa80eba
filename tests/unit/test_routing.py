"""Routing policies and the metric that compares them; the quick form of benchmarks/routing_optimality.py."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from oracles import rings
from oracles.clos import clos_problem

from testbed.errors import BadInput
from testbed.plan.network_state import NetworkState
from testbed.routing.annealing import annealing
from testbed.routing.by_time import bytes_per_slot, greedy_time
from testbed.routing.candidates import DirectionsByPlace
from testbed.routing.demand import joined
from testbed.routing.edge_coloring import edge_coloring
from testbed.routing.exact import ilp, lexicographic
from testbed.routing.fairness import bytes_per_direction, flows_per_direction, jain_index, max_min_rates, measured_by
from testbed.routing.greedy_routes import greedy, greedy_bytes, greedy_jobs
from testbed.routing.loops import LARGE, loops
from testbed.routing.planner import Planner
from testbed.routing.policies import POLICIES, PolicyChoice, choose, route
from testbed.routing.routing_problem import RoutingProblem
from testbed.routing.simple import ecmp, static
from testbed.spec.topology import Direction

FILE = Path(__file__).parents[2] / "benchmarks" / "routing_optimality.py"


@pytest.fixture(scope="module")
def optimality() -> ModuleType:
    spec = importlib.util.spec_from_file_location("routing_optimality", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["routing_optimality"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def clos(ends: list[tuple[int, int]], spines: int = 2, jobs: list[int] | None = None, **more: object) -> RoutingProblem:
    leaves = max(max(pair) for pair in ends) + 1
    job = None if jobs is None else np.array(jobs)
    return clos_problem(leaves, range(spines), np.array(ends), job=job, **more)  # type: ignore[arg-type]


def most(problem: RoutingProblem, choice: object) -> int:
    return int(flows_per_direction(problem, choice)[: problem.n_links].max())  # type: ignore[arg-type]


# --- rates and the metric ------------------------------------------------------------------------


def test_progressive_filling_gives_what_linear_programs_give(optimality: ModuleType) -> None:
    random = np.random.default_rng(2)
    for _ in range(25):
        crossed, rates = optimality.crossings(random)
        assert optimality.filled(crossed, rates) == pytest.approx(optimality.by_linear_programs(crossed, rates))


def test_a_flow_takes_what_others_cannot_use() -> None:
    """Two flows share direction 0; one of them is held back by direction 1, so the other gets the rest."""
    rates = max_min_rates(np.array([0, 1, 3, 3]), np.array([0, 0, 1]), np.array([10.0, 2.0]))
    assert rates.tolist() == [8.0, 2.0, np.inf]


def test_jobs_are_compared_by_their_worst_flows_worst_job_first() -> None:
    """Two jobs, three flows from one leaf to another: who shares with whom decides the second coordinate alone."""
    problem = clos([(0, 1)] * 3, jobs=[0, 0, 1])
    apart, mixed = measured_by(problem, [0, 0, 1]), measured_by(problem, [0, 1, 0])
    assert (apart.vector(), mixed.vector()) == ((0.5, 1.0), (0.5, 0.5))
    assert apart.better_than(mixed)
    assert not mixed.better_than(apart)
    assert not mixed.better_than(mixed)
    assert apart.most_flows == mixed.most_flows == 2
    assert apart.jain == pytest.approx(1.5**2 / (2 * 1.25))
    assert mixed.all_reduce_s.tolist() == [16.0, 16.0]  # a byte at half a bit per second


def test_jain() -> None:
    assert jain_index(np.array([3.0, 3.0, np.inf])) == 1.0
    assert jain_index(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert jain_index(np.array([])) == 1.0


def test_a_card_is_crossed_too() -> None:
    problem = clos([(0, 1), (0, 1)], host=np.array([0, 0]))
    assert measured_by(problem, [0, 1]).rates_bps.tolist() == [0.5, 0.5]
    assert measured_by(problem, [0, 1]).most_flows == 1


def test_bytes_per_direction_are_all_bytes_twice() -> None:
    problem = clos([(0, 1), (1, 2), (2, 2)], wire_bytes=np.array([3.0, 5.0, 7.0]))
    assert bytes_per_direction(problem, [0, 1, 0]).sum() == 2 * 8.0


def test_a_ring_takes_as_long_as_its_steps() -> None:
    """Two rings of two over one direction each way: alone one of 4 bits in 2 steps takes 8 s, both together 16 s."""
    first, crossed, rate = np.array([0, 1, 2, 3, 4]), np.array([0, 1, 0, 1]), np.array([1.0, 1.0])
    run = rings.reduce_rings
    ring, steps = np.array([0, 0, 1, 1]), np.array([2, 2])
    assert run(first, crossed, rate, ring, steps, np.array([4.0, 4.0])).tolist() == [16.0, 16.0]
    # the shorter one is over after 8 s, of which the longer one has half the rate, and all of it from then on
    assert run(first, crossed, rate, ring, steps, np.array([4.0, 2.0])).tolist() == [12.0, 8.0]
    assert run(first, crossed, rate, ring, np.array([2, 0]), np.array([4.0, 4.0])).tolist() == [8.0, 0.0]


# --- policies ------------------------------------------------------------------------------------


def test_greedy_and_edge_colouring_keep_what_is_proven_of_them(optimality: ModuleType) -> None:
    random = np.random.default_rng(3)
    above = 0
    for _ in range(150):
        one, aligned = optimality.scattered(random), optimality.rack_aligned(random)
        assert one.optimum <= optimality.most(one, "greedy") <= 2 * one.optimum
        above += optimality.most(one, "greedy") > one.optimum
        assert optimality.most(one, "edge-coloring") == one.optimum
        assert optimality.most(aligned, "greedy") == aligned.optimum
    assert above


def drawn(seed: int, flows: int, spines: int, leaves: int = 3) -> RoutingProblem:
    random = np.random.default_rng(seed)
    ends = [(int(a), int(b)) for a, b in random.integers(leaves, size=(flows, 2))]
    return clos([*ends, (leaves - 1, 0)], spines, jobs=[*random.integers(3, size=flows).tolist(), 0])


@pytest.mark.parametrize("seed", range(6))
def test_exact_policies_are_as_good_as_trying_everything(seed: int) -> None:
    problem = drawn(seed, flows=6, spines=2)
    tried = [measured_by(problem, choice) for choice in product(*(range(int(count)) for count in problem.choices))]
    best = tried[0]
    for one in tried:
        best = one if one.better_than(best) else best
    assert measured_by(problem, lexicographic(problem)).vector() == pytest.approx(best.vector())
    solved = ilp(problem)
    assert most(problem, solved.choice) == min(one.most_flows for one in tried)
    assert solved.remark == ""


def test_lexicographic_beats_what_looks_at_the_most_loaded_direction_alone() -> None:
    problem = clos([(0, 1)] * 3, jobs=[0, 0, 1])
    assert measured_by(problem, lexicographic(problem)).vector() == (0.5, 1.0)
    assert measured_by(problem, greedy(problem)).vector() == (0.5, 0.5)
    assert measured_by(problem, greedy_jobs(problem)).vector() == (0.5, 1.0)


def test_where_nobody_leaves_a_leaf_any_choice_is_the_best() -> None:
    problem = clos([(0, 0), (1, 1)], jobs=[0, 1])
    assert lexicographic(problem).tolist() == [0, 0]
    assert ilp(problem).choice.tolist() == edge_coloring(problem).tolist() == [0, 0]


def test_lexicographic_refuses_more_choices_than_it_was_told_to_try() -> None:
    with pytest.raises(BadInput, match="at most 3 choices that are equally good"):
        lexicographic(drawn(1, flows=12, spines=3), most=3)


def test_greedy_by_bytes_keeps_the_large_ones_apart() -> None:
    problem = clos([(0, 1)] * 4, wire_bytes=np.array([1.0, 9.0, 1.0, 9.0]))
    assert bytes_per_direction(problem, greedy_bytes(problem)).max() == 10.0
    assert bytes_per_direction(problem, greedy(problem)).max() == 18.0


def test_greedy_takes_the_longest_list_first_and_of_equal_spines_the_first() -> None:
    """Leaf 2 receives three flows: they are placed before the others, in their order."""
    problem = clos([(0, 1), (0, 2), (1, 2), (3, 2)])
    assert greedy(problem).tolist() == [1, 0, 1, 0]


def test_what_never_meets_may_share() -> None:
    spans = (((0.0, 1.0),), ((0.0, 1.0),), ((1.0, 2.0),), ((1.0, 2.0),))
    made = clos([(0, 1)] * 4)
    problem = replace(made, when=spans)
    choice = greedy_time(problem).tolist()
    assert choice[0] != choice[1]
    assert choice[2] != choice[3]
    assert bytes_per_slot(problem, 8).sum(axis=1) == pytest.approx([1.0] * 4)
    with pytest.raises(BadInput, match="when each flow sends"):
        greedy_time(made)


def test_ecmp_draws_by_seed_among_routes_with_the_fewest_links() -> None:
    problem = clos([(0, 1)] * 40, spines=4)
    assert ecmp(problem, seed=3).tolist() == ecmp(problem, seed=3).tolist() != ecmp(problem, seed=4).tolist()
    assert set(ecmp(problem).tolist()) == {0, 1, 2, 3}
    longer = replace(problem, candidates=(((0, 3), (4, 5, 6, 7)),))
    assert set(ecmp(longer).tolist()) == {0}


def test_static_goes_by_destination() -> None:
    assert static(clos([(0, 1)] * 5, target_host=np.array([0, 1, 2, 3, 1]))).tolist() == [0, 1, 0, 1, 1]


def test_annealing_is_repeatable_and_no_worse_than_its_start() -> None:
    problem = clos([(0, 1), (1, 0), (0, 2), (2, 1), (1, 2), (2, 0)] * 2, target_host=np.array([0, 0, 0, 1, 1, 1] * 2))

    def energy(choice: object) -> int:
        load = flows_per_direction(problem, choice)[: problem.n_links]  # type: ignore[arg-type]
        return int(load.max() * (load == load.max()).sum())

    assert annealing(problem).tolist() == annealing(problem).tolist()
    assert energy(annealing(problem)) <= energy(static(problem))


def test_edge_colouring_wants_a_clos() -> None:
    problem = clos([(0, 1), (1, 0)])
    other = replace(problem, candidates=(problem.candidates[0], ((1,),)))
    with pytest.raises(BadInput, match="expected a two-layer Clos"):
        edge_coloring(other)


def test_compiled_loops_do_what_the_plain_ones_do() -> None:
    plain, fast = loops(0), loops(LARGE)
    assert plain is not fast
    problem = drawn(5, flows=60, spines=4, leaves=6)
    order, ones = np.arange(problem.n_flows), np.ones(problem.n_flows)
    scale = np.ones(len(problem.rate_bps))

    def placed(made: object) -> list[int]:
        load = np.zeros((problem.n_jobs, len(scale)))
        return made.place(order, problem.pair, problem.routes, ones, scale, problem.job, load).tolist()  # type: ignore[attr-defined, no-any-return]

    assert placed(plain) == placed(fast)
    out = problem.source != problem.target
    ends = problem.source[out], problem.target[out], 6, 60
    assert plain.colour(*ends).tolist() == fast.colour(*ends).tolist()
    first, crossed = problem.crossed(placed(plain))
    ring = np.arange(problem.n_flows) // 4
    reduced = first, crossed, problem.rate_bps, ring, np.full(ring[-1] + 1, 3), np.linspace(1.0, 2.0, ring[-1] + 1)
    assert rings.reduce_rings(*reduced) == pytest.approx(rings.compiled().reduce_rings(*reduced))


# --- routes and names ----------------------------------------------------------------------------


def link(source: str, target: str, delay_ms: float, name: str = "") -> Direction:
    return Direction(name or f"{source}--{target}", source, target, delay_ms / 1e3, 1e9, 0.0, 0.0, 0.0)


def test_candidates_are_the_default_and_then_all_others_without_a_loop_by_delay() -> None:
    directions = [link("a", "b", 5), link("a", "b", 3, "fast"), link("a", "c", 1), link("c", "b", 1), link("b", "a", 1)]
    directions += [link("c", "d", 1), link("d", "b", 1)]
    network = NetworkState("net", ("a", "b", "d"), ("c",), tuple(directions), (), {})
    ways = DirectionsByPlace(network)
    assert ways.between("a", "b", (0,), 0) == ((0,), (1,))
    assert ways.between("a", "b", (0,), 1) == ((0,), (2, 3), (1,))
    assert ways.between("a", "b", (1,), 2) == ((1,), (2, 3), (2, 5, 6), (0,))
    assert DirectionsByPlace(network.without("fast")).between("a", "b", (0,), 1) == ((0,), (2, 3))


def test_spans_that_overlap_are_joined() -> None:
    assert joined([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0), (2.0, 2.5)]) == ((0.0, 2.5), (3.0, 4.0))


def test_every_registered_policy_makes_a_choice() -> None:
    made = clos([(0, 1), (0, 1), (1, 0), (1, 1)])
    problem = replace(made, when=(((0.0, 1.0),),) * 4)
    for name in POLICIES:
        if isinstance(choose(name).policy, Planner):
            continue  # it chooses for a plan
        routed = route(choose(name), problem)
        assert routed.choice.shape == (4,), name
        assert measured_by(problem, routed.choice).most_flows in (1, 2), name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("magic", "got 'magic', expected one of shortest, ecmp"),
        ("ecmp,seed", "expected OPTION=VALUE"),
        ("ecmp,seed=-1", "ecmp,seed: got -1, expected at least 0"),
        ("ecmp,sed=1", "expected an option of ecmp"),
        ("greedy,seed=1", "expected an option of greedy .it has none"),
        ("none.py:x", "expected a readable file"),
    ],
)
def test_a_policy_that_is_none(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        choose(text)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return [0]", "expected a whole number for each of 2 flows"),
        ("return ['a', 'b']", "expected a whole number for each of 2 flows"),
        ("return [0.5, 1]", "expected a whole number for each of 2 flows"),
        ("return None", "expected a whole number for each of 2 flows"),
        ("return [0, 2]", "got 2, expected route 0 to 1 for flow 1"),
        ("return [1 / 0]", r"a policy that works \(ZeroDivisionError in line 2"),
    ],
)
def test_a_policy_of_ones_own_that_is_wrong(tmp_path: Path, body: str, expected: str) -> None:
    (tmp_path / "mine.py").write_text(f"def mine(problem):\n    {body}\n")
    with pytest.raises(BadInput, match=expected):
        route(choose("mine.py:mine", tmp_path), clos([(0, 1), (0, 1)]))


def test_options_reach_a_policy_and_seeds_can_be_changed() -> None:
    asked = choose("ecmp,seed=7")
    assert asked.options == {"seed": 7}
    assert isinstance(asked, PolicyChoice)
    assert asked.takes("seed")
    assert asked.with_seed(9).options == {"seed": 9}
    assert not choose("greedy").takes("seed")
