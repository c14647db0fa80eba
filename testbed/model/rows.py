"""The actions of one pipeline as arrays: what each takes, makes, and completes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.pipeline.action_columns import NONE, ActionColumns
from testbed.pipeline.ir import KINDS, Action, Kind
from testbed.pipeline.problem import Problem


class Rows:
    """One entry per action, row after row; messages and stages are numbered from 0, NONE where there is none."""

    def __init__(self, problem: Problem, table: ActionColumns, n_microbatches: int) -> None:
        stages = range(problem.n_stages)
        seconds = np.array([[problem.duration(Action(stage, kind, 0)) for kind in KINDS] for stage in stages])
        self.lengths: list[int] = np.diff(table.row_start).tolist()
        """Of the rows."""
        self._table = table
        self.durations = seconds[table.stage, table.kind] * table.fraction
        exchanges = [[problem.exchanges(Action(stage, kind, 0)) for kind in KINDS] for stage in stages]
        sent = np.array([[(*each.gathered, *each.summed, each.sums) for each in of_stage] for of_stage in exchanges])
        *columns_of_sent, sums = np.moveaxis(sent[table.stage, table.kind], 1, 0)
        self.sums = np.where(columns_of_sent[2] > 0, np.ceil(sums * table.fraction), 0).astype(np.int64)
        of_each = sums * table.fraction / np.maximum(self.sums, 1)
        self.gathered, self.gathered_acks = (column * (table.begin == 0) for column in columns_of_sent[:2])
        self.summed, self.summed_acks = (column * of_each for column in columns_of_sent[2:])
        self.needs = table.consumed(problem.n_stages, n_microbatches)
        self.makes = table.produced(problem.n_stages, n_microbatches)
        completes = table.is_kind(Kind.W, Kind.B) & (table.end == table.of)
        self.unshards = np.where(table.is_kind(Kind.F), table.stage, NONE)
        self.completes = np.where(completes, table.stage, NONE)

    def durations_in(self, slots_s: NDArray[np.float64] | None, replica: int) -> NDArray[np.float64]:
        """What actions take on a replica in an iteration of these slots (Load.slots_s)."""
        if slots_s is None:
            return self.durations
        table = self._table
        found: NDArray[np.float64] = slots_s[replica, table.stage, table.kind, table.microbatch] * table.fraction
        return found
