"""The event model of the same jobs on one choice of routes after another: lowered once for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from testbed.model.lower import Load, columns_of
from testbed.model.program import Program
from testbed.model.program_columns import RowNames
from testbed.model.simulate import ends_by_job, events_of, in_seconds, jobs_in_ticks, refuse_deadlock, run, trace_of
from testbed.model.state import Times
from testbed.pipeline.problem import Problem, Route
from testbed.pipeline.ticks import tick_s
from testbed.trace.tables import Trace


class JobRoutes(NamedTuple):
    """Other routes of some messages of a job."""

    pipelines: Sequence[Mapping[tuple[int, int], Route]]
    """Per pipeline, by source and target rank in it."""
    gathers: Sequence[Mapping[tuple[int, int], Route]]
    """Per all-gather of the problem, by source and target member."""
    reductions: Sequence[Mapping[tuple[int, int], Route]]


def rerouted(problem: Problem, taken: JobRoutes) -> Problem:
    """A problem with other routes in the place of some of its own."""
    pipelines = [
        pipeline._replace(routes={**pipeline.routes, **mine})
        for pipeline, mine in zip(problem.pipelines, taken.pipelines, strict=True)
    ]
    gathers, reductions = (
        tuple(what._replace(routes={**what.routes, **mine}) for what, mine in zip(each, routes, strict=True))
        for each, routes in ((problem.all_gather, taken.gathers), (problem.reductions, taken.reductions))
    )
    return replace(problem, pipelines=tuple(pipelines), all_gather=gathers, reductions=reductions)


class ReroutedRun(NamedTuple):
    """What the event model says of one choice of routes."""

    loads: Sequence[Load]
    program: Program
    names: RowNames
    times: Times
    """In ticks ..."""
    tick_s: float
    """... of so many seconds each."""

    @property
    def events(self) -> int:
        """About how much happens in it."""
        return events_of(self.program)

    def trace(self) -> Trace:
        """As `simulate_jobs`."""
        return trace_of(self.program, self.names, in_seconds(self.times, self.tick_s), self.loads)

    def times_s(self) -> tuple[float, ...]:
        """Per job, seconds from its start to its last end or reduction, as `ends_of_jobs` has the ends."""
        ends = ends_by_job(self.program, self.times, self.names)
        return tuple(self.tick_s * end - load.start_s for end, load in zip(ends, self.loads, strict=True))


class ReroutedJobs:
    """Jobs that share a network, an iteration of each, whose messages take other routes every time."""

    def __init__(self, loads: Sequence[Load]) -> None:
        """Raises ValueError when the jobs do not have the same links."""
        self._loads = loads
        self._lower(loads)

    def _lower(self, loads: Sequence[Load]) -> None:
        self._tick_s, self._counted = jobs_in_ticks(loads)
        self._columns = columns_of(self._counted)
        self._program, self._names = self._columns.program(self._counted[0].problem), self._columns.names()

    def run(self, taken: Sequence[JobRoutes]) -> ReroutedRun:
        """On these routes of the jobs. Raises DeadlockError when a schedule cannot finish."""
        loads = [
            load._replace(problem=rerouted(load.problem, mine)) for load, mine in zip(self._loads, taken, strict=True)
        ]
        if (tick_s(*(load.problem for load in loads)) or 1.0) == self._tick_s:
            counted = [
                replace(load.problem, pipelines=on.pipelines, all_gather=on.all_gather, reductions=on.reductions)
                for load, on in zip(self._counted, (load.problem for load in loads), strict=True)
            ]
            self._program = self._columns.rerouted(self._program, counted)
        else:  # times are counted otherwise where links of other speeds are taken
            self._lower(loads)
        times = run(self._program)
        refuse_deadlock(self._program, self._names, times, loads)
        return ReroutedRun(loads, self._program, self._names, times, self._tick_s)
