"""Does a unit of time matter? Every greedy and `search` on 90 cells, each in five units: 450 points.

    python benchmarks/unit_invariance.py [--evaluations 30] [--families crosspipe-greedy ...]

A cell is P, M, memory, one cut's delay and wire time, and F, I and W, all in T. T is 1 s, 20 ms, 1 ms, 3.7 ms and
a third of a second. A point is equal when the schedule is the one of T = 1 s, action by action. Beside it: on how many
points the event model predicts as many T for it as for T = 1 s (to 1e-9), and how far from it the others are. The
message is of 123,457 bytes, so that time per byte is no round number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

from harness import options
from harness.record import Topic, each, finish
from harness.report import show_table

from testbed.model.simulate import makespan
from testbed.pipeline.ir import Schedule
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem, uniform
from testbed.progress import Lines
from testbed.schedule.geopipe import geopipe
from testbed.schedule.greedy import crosspipe_greedy
from testbed.schedule.pipemorph import pipemorph
from testbed.schedule.search_families import search
from testbed.schedule.wave_greedy import wave_greedy
from testbed.search.list_scheduler import list_schedule
from testbed.search.steered_list import steered_list

UNITS_S = (1.0, 20e-3, 1e-3, 3.7e-3, 1 / 3)
SHAPES = ((3, 7), (4, 16), (8, 32))
LINKS = ((0.0, 0.0), (0.25, 0.25), (2.0, 1.0), (2.0, 0.3), (5.3, 2.0))
"""Delay and wire time"""
BLOCKS = ((1.0, 1.0, 1.0), (1.0, 1.3, 0.7), (1.0, 2.0, 0.1))
"""F, I, W"""
MEMORY = (1.0, 2.0)
"""Times P microbatches"""
MESSAGE_BYTES = 123_457.0
EQUAL = 1e-9


class Cell(NamedTuple):
    """One pipeline, in units of time."""

    shape: tuple[int, int]
    link: tuple[float, float]
    blocks: tuple[float, float, float]
    memory: float


CELLS = tuple(Cell(*cell) for cell in product(SHAPES, LINKS, BLOCKS, MEMORY))


def problem(cell: Cell, placement: Placement, unit_s: float) -> Problem:
    """A cell in a placement, its times in seconds."""
    (p, m), (delay, wire), (f, i, w) = cell.shape, cell.link, cell.blocks
    asked = uniform(
        p,
        m,
        forward_s=f * unit_s,
        input_s=i * unit_s,
        weight_s=w * unit_s,
        delay_s=delay * unit_s,
        wire_s=wire * unit_s / MESSAGE_BYTES,
        cuts=(p // 2 - 1,),
        memory=cell.memory * p,
        stage_to_rank=stage_to_rank(placement, p),
    )
    return replace(asked, message_bytes=(MESSAGE_BYTES,) * (asked.n_stages - 1))


class Asked(NamedTuple):
    """A generator, and the placement it is asked for."""

    generate: Callable[[Problem], Schedule]
    placement: Placement


def families(evaluations: int) -> dict[str, Asked]:
    """Every generator that compares times; searches make so many evaluations."""
    return {
        "crosspipe-greedy": Asked(crosspipe_greedy, Placement.UD),
        "wave-greedy": Asked(wave_greedy, Placement.WAVE),
        "list, one stage per rank": Asked(list_schedule, Placement.UD),
        "list, loop": Asked(partial(list_schedule, alternate=True), Placement.LOOP),
        "steered list, V": Asked(partial(steered_list, evaluations=evaluations), Placement.WAVE),
        "geopipe": Asked(geopipe, Placement.UD),
        "pipemorph": Asked(pipemorph, Placement.UD),
        "search": Asked(partial(search, evaluations=evaluations), Placement.UD),
    }


class Point(NamedTuple):
    """A cell in a unit, against the same cell in the first unit."""

    same_schedule: bool
    ratio: float
    """Predicted makespan in units over that of the first unit."""


def points(asked: Asked, cell: Cell, units_s: Sequence[float] = UNITS_S) -> list[Point]:
    """A point for every unit."""
    expected = asked.generate(problem(cell, asked.placement, units_s[0]))
    found = []
    units = makespan(problem(cell, asked.placement, units_s[0]), expected) / units_s[0]
    for unit_s in units_s:
        here = problem(cell, asked.placement, unit_s)
        made = asked.generate(here)
        found.append(Point(made == expected, makespan(here, made) / unit_s / units))
    return found


def main() -> int:
    """Print a row per generator; exit code 1 when a unit matters."""
    parser = options.parser(__doc__)
    parser.add_argument("--evaluations", type=int, default=30, help="of `search` and of the steered list")
    parser.add_argument("--families", nargs="+", choices=list(families(1)), default=list(families(1)))
    arguments = parser.parse_args()
    known = families(arguments.evaluations)
    rows, wrong, count = [], 0, 0
    with Lines(quiet=False).step("cells", total=len(CELLS) * len(arguments.families)) as step:
        for name in arguments.families:
            found: list[Point] = []
            for cell in CELLS:
                found += points(known[name], cell)
                step.advance()
            others = [point.ratio - 1 for point in found if abs(point.ratio - 1) > EQUAL]
            same = sum(point.same_schedule for point in found)
            counts = (len(found), same, len(found) - len(others))
            mean, worst = sum(others) / max(1, len(others)), max(others, key=abs, default=0.0)
            rows.append((name, *counts, f"{mean:+.2%}", f"{worst:+.2%}"))
            wrong += sum(not point.same_schedule or abs(point.ratio - 1) > EQUAL for point in found)
            count += len(found)
    columns = ("generator", "points", "equal schedules", "equal predictions", "the others: mean", "worst")
    show_table("schedules that do not depend on the unit of time", columns, rows)
    what = f"the same schedule and prediction in every unit of time, {len(arguments.families)} generators"
    return finish(arguments, Topic.SCHEDULES, [each(what, wrong, count, "all equal", unit="points")])


if __name__ == "__main__":
    sys.exit(main())
