"""The static schedules under the event model against formulas, on grids (times are halves: equality is exact).

Most by the compiled model, which test_compiled.py holds against the plain one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from oracles import closed_form

from testbed.errors import BadInput
from testbed.model import compiled
from testbed.model.simulate import simulate
from testbed.pipeline.memory import peak_in_flight, peaks
from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.validate import InvalidSchedule
from testbed.schedule.geopipe import cuts, hiding
from testbed.schedule.registry import FAMILIES, generate

CHUNKED = ["interleaved-1f1b", "looped-bfs", "zb1p", "zb-v", "dualpipe-v"]
STATIC = ["zb-h2", "geopipe", *CHUNKED]
TIMES = [(1, 1, 1), (1, 1, 0), (1, 2, 1), (2, 1, 1), (3, 2, 2), (2, 3, 1), (1, 3, 2), (2, 2, 3), (3, 3, 2), (3, 1, 0)]
"""Of F, I and W: each the longest and the shortest of the three, W none, longer, and as long as others."""


def problem_for(name: str, p: int, m: int, f: float = 1, i: float = 1, w: float = 1, **more: object) -> Problem:
    settings = {"memory": float(2 * p + m)} | more
    placement = FAMILIES[name].stage_to_rank(p)
    return uniform(p, m, forward_s=f, input_s=i, weight_s=w, stage_to_rank=placement, **settings)  # type: ignore[arg-type]


def makespan(name: str, problem: Problem, **options: int) -> float:
    return compiled.makespan(problem, generate(name, problem, **options))


def makespan_and_span(name: str, problem: Problem) -> tuple[float, float]:
    """The span is of the rank that is at work the longest."""
    trace = simulate(problem, generate(name, problem))
    actions = trace.actions
    by_rank = [actions[actions["rank"] == rank] for rank in range(problem.n_ranks)]
    span = max(np.max(rows["end_s"]) - np.min(rows["start_s"]) for rows in by_rank)
    return float(trace.makespans()[0]), float(span)


@pytest.mark.parametrize("name", STATIC)
def test_any_number_of_microbatches_gives_a_valid_schedule(name: str) -> None:
    for p in (1, 2, 3, 4, 6):
        for m in range(1, 2 * p + 3):
            problem = problem_for(name, p, m, delay_s=1.0, wire_s=0.5)
            compiled.makespan(problem, generate(name, problem))


@pytest.mark.parametrize("name", ["interleaved-1f1b", "zb1p", "looped-bfs"])
def test_more_than_two_chunks(name: str) -> None:
    for p, m, v in product(range(1, 5), range(1, 10), (3, 4)):
        problem = uniform(p, m, memory=float(2 * p + m), stage_to_rank=tuple(range(p)) * v)
        schedule = generate(name, problem)
        if name == "interleaved-1f1b" and m % p == 0:
            expected = closed_form.interleaved_1f1b(p, m, 1, 1, 1, v)
            assert compiled.makespan(problem, schedule) == pytest.approx(expected, rel=1e-12), (p, m, v)


def test_interleaved_1f1b() -> None:
    for (f, i, w), p, rounds in product(TIMES, range(1, 6), (1, 2, 3)):
        expected = closed_form.interleaved_1f1b(p, rounds * p, f, i, w)
        assert makespan("interleaved-1f1b", problem_for("interleaved-1f1b", p, rounds * p, f, i, w)) == expected


def test_looped_bfs() -> None:
    for (f, i, w), p in product(TIMES, range(1, 6)):
        for m in range(p, 3 * p):
            expected = closed_form.looped_bfs(p, m, f, i, w)
            assert makespan("looped-bfs", problem_for("looped-bfs", p, m, f, i, w)) == expected, (p, m, f, i, w)


def test_zb1p() -> None:
    for (f, i, w), p, rounds in product(TIMES, range(1, 6), (1, 2, 3)):
        if w <= min(f, i):
            expected = closed_form.zb1p(p, rounds * p, f, i, w)
            assert makespan("zb1p", problem_for("zb1p", p, rounds * p, f, i, w)) == expected, (p, rounds, f, i, w)


def test_zb1p_leaves_its_formula_where_the_notes_say_so() -> None:
    assert makespan("zb1p", problem_for("zb1p", 4, 8, 1, 1, 2)) != closed_form.zb1p(4, 8, 1, 1, 2)


def test_zb_h2() -> None:
    for (f, i, w), p in product(TIMES, range(1, 6)):
        for m in range(2 * p - 1, 4 * p):
            if w <= min(f, i):
                expected = closed_form.zb_h2(p, m, f, i, w), closed_form.zb_h2_span(p, m, f, i, w)
                assert makespan_and_span("zb-h2", problem_for("zb-h2", p, m, f, i, w)) == expected, (p, m, f, i, w)


def test_zb_v() -> None:
    for time, p in product((1, 3), range(1, 7)):
        for m in range(2 * p - 1, 4 * p + 1):
            expected = closed_form.zb_v(p, m, time), 3 * m * time
            assert makespan_and_span("zb-v", problem_for("zb-v", p, m, time, time, time)) == expected, (p, m)


def test_dualpipe_v() -> None:
    for (f, i, w), p in product(TIMES, range(1, 6)):
        if w <= i <= f <= i + w:
            for m in range(2 * p, 4 * p):
                expected = closed_form.dualpipe_v(p, m, f, i, w)
                assert makespan("dualpipe-v", problem_for("dualpipe-v", p, m, f, i, w)) == expected, (p, m, f, i, w)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zb-h2", [7, 7, 7, 7]),
        ("interleaved-1f1b", [5.5, 4.5, 3.5, 2.5]),
        ("looped-bfs", [12, 12, 12, 12]),
        ("zb1p", [4, 4, 4, 4]),
        ("zb-v", [4, 4, 4, 4]),
        ("dualpipe-v", [4.5, 4.5, 4.5, 4.5]),
    ],
)
def test_peak_in_flight(name: str, expected: list[float]) -> None:
    problem = problem_for(name, 4, 12)
    schedule = generate(name, problem)
    assert list(peak_in_flight(schedule)) == expected
    assert list(peaks(schedule, problem)) == expected


def test_what_needs_more_memory_than_there_is_is_refused() -> None:
    generate("zb-v", problem_for("zb-v", 4, 12, memory=4.0))
    for name in ("zb-h2", "interleaved-1f1b", "looped-bfs", "dualpipe-v"):
        with pytest.raises(InvalidSchedule, match="needs memory for"):
            generate(name, problem_for(name, 4, 12, memory=4.0))


CUTS = [(4, (1,)), (4, (0, 2)), (5, (0, 1)), (6, (2,)), (8, (3,)), (8, (1, 5))]


@pytest.mark.parametrize(("p", "cut_ranks"), CUTS)
@pytest.mark.parametrize(("f", "i", "w"), [(1, 1, 1), (2, 1, 1), (1, 2, 2)])
def test_geopipe_pays_each_cut_once(p: int, cut_ranks: tuple[int, ...], f: int, i: int, w: int) -> None:
    for delay, wire in ((1, 0), (2, 1), (6, 1)):
        for m in (p, 2 * p + 1, 6 * p):
            problem = problem_for("geopipe", p, m, f, i, w, delay_s=delay, wire_s=wire, cuts=cut_ranks, memory=1000.0)
            c = delay + wire
            assert cuts(problem) == list(cut_ranks)
            extra = hiding(problem)
            assert extra == dict.fromkeys(cut_ranks, -(-2 * c // (f + i + w)))
            best = closed_form.geopipe(p, m, f, i, w, len(cut_ranks) * c)
            assert makespan("geopipe", problem) == best, (m, c)
            one = extra[cut_ranks[0]]
            assert makespan("geopipe", problem, extra=one + 1) == best, "none gained beyond"
            if m == 6 * p:
                assert makespan("geopipe", problem, extra=one - 1) > best
                ahead = sum(extra.values())
                assert peak_in_flight(generate("geopipe", problem))[0] == min(m, p + ahead)


def test_geopipe_without_extra_forwards_is_1f1b() -> None:
    problem = problem_for("geopipe", 4, 12, delay_s=3.0, cuts=(1,))
    assert generate("geopipe", problem, extra=0).rows == generate("1f1b", problem).rows
    assert generate("geopipe", problem_for("geopipe", 4, 12)).rows == generate("1f1b", problem).rows


def test_geopipe_reproduces_the_notes_latency_sweep() -> None:
    """P = 8, M = 64, f = 1, b = 2, one cut in the middle."""
    for c, plain, short, full in [
        (0.3, 231.6, 231.6, 213.6),
        (1.5, 306, 306, 216),
        (3, 399, 279, 219),
        (6, 585, 261, 225),
    ]:
        problem = problem_for("geopipe", 8, 64, delay_s=c, cuts=(3,), memory=100.0)
        extra = hiding(problem)[3]
        times = [makespan("geopipe", problem, extra=n) for n in (0, extra - 1, extra)]
        assert times == pytest.approx([plain, short, full], rel=1e-12)


def test_geopipe_runs_less_far_ahead_where_memory_is_short() -> None:
    free = problem_for("geopipe", 4, 24, delay_s=6.0, cuts=(0, 2), memory=100.0)
    assert hiding(free) == {0: 4, 2: 4}
    for memory in range(4, 13):
        problem = free.with_memory(float(memory))
        extra = hiding(problem)
        assert sum(extra.values()) == memory - 4
        assert abs(extra[0] - extra[2]) <= 1
        assert peak_in_flight(generate("geopipe", problem))[0] == memory
    late = free.with_memory((100.0, 100.0, 3.0, 100.0))
    assert hiding(late) == {0: 4, 2: 1}
    with pytest.raises(InvalidSchedule, match="needs memory for"):
        generate("geopipe", free.with_memory(3.0))
    with pytest.raises(InvalidSchedule, match="needs memory for"):
        generate("geopipe", free.with_memory(6.0), extra=4)
    for refused in (-1, [1, -1], [1], [1, 2, 3]):
        with pytest.raises(BadInput, match="extra"):
            generate("geopipe", free, extra=refused)


@pytest.mark.parametrize("cut_ranks", [(1,), (0, 2)])
@pytest.mark.parametrize("memory", [4.0, 6.0, 100.0])
def test_geopipe_of_unequal_stages_is_as_fast_as_any_equal_number_of_extra_forwards(
    cut_ranks: tuple[int, ...], memory: float
) -> None:
    """1F1B among them. In some of these the rule for equal stages is slower."""
    for stages in ((0.5, 2.0, 1.0, 1.0), (2.0, 0.5, 1.0, 0.5), (1.0, 1.0, 2.0, 0.5)):
        for m, delay in ((3, 5.0), (9, 0.5), (9, 5.0)):
            problem = problem_for("geopipe", 4, m, delay_s=delay, wire_s=0.3, cuts=cut_ranks, memory=memory)
            problem = replace(problem, forward_s=stages, input_s=stages)
            seconds = makespan("geopipe", problem)
            for extra in range(m + 1):
                try:
                    assert seconds <= makespan("geopipe", problem, extra=extra) * (1 + 1e-12), (stages, m, delay, extra)
                except InvalidSchedule:
                    break
