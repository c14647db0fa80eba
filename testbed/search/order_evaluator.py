"""Judges many orders of the same whole blocks by the event model, which is lowered for them once. Slow to import."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.model.compiled import EVENT_MODEL
from testbed.model.lower import Load, lower
from testbed.model.network import Ints
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem
from testbed.search.blocks import SPLIT_KINDS, block_number


def coded(schedule: Schedule) -> list[Ints]:
    """A schedule of whole F, I and W blocks as the list scheduler writes it: blocks by number."""
    places, m = {kind: place for place, kind in enumerate(SPLIT_KINDS)}, schedule.n_microbatches
    return [
        np.array([block_number(a.stage, places[a.kind], a.microbatch or 0, m) for a in row], np.int64)
        for row in schedule.rows
    ]


class OrderEvaluator:
    """The event model for one problem; every schedule has the same whole F, I and W blocks, in an order of its own."""

    def __init__(self, problem: Problem, any_schedule: Schedule) -> None:
        self.program, _ = lower([Load(problem, any_schedule, 0.0, problem.receives)])
        order = np.concatenate(coded(any_schedule))
        self.place = np.empty(len(order), np.int64)
        self.place[order] = np.arange(len(order))
        self.replicas = len(problem.pipelines)

    def makespan(self, order: Sequence[Ints]) -> float:
        """Until the last end or reduction, in the problem's unit of time; nan when ranks wait for each other."""
        places = self.place[np.concatenate(order)]
        every = np.concatenate([places + replica * len(places) for replica in range(self.replicas)])
        return float(EVENT_MODEL.last_end(self.program, EVENT_MODEL.execute(self.program, every)))
