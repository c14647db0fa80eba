"""The actions of one pipeline as arrays: what each takes, makes, and completes."""

from __future__ import annotations

import numpy as np

from testbed.pipeline.action_columns import NONE, columns
from testbed.pipeline.ir import KINDS, Action, Kind, Schedule
from testbed.pipeline.problem import Problem


class Rows:
    """One entry per action, row after row; messages and stages are numbered from 0, NONE where there is none."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        table, stages = columns(schedule.rows), range(problem.n_stages)
        seconds = np.array([[problem.duration(Action(stage, kind, 0)) for kind in KINDS] for stage in stages])
        self.durations = seconds[table.stage, table.kind] * table.fraction
        sent = np.array([[problem.exchanges(Action(stage, kind, 0)) for kind in KINDS] for stage in stages])
        gathered, summed, sums = np.moveaxis(sent[table.stage, table.kind], 1, 0)
        self.gathered = gathered * (table.begin == 0)
        self.sums = np.where(summed > 0, np.ceil(sums * table.fraction), 0).astype(np.int64)
        self.summed = summed * table.fraction / np.maximum(self.sums, 1)
        self.needs = table.consumed(problem.n_stages, schedule.n_microbatches)
        self.makes = table.produced(problem.n_stages, schedule.n_microbatches)
        completes = table.is_kind(Kind.W, Kind.B) & (table.end == table.of)
        self.unshards = np.where(table.is_kind(Kind.F), table.stage, NONE)
        self.completes = np.where(completes, table.stage, NONE)
