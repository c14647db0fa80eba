"""The event model over iterations of the same jobs that differ in what actions take alone: lowered once for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.model.lower import Floats, Load, lower
from testbed.model.program import Program
from testbed.model.rows import Rows
from testbed.model.simulate import ends_by_job, in_seconds, jobs_in_ticks, refuse_deadlock, run, trace_of
from testbed.model.state import Times
from testbed.pipeline.action_columns import columns
from testbed.trace.tables import Trace

Slots = Sequence[Floats | None]
"""Per job, what its actions take in one iteration (Load.slots_s); None: as its problem has it."""


class RepeatedIterations:
    """Jobs that share a network, one iteration after another."""

    def __init__(self, loads: Sequence[Load]) -> None:
        """Raises ValueError when the jobs do not have the same links."""
        self._loads = loads
        self._tick_s, counted = jobs_in_ticks(loads)
        self._program, self._names = lower(counted)
        self._rows = [Rows(load.problem, columns(load.schedule.rows), load.schedule.n_microbatches) for load in counted]

    def trace(self, slots: Slots) -> Trace:
        """The trace of an iteration. Raises DeadlockError when a schedule cannot finish."""
        program, times = self._run(slots)
        return trace_of(program, self._names, in_seconds(times, self._tick_s), self._loads)

    def times_s(self, slots: Slots) -> list[float]:
        """Per job, seconds from its start to its last end or reduction. Raises as `trace`."""
        program, times = self._run(slots)
        ends = ends_by_job(program, times, self._names)
        return [self._tick_s * end - load.start_s for end, load in zip(ends, self._loads, strict=True)]

    def _run(self, slots: Slots) -> tuple[Program, Times]:
        program = self._program._replace(duration_s=self._durations(slots))
        times = run(program)
        refuse_deadlock(program, self._names, times, self._loads)
        return program, times

    def _durations(self, slots: Slots) -> Floats:
        """Of every action, in ticks, in the order of the program: job after job, pipeline after pipeline."""
        found = []
        for load, rows, slots_s in zip(self._loads, self._rows, slots, strict=True):
            ticks = None if slots_s is None else np.round(slots_s / self._tick_s)
            places = range(len(load.problem.pipelines))
            found += [rows.durations_in(ticks, place // load.problem.tensor) for place in places]
        return np.concatenate(found)
