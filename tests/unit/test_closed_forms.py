"""The generators under the event model against formulas, on whole grids (times are integers: equality is exact).

By the compiled model, which test_compiled.py holds against the plain one.
"""

from __future__ import annotations

from itertools import product

import pytest
from oracles import closed_form

from testbed.model import compiled
from testbed.pipeline.problem import Problem, uniform
from testbed.schedule.registry import generate


def makespan(name: str, problem: Problem) -> float:
    fits = problem.with_memory(float(problem.n_microbatches)) if name == "gpipe" else problem
    return compiled.makespan(fits, generate(name, fits))


TIMES = [(1, 1, 1), (1, 2, 1), (2, 1, 1), (3, 2, 1), (2, 3, 2), (1, 1, 0)]


@pytest.mark.parametrize("delay", [0, 1, 5])
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_gpipe(f: int, i: int, w: int, delay: int) -> None:
    for p, m in product(range(1, 7), (1, 2, 3, 5, 8, 12)):
        problem = uniform(p, m, forward_s=f, input_s=i, weight_s=w, delay_s=delay)
        assert makespan("gpipe", problem) == closed_form.gpipe(p, m, f, i, w, delay), (p, m)


@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_1f1b_without_delay(f: int, i: int, w: int) -> None:
    for p in range(1, 8):
        for m in (p, p + 1, 2 * p + 1, 3 * p, 3 * p + 1):
            problem = uniform(p, m, forward_s=f, input_s=i, weight_s=w)
            assert makespan("1f1b", problem) == closed_form.one_f_one_b(p, m, f, i, w), (p, m)


@pytest.mark.parametrize("delay", [1, 3, 10])
def test_1f1b_with_delay_on_every_hop(delay: int) -> None:
    for p in range(2, 8):
        for m in (p, p + 1, 2 * p, 3 * p + 1, 4 * p - 1):
            expected = closed_form.one_f_one_b(p, m, 1, 1, 1) + closed_form.one_f_one_b_delay(p, m, delay)
            assert makespan("1f1b", uniform(p, m, delay_s=delay)) == expected, (p, m)


@pytest.mark.parametrize("delay", [1, 3, 10])
def test_1f1b_with_one_slow_boundary(delay: int) -> None:
    for p in range(2, 8):
        for m, d in product((p, p + 1, 2 * p + 1, 3 * p), range(1, p)):
            extra = closed_form.one_f_one_b_slow_boundary(p, m, d, delay)
            expected = closed_form.one_f_one_b(p, m, 1, 1, 1) + extra
            assert makespan("1f1b", uniform(p, m, delay_s=delay, cuts=(d - 1,))) == expected, (p, m, d)


@pytest.mark.parametrize(("f", "i", "w"), [(1, 1, 1), (1, 2, 1), (2, 1, 1), (3, 2, 1), (2, 1, 2), (3, 1, 2), (1, 1, 0)])
def test_zb_h1(f: int, i: int, w: int) -> None:
    for p in range(1, 8):
        for m in (p, p + 1, 2 * p + 1, 3 * p, 3 * p + 1):
            problem = uniform(p, m, forward_s=f, input_s=i, weight_s=w)
            assert makespan("zb-h1", problem) == closed_form.zb_h1(p, m, f, i, w), (p, m)


def test_zb_h1_leaves_its_formula_where_the_notes_say_so() -> None:
    """The oracle's domain is real: with fewer microbatches than stages the formula is wrong."""
    assert makespan("zb-h1", uniform(4, 2)) != closed_form.zb_h1(4, 2, 1, 1, 1)


def test_greedy_equals_zb_h1_without_delay_at_equal_memory() -> None:
    """CrossPipe's claim (section 4.2), for equal times and its n_sub = 4."""
    for p in range(2, 9):
        for m in (p, 2 * p, 3 * p):
            assert makespan("crosspipe-greedy", uniform(p, m)) <= makespan("zb-h1", uniform(p, m)) * 1.03, (p, m)


@pytest.mark.parametrize("memory", [4, 8])
@pytest.mark.parametrize("delay", [1, 2, 4])
def test_greedy_beats_the_static_schedules_under_delay(delay: int, memory: int) -> None:
    problem = uniform(4, 16, delay_s=delay, cuts=(1,), memory=memory)
    assert makespan("crosspipe-greedy", problem) < makespan("zb-h1", problem) < makespan("1f1b", problem)


def test_greedy_uses_more_memory_when_it_may() -> None:
    def time(memory: int) -> float:
        return makespan("crosspipe-greedy", uniform(8, 32, delay_s=2, wire_s=2, cuts=(3,), memory=memory))

    assert time(8) > time(12) > time(16)
