"""`wave-greedy`: a greedy for the V-shape placement, which CrossPipe has only a solver for.

List scheduling over delayed links (list_scheduler.py) with a handful of rules for what goes first, since none is best
everywhere: how far to run ahead, whether to alternate forwards and gradients, whether to wait for a better action
that is on its way. Each rule's schedule is judged by the event model; a static ZB-V that fits is among them.
"""

from __future__ import annotations

from itertools import product

from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import peaks
from testbed.pipeline.placement import Placement
from testbed.pipeline.problem import Problem
from testbed.schedule.family import Family
from testbed.schedule.list_scheduler import forward_first, input_first, list_schedule, oldest_first
from testbed.schedule.zb_v import zb_v

PATIENCE = (0.0, 0.5)
"""How long a rank may wait for a better action, in forwards of a stage."""


def wave_greedy(problem: Problem) -> Schedule:
    """The fastest of the rules' schedules for two stages per rank in a V.

    Raises BadInput when a rank cannot hold a single microbatch.
    """
    from testbed.model.compiled import makespan

    forward_s = max(problem.forward_s)
    candidates = [
        list_schedule(problem, priority=priority, alternate=alternate, patience_s=patience * forward_s)
        for priority, alternate, patience in product(
            (input_first, oldest_first, forward_first), (False, True), PATIENCE
        )
    ]
    static = zb_v(problem)
    if all(peak <= limit for peak, limit in zip(peaks(static, problem), problem.memory_limit, strict=True)):
        candidates.append(static)
    return min(candidates, key=lambda schedule: makespan(problem, schedule)).renamed("wave-greedy")


FAMILY = Family(wave_greedy, "ours: a greedy in a V of two chunks per rank", Placement.WAVE, uses_spare_memory=True)
