"""The event model of one problem, asked about many schedules: what does not depend on their actions is lowered once."""

from __future__ import annotations

from testbed.model.lower import Load, columns_of
from testbed.model.rows import Rows
from testbed.model.simulate import jobs_in_ticks, seconds_of
from testbed.pipeline.action_columns import ActionColumns, columns
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem


class ScheduleModel:
    """Says what `simulate.makespan` says, of schedules for the same microbatches and stages on ranks."""

    def __init__(self, problem: Problem, any_schedule: Schedule) -> None:
        self._tick, (load,) = jobs_in_ticks([Load(problem, any_schedule, 0.0, problem.receives)])
        self._problem, self._microbatches = load.problem, any_schedule.n_microbatches
        self._columns = columns_of([load])
        self._program = self._columns.program(load.problem)

    def makespan(self, schedule: Schedule) -> float:
        """Seconds to the last end or reduction on any rank. Raises DeadlockError."""
        return self.makespan_of(columns(schedule.rows), schedule.name)

    def makespan_of(self, table: ActionColumns, name: str) -> float:
        """The same of the actions of a schedule of that name."""
        rows = Rows(self._problem, table, self._microbatches)
        return seconds_of(self._columns.rescheduled(self._program, rows), self._tick, name)
