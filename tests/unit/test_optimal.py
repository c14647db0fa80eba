"""The solver finds known optima, keeps its promises to the hint and the clock, and gives valid schedules."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import with_collectives

from testbed.errors import BadInput
from testbed.model.bounds import lower_bound
from testbed.model.simulate import simulate
from testbed.pipeline.algorithms import Members, exchange
from testbed.pipeline.collectives import NO_COLLECTIVE, Collective
from testbed.pipeline.ir import Kind, Schedule
from testbed.pipeline.link import LinkCost
from testbed.pipeline.memory import peaks
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import PipelineRoutes, Problem, uniform
from testbed.pipeline.validate import validate
from testbed.schedule.gpipe import gpipe
from testbed.schedule.greedy import crosspipe_greedy
from testbed.schedule.hints import best_hint, whole_blocks
from testbed.schedule.one_f_one_b import one_f_one_b
from testbed.schedule.optimal import crosspipe_loop, crosspipe_ud, crosspipe_wave, solve
from testbed.search.cp_model import CpModel
from testbed.search.incumbent import Standing
from testbed.search.list_scheduler import forward_first, input_first, list_schedule, oldest_first
from testbed.trace.tables import KINDS


def two_sites(m: int, memory: float, placement: Placement = Placement.UD, wire: float = 0.0) -> Problem:
    return uniform(
        4,
        m,
        forward_s=10,
        input_s=10,
        weight_s=10,
        memory=memory,
        delay_s=20,
        wire_s=wire,
        cuts=(1,),
        stage_to_rank=stage_to_rank(placement, 4),
    )


def makespan(problem: Problem, schedule: Schedule) -> float:
    return float(simulate(problem, schedule).makespans()[0])


@pytest.mark.parametrize(("m", "memory", "optimum"), [(4, 6, 190), (8, 6, 290), (8, 8, 290)])
def test_known_optima(m: int, memory: float, optimum: float) -> None:
    """Optima found by another solver; from a poor hint, so that it is the solver that finds them."""
    problem = two_sites(m, memory)
    solution = solve(problem, one_f_one_b(problem), time_limit_s=60, relative_gap=0.0)
    validate(solution.schedule, problem)
    assert solution.proof.makespan_s == makespan(problem, solution.schedule) == optimum
    assert solution.proof.bound_s == pytest.approx(optimum)
    assert solution.proof.status == "optimal"
    assert solution.history[0] == (0.0, makespan(problem, whole_blocks(one_f_one_b(problem))))
    assert solution.history[-1][1] == optimum


small = st.integers(0, 5)


@given(st.data())
@settings(max_examples=5)  # benchmarks/brute_force.py tries thousands
def test_never_worse_than_the_hint_nor_below_the_bound(data: st.DataObject) -> None:
    placement = data.draw(st.sampled_from(Placement))
    p, m = data.draw(st.integers(2, 3)), data.draw(st.integers(1, 5))
    stages = stage_to_rank(placement, p)
    problem = uniform(p, m, memory=data.draw(st.integers(2, 4)), stage_to_rank=stages)
    links = tuple(LinkCost(data.draw(small) / 3, data.draw(small) / 7) for _ in range(3))
    routes = {
        (a, b): tuple(data.draw(st.permutations(range(3)))[: data.draw(st.integers(0, 3))])
        for a in range(p)
        for b in range(p)
        if a != b
    }
    times = [tuple(data.draw(small) / 3 + low for _ in stages) for low in (0.1, 0.0, 0.0)]
    problem = replace(problem, forward_s=times[0], input_s=times[1], weight_s=times[2], links=links)
    problem = replace(problem, pipelines=(PipelineRoutes(routes),))
    problem = replace(problem, input_memory=(data.draw(st.sampled_from([0.0, 0.1])),) * len(stages))
    problem = data.draw(with_collectives(problem))
    hint = best_hint(problem, time_limit_s=0.0)  # a better one takes as long as the solver
    solution = solve(problem, hint, time_limit_s=0.5, relative_gap=0.0)
    validate(solution.schedule, problem)
    assert solution.proof.bound_s <= solution.proof.makespan_s <= makespan(problem, hint)
    assert solution.proof.makespan_s == makespan(problem, solution.schedule)
    # A true bound must hold for what another search finds as well.
    other = solve(problem, hint, time_limit_s=0.25, relative_gap=0.0, seed=7)
    assert solution.proof.bound_s <= other.proof.makespan_s * (1 + 1e-9)


def test_a_long_reduction_is_begun_early() -> None:
    """Rank 3's gradients take 100 s to reduce, so it must not rest before its last W."""
    plain = two_sites(4, 8)
    steps = exchange("ring", Members(("", ""), True)).reduction
    ring = Collective(steps, {1: 1.0}, {(0, 1): (len(plain.links),)})
    rings = (*[NO_COLLECTIVE] * 3, ring)
    links, pipelines = (*plain.links, LinkCost(0.0, 100.0)), (*plain.pipelines, PipelineRoutes())
    problem = replace(plain, links=links, pipelines=pipelines, reductions=rings)
    hint = one_f_one_b(problem)
    solution = solve(problem, hint, time_limit_s=20, relative_gap=0.0)
    assert solution.proof.status == "optimal"
    assert solution.proof.makespan_s < makespan(problem, hint)
    # 50 s of fill, 4 x 30 s of work on rank 3, the reduction
    assert solution.proof.makespan_s == 50 + 120 + 100


@pytest.mark.parametrize(
    ("generate", "placement"), [(crosspipe_wave, Placement.WAVE), (crosspipe_loop, Placement.LOOP)]
)
def test_two_stages_per_rank(generate: object, placement: Placement) -> None:
    problem = two_sites(6, 4, placement, wire=2.5)
    schedule = generate(problem, time_limit_s=1).schedule  # type: ignore[operator]
    validate(schedule, problem)
    assert schedule.name == f"crosspipe-{placement}"
    # the hint that takes no time: a better one takes as much as the machine lets it have
    assert makespan(problem, schedule) <= makespan(problem, best_hint(problem, time_limit_s=0.0))


def test_ud_is_at_least_as_good_as_the_greedy_in_whole_blocks() -> None:
    problem = two_sites(8, 5, wire=2.5)
    found = makespan(problem, crosspipe_ud(problem, time_limit_s=3).schedule)
    assert found <= makespan(problem, whole_blocks(crosspipe_greedy(problem)))


def test_whole_blocks_keep_memory_and_split_the_backward() -> None:
    problem = two_sites(8, 5)
    greedy = crosspipe_greedy(problem)
    merged = whole_blocks(greedy)
    validate(merged, problem)
    assert all(a <= b + 1e-9 for a, b in zip(peaks(merged, problem), peaks(greedy, problem), strict=True))
    split = whole_blocks(gpipe(problem))
    assert {action.kind for _, action in split.actions()} == {Kind.F, Kind.I, Kind.W}


def test_the_time_limit_is_kept() -> None:
    problem = uniform(16, 32, memory=16, delay_s=2, wire_s=0.25, cuts=(3, 11))
    solution = solve(problem, one_f_one_b(problem), time_limit_s=0.5, relative_gap=0.0)
    assert solution.proof.status == "time limit"  # to prove an optimum takes many times that
    assert solution.proof.makespan_s <= solution.history[0][1]
    assert solve(problem, one_f_one_b(problem), time_limit_s=0.0).proof.status == "time limit"


def test_one_worker_and_one_seed_give_one_result() -> None:
    problem = two_sites(4, 6, wire=5)
    solutions = [
        solve(problem, one_f_one_b(problem), workers=1, seed=3, time_limit_s=30, relative_gap=0.0) for _ in range(2)
    ]
    assert solutions[0].proof.status == "optimal"
    assert solutions[0].schedule == solutions[1].schedule


def test_progress_is_told() -> None:
    problem = two_sites(8, 6)
    told: list[Standing] = []
    solution = solve(problem, one_f_one_b(problem), time_limit_s=2.0, progress=told.append)
    assert (told[-1].makespan_s, told[-1].bound_s) == (solution.proof.makespan_s, solution.proof.bound_s)
    assert all(standing.bound_s <= standing.makespan_s for standing in told)


INTERRUPTED = """
import os, signal, sys, threading
from ortools.sat.python import cp_model
from testbed.interrupts import persistent_interrupts
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import uniform
from testbed.search.list_scheduler import list_schedule
from testbed.schedule.optimal import solve

in_solver, microbatches = sys.argv[1] == "solver", int(sys.argv[2])
stages = stage_to_rank(Placement.LOOP, 4)  # improved at once, but not proven before the interrupt comes
problem = uniform(4, microbatches, memory=3, delay_s=2, wire_s=0.3, cuts=(1,), stage_to_rank=stages)
told, sent, solve_whole = [], threading.Event(), cp_model.CpSolver.solve

def interrupt():
    if not sent.is_set():
        sent.set()
        os.kill(os.getpid(), signal.SIGINT)

def solving(*arguments):
    if in_solver:
        threading.Timer(0.3, interrupt).start()
    return solve_whole(*arguments)

def progress(standing):
    told.append(standing)
    if not in_solver and standing.makespan_s < told[0].makespan_s:
        interrupt()

cp_model.CpSolver.solve = solving
with persistent_interrupts():  # as every command has them: what calls back may swallow one
    solution = solve(problem, list_schedule(problem), time_limit_s=600, relative_gap=0.0, progress=progress)
assert sent.is_set()
assert solution.proof.status == "interrupted", solution.proof
assert any(standing.interrupted for standing in told)
assert solution.proof.makespan_s <= solution.history[0][1]
"""
"""In a process of its own: an interrupt that comes too late would end the tests."""


@pytest.mark.parametrize(
    ("where", "microbatches"), [("solver", 12), ("annealing", 10), ("annealing beside a bound", 24)]
)
def test_ctrl_c_gives_the_best_so_far_and_says_so(where: str, microbatches: int) -> None:
    command = [sys.executable, "-c", INTERRUPTED, where, str(microbatches)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_stages_of_no_length_come_to_the_optimum() -> None:
    """Actions of no length that start together wait for each other in no order, and take no more memory than fits."""
    problem = two_sites(4, 1.0, Placement.WAVE)
    stages = range(problem.n_stages)
    forward_s = tuple(0.0 if s % 2 else 5.0 for s in stages)
    problem = replace(problem, forward_s=forward_s, input_s=(0.0,) * 8, weight_s=forward_s)
    solution = solve(problem, best_hint(problem, time_limit_s=0.0), time_limit_s=20, relative_gap=0.0)
    assert solution.proof.status == "optimal"


def test_the_bound_says_what_it_covers() -> None:
    every = solve(two_sites(8, 8), crosspipe_greedy(two_sites(8, 8)), time_limit_s=10).proof
    assert every.covers == "every schedule"
    problem = two_sites(4, 6, wire=5)
    proof = solve(problem, one_f_one_b(problem), time_limit_s=20, relative_gap=0.0).proof
    assert proof.status == "optimal"
    assert (proof.covers == "whole blocks") == (lower_bound(problem).seconds < proof.makespan_s * (1 - 1e-6))


def test_the_solver_is_told_a_complete_solution() -> None:
    """Or it looks for one of its own before it begins to improve that."""
    problem = two_sites(8, 3.0, Placement.WAVE, wire=5.0)
    hint = best_hint(problem, time_limit_s=0.0)
    model = CpModel(problem, hint, makespan(problem, hint), 0.0)
    hinted = set(model.model.proto.solution_hint.vars)
    assert hinted == set(range(len(model.model.proto.variables)))


def test_another_placement_is_refused() -> None:
    with pytest.raises(BadInput, match="crosspipe-wave: stages on ranks"):
        crosspipe_wave(two_sites(4, 4))


def test_a_microbatch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match="memory limit of rank 0"):
        crosspipe_ud(two_sites(4, 0.5))


def test_importing_the_schedules_does_not_import_the_solver() -> None:
    code = "import sys, testbed.schedule.registry, testbed.schedule.optimal; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("placement", [Placement.WAVE, Placement.LOOP])
def test_what_memory_implies_for_two_stages_excludes_no_schedule(placement: Placement) -> None:
    """Precedences that the solver is given beside the memory limit hold in schedules that know nothing of them."""
    for memory in (1.0, 1.5, 2.0, 3.0):
        problem = uniform(2, 5, memory=memory, delay_s=1, cuts=(0,), stage_to_rank=stage_to_rank(placement, 2))
        room = int(2 * memory)
        for priority in (input_first, oldest_first, forward_first):
            schedule = list_schedule(problem, priority=priority)
            rows = simulate(problem, schedule).actions
            kinds = {row["kind"]: KINDS[row["kind"]] for row in rows}
            span = {(int(r["stage"]), kinds[r["kind"]], int(r["microbatch"])): r for r in rows}
            for early, late in [(0, 3), (1, 2)] if placement is Placement.WAVE else [(0, 2), (1, 3)]:
                for m in range(5 - room + 1):
                    begins = span[early, Kind.F, m + room - 1]["start_s"]
                    ended = min(span[stage, Kind.W, m]["end_s"] for stage in (early, late))
                    assert begins >= ended - 1e-9
