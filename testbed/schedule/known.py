"""The schedules of a fixed order that are known for a placement: what searches begin from, and must not fall behind."""

from __future__ import annotations

from collections.abc import Callable

from testbed.errors import DoesNotFit
from testbed.pipeline.ir import Schedule
from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import validate
from testbed.schedule.dualpipe_v import dualpipe_v
from testbed.schedule.geopipe import geopipe
from testbed.schedule.gpipe import gpipe
from testbed.schedule.interleaved import interleaved_1f1b
from testbed.schedule.looped_bfs import looped_bfs
from testbed.schedule.one_f_one_b import one_f_one_b
from testbed.schedule.zb1p import zb1p
from testbed.schedule.zb_h1 import zb_h1
from testbed.schedule.zb_h2 import zb_h2
from testbed.schedule.zb_v import zb_v

FIXED: dict[Placement, tuple[Callable[[Problem], Schedule], ...]] = {
    Placement.UD: (zb_h1, zb_h2, one_f_one_b, geopipe, gpipe),
    Placement.WAVE: (zb_v, dualpipe_v),
    Placement.LOOP: (zb1p, interleaved_1f1b, looped_bfs),
}
"""By placement, all generators that come with the testbed; geopipe's order depends on the links, not on a search."""


def generators(problem: Problem) -> tuple[Callable[[Problem], Schedule], ...]:
    """Those for the problem's placement; none for one of the user's own."""
    for placement, known in FIXED.items():
        if problem.stage_to_rank == stage_to_rank(placement, problem.n_ranks):
            return known
    return ()


def fixed_schedules(problem: Problem) -> list[Schedule]:
    """The schedules that fit, whole backwards and all, for every replica that travels at other costs."""
    found: dict[tuple[object, ...], Schedule] = {}
    for generate in generators(problem):
        for planned in problem.with_each_first() if generate is geopipe else [problem]:
            try:
                made = generate(planned)
                validate(made, problem)
            except DoesNotFit:
                continue
            found.setdefault(made.rows, made)
    return list(found.values())
