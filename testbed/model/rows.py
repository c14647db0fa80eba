"""The actions of one pipeline as arrays: what each takes, makes, and completes."""

from __future__ import annotations

import numpy as np

from testbed.pipeline.columns import KINDS, NONE, columns
from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.pipeline.problem import Problem


class Rows:
    """One entry per action, row after row; messages and stages are numbered from 0, NONE where there is none."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        table, stages = columns(schedule.rows), range(problem.n_stages)
        seconds = np.array([[problem.duration(Action(stage, kind, 0)) for kind in KINDS] for stage in stages])
        self.durations = seconds[table.stage, table.kind] * table.fraction
        sizes = np.array([[problem.exchanged_bytes(Action(stage, kind, 0)) for kind in KINDS] for stage in stages])
        self.exchanged = sizes[table.stage, table.kind] * table.fraction
        self.needs = table.consumed(problem.n_stages, schedule.n_microbatches)
        self.makes = table.produced(problem.n_stages, schedule.n_microbatches)
        completes = table.is_kind(Kind.W, Kind.B) & (table.end == table.of)
        self.unshards = np.where(table.is_kind(Kind.F), table.stage, NONE)
        self.completes = np.where(completes, table.stage, NONE)
