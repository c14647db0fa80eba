"""The event model of jobs that run freely: iterations of every job on one network whose state goes on.

An iteration of a job begins on all of its ranks when its own iteration before that is over on all of them, and a gap
has passed; other jobs have no part in that. As it ends, ranks post the receives of the iteration after the next: the
notices of these cross the links like any message, among other jobs' messages.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from testbed.grouping import grouped
from testbed.model.frames import NOWHERE, edges_of, framed
from testbed.model.lower import Floats, Load, add_job, begin_s, shared_by
from testbed.model.network import Ints
from testbed.model.program import NONE, Program
from testbed.model.program_columns import Group, ProgramColumns, RowNames
from testbed.model.simulate import (
    compile_for,
    ends_by_job,
    events_of,
    in_seconds,
    jobs_in_ticks,
    refuse_deadlock,
    run,
    trace_of,
)
from testbed.model.state import Times
from testbed.pipeline.collectives import Collective
from testbed.pipeline.problem import PipelineRoutes, Route
from testbed.trace.tables import ACTIVATION, Trace

Iterations = Sequence[Load]
"""Of one job, what each of its iterations puts on the network: they differ in their slots alone, and begin with the
first one's `start_s`."""


class FreeTimes(NamedTuple):
    """When iterations of jobs began and ended, in seconds from the common start; per job (iterations,)."""

    begins_s: Sequence[Floats]
    ends_s: Sequence[Floats]

    def times_s(self, job: int) -> Floats:
        """What every iteration of a job takes."""
        found: Floats = self.ends_s[job] - self.begins_s[job]
        return found


class FreeProgram(NamedTuple):
    """Jobs that run freely as the event loop runs them; times are in ticks."""

    program: Program
    names: RowNames
    """Their jobs are iterations, one job's after another's."""
    tick_s: float
    gap_s: float
    loads: Sequence[Sequence[Load]]
    """In seconds."""

    @property
    def of_iterations(self) -> list[Load]:
        """As the names number them."""
        return [load for job in self.loads for load in job]

    def run(self) -> Times:
        """Raises DeadlockError when a schedule cannot finish."""
        compile_for(events_of(self.program))
        times = run(self.program, compiled="testbed.model.compiled" in sys.modules)
        refuse_deadlock(self.program, self.names, times, self.of_iterations)
        begun = self.program.row_start[:-1].repeat(np.diff(self.program.row_start))
        # what waits for nothing but its rank's beginning is ready then
        return times._replace(ready_s=np.maximum(times.ready_s, times.reached_s[begun]))

    def drifting(self, seed: int, most_s: float) -> FreeTimes:
        """The same where each iteration but a job's first begins by up to so much earlier or later than it should."""
        program, numbers = self.program, self.names.messages["job"]
        late_s = np.random.default_rng(seed).uniform(-most_s, most_s, numbers.max() + 1)
        late = np.where(program.begins == NONE, 0.0, late_s[numbers] / self.tick_s)
        times = self.times(run(program._replace(handover_s=program.handover_s + late)))
        each = np.split(late_s, np.cumsum([len(job) for job in self.loads])[:-1])
        pairs = zip(times.begins_s, each, strict=True)
        return times._replace(begins_s=[begins + np.append(0.0, mine[1:]) for begins, mine in pairs])

    def times(self, times: Times) -> FreeTimes:
        """When iterations began and ended, of what came out of a run of the program."""
        return self.times_of_ends([self.tick_s * end for end in ends_by_job(self.program, times, self.names)])

    def times_of_ends(self, each_s: Sequence[float]) -> FreeTimes:
        """The same of when every iteration ended."""
        ends = iter(each_s)
        ends_s = [np.array([next(ends) for _ in job]) for job in self.loads]
        pairs = zip(self.loads, ends_s, strict=True)
        begins_s = [np.append(job[0].start_s, own[:-1] + self.gap_s) for job, own in pairs]
        return FreeTimes(begins_s, ends_s)


def free_program(jobs: Sequence[Iterations], gap_s: float) -> FreeProgram:
    """The program of jobs that share a network. Raises ValueError when they do not have the same links."""
    tick_s, firsts = jobs_in_ticks([job[0] for job in jobs])
    counted = [
        [first._replace(slots_s=None if load.slots_s is None else np.round(load.slots_s / tick_s)) for load in job]
        for first, job in zip(firsts, jobs, strict=True)
    ]
    problem = firsts[0].problem
    if any(shared_by(one.problem) != shared_by(problem) for one in firsts):
        raise ValueError("jobs of one program share one network")
    columns = ProgramColumns(len(problem.links), frozenset(change.link for change in problem.changes))
    number = 0
    for job in counted:
        over = NONE
        for index, load in enumerate(job):
            starts = [] if over == NONE else _starts(columns, number, load, over, round(gap_s / tick_s))
            over = _iteration(columns, number, load, starts, ahead=index + 2 < len(job))
            number += 1
    return FreeProgram(columns.program(problem), columns.names(), tick_s, gap_s, jobs)


def simulate_freely(jobs: Sequence[Iterations], gap_s: float) -> tuple[Trace, FreeTimes]:
    """The predicted trace of jobs that run freely, each iteration's times from its own beginning; and when each began.

    Raises DeadlockError when a schedule cannot finish, ValueError when the jobs do not have the same links.
    """
    made = free_program(jobs, gap_s)
    ticks = made.run()
    times = made.times(ticks)
    trace = trace_of(made.program, made.names, in_seconds(ticks, made.tick_s), made.of_iterations)
    return _of_iterations(trace, made, times), times


def times_freely(jobs: Sequence[Iterations], gap_s: float) -> FreeTimes:
    """The same without the trace. Raises as `simulate_freely`."""
    made = free_program(jobs, gap_s)
    return made.times(made.run())


# --- what the program has beside the iterations --------------------------------------------------


def _starts(columns: ProgramColumns, number: int, load: Load, over: int, gap: float) -> list[int]:
    """Messages that begin the ranks of an iteration, each a gap after the message that the one before it is `over`."""
    problem, first_rank, found = load.problem, len(columns.row_lengths), list[int]()
    for place in range(len(problem.pipelines)):
        for rank in range(problem.n_ranks):
            mine = first_rank + len(found)
            behind = begin_s(load._replace(start_s=0.0), place, rank)
            message = _signal(columns, number, mine, release=1, handover_s=gap + behind)
            columns.then.append((over, message))
            columns.begins[message] = mine
            found.append(message)
    return found


def _iteration(columns: ProgramColumns, number: int, load: Load, starts: Sequence[int], *, ahead: bool) -> int:
    """An iteration of a job; returns the message that leaves when it is over. `ahead`: receives are posted then."""
    first_rank, first_stage, first_last = len(columns.row_lengths), len(columns.shards), len(columns.last)
    add_job(columns, number, load, starts)
    stages, reduced = range(first_stage, len(columns.shards)), columns.last[first_last:]
    over = _signal(columns, number, first_rank, release=len(stages) + len(reduced), handover_s=0.0)
    for stage in stages:
        columns.reduces[stage].append(over)
    columns.then += [(message, over) for message in reduced]
    if ahead:
        _notices_ahead(columns, number, load, over, first_rank)
    return over


def _signal(columns: ProgramColumns, number: int, rank: int, *, release: int, handover_s: float) -> int:
    """A message that crosses no link and that no trace has."""
    message = columns.n_messages
    columns.group(Group(NOWHERE, True, 1, release, handover_s, 0.0, 0.0))
    columns.name(number, 0, ACTIVATION, 0, range(1), (rank, rank), (0.0, 0.0))
    return message


def _notices_ahead(columns: ProgramColumns, number: int, load: Load, over: int, first_rank: int) -> None:
    """The notices of receives that are posted when an iteration is over: of each rank to another one together."""
    for (place, source, target, there, back), size in _posted_ahead(load).items():
        pipeline = _one_by_one(load.problem.pipelines[place], load.problem.notice_bytes)
        shape = framed(pipeline, source, size, (there, back))
        message = columns.n_messages
        columns.group(Group(shape, True, 1, 1, 0.0, 0.0, 0.0))
        ends = first_rank + place * load.problem.n_ranks + source, first_rank + target
        columns.name(number, 0, ACTIVATION, 0, range(1), ends, (0.0, size))
        columns.then.append((over, message))


def _one_by_one(pipeline: PipelineRoutes, notice_bytes: float) -> PipelineRoutes:
    """Where messages are cut up: each notice is a packet of its own, and acknowledged by one."""
    return pipeline._replace(piece_bytes=(notice_bytes,) * len(pipeline.piece_bytes))


def _posted_ahead(load: Load) -> Mapping[tuple[int, int, int, Route, Route], float]:
    """(pipeline, its rank that posts receives, the rank of the job that sends, route of notices, the way back) -> bytes
    of notices; none where a notice crosses no link."""
    problem, found = load.problem, list[tuple[tuple[int, int, int, Route, Route], float]]()
    edges = edges_of(problem) if load.receives == "early" else ()
    for place, pipeline in enumerate(problem.pipelines):
        for edge in edges:
            routes = pipeline.route(edge.target, edge.source), pipeline.route(edge.source, edge.target)
            size = problem.n_microbatches * len(edge.parts) * problem.notice_bytes
            if edge.source != edge.target:
                found.append(((place, edge.target, place * problem.n_ranks + edge.source, *routes), size))
    for stage, rank in enumerate(problem.stage_to_rank):
        for what in (problem.gather(stage), problem.reduction(stage)):
            found += _of_collective(what, rank, problem.n_ranks, problem.notice_bytes)
    sums = {ends: sum(sizes) for ends, sizes in grouped(found).items()}
    return {ends: size for ends, size in sums.items() if ends[3] and size}


def _of_collective(
    what: Collective, rank: int, n_ranks: int, notice_bytes: float
) -> list[tuple[tuple[int, int, int, Route, Route], float]]:
    found = []
    for step in what.steps:
        routes = what.routes.get((step.target, step.source), ()), what.route(step)
        ends = step.target, rank, step.source * n_ranks + rank
        found.append(((*ends, *routes), len(what.parts(step)) * notice_bytes))
    return found


def _of_iterations(trace: Trace, made: FreeProgram, times: FreeTimes) -> Trace:
    """A trace whose jobs are iterations, as one of jobs with iterations; jobs and ranks are numbered from 0.

    Times are as in a round that began at once: an iteration's own, behind the job's `start_s`.
    """
    counts = [len(job) for job in made.loads]
    sizes = [job[0].problem.n_ranks * len(job[0].problem.pipelines) for job in made.loads]
    job_of, iteration = np.arange(len(counts)).repeat(counts), np.concatenate([*map(np.arange, counts)])
    first_of_job, first_rank = _first(sizes), _first(np.array(sizes)[job_of])
    since_s = np.concatenate(times.begins_s) - np.array([job[0].start_s for job in made.loads])[job_of]
    tables = trace.actions, trace.messages
    for table, ranks in zip(tables, (("rank",), ("source_rank", "target_rank")), strict=True):
        which = table["job"].copy()
        table["job"], table["iteration"] = job_of[which], iteration[which]
        for name in ranks:
            table[name] += (first_of_job[job_of] - first_rank)[which]
        for name in (column for column in table.dtype.names or () if column.endswith("_s")):
            table[name] -= since_s[which]
    return Trace(*tables, sum(sizes))


def _first(sizes: Sequence[int] | Ints) -> Ints:
    """Of each, what all before it are together."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))[:-1]
