"""The event model: executes schedules on the costs of their problems and returns the trace that it predicts.

program.py says what is executed, execute.py how, network.py what links do with messages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from testbed.files import user_cache
from testbed.model import execute as plain
from testbed.model.lower import Load, lower, shared_by
from testbed.model.program import NONE, Program
from testbed.model.program_columns import RowNames
from testbed.model.state import Times
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem, Receives
from testbed.pipeline.ticks import in_ticks, tick_s
from testbed.trace.tables import ACTION, KINDS, MESSAGE, Table, Trace, rows

LARGE = 3000
"""Actions from which the compiled loop is worth its import."""

COMPILED = "testbed.model.compiled"
"""The module that has it."""

_WORTH_IMPORT, _WORTH_COMPILING = 50_000, 3_000_000
"""Events (some 10 us each, interpreted) that are worth the import where machine code is kept, and where it is not."""


class DeadlockError(RuntimeError):
    """The schedule waits for itself; `validate` says where."""


def simulate(problem: Problem, schedule: Schedule, *, receives: Receives | None = None) -> Trace:
    """The predicted trace of one iteration of one job, all its replicas.

    `receives="late"` adds gloo's rendezvous: a receive is posted when its rank reaches the action, and the message does
    not leave before the notice of that has crossed the network; `late-free-notice` is the same with a notice that takes
    no time; None: as the problem has it. Raises DeadlockError when the schedule cannot finish.
    """
    return simulate_jobs([Load(problem, schedule, 0.0, receives or problem.receives)])


def simulate_jobs(loads: Sequence[Load]) -> Trace:
    """The predicted trace of jobs that share a network, an iteration of each.

    Raises DeadlockError when a schedule cannot finish, ValueError when the jobs do not have the same links.
    """
    tick, counted = jobs_in_ticks(loads)
    program, names = lower(counted)
    times = in_seconds(run(program), tick)
    refuse_deadlock(program, names, times, loads)
    return trace_of(program, names, times, loads)


_SECONDS = tuple(name for name in Times._fields if name != "awaited")


def in_seconds(times: Times, tick: float) -> Times:
    """What came out in ticks, of so many seconds each."""
    return times._replace(**{name: getattr(times, name) * tick for name in _SECONDS})


def jobs_in_ticks(loads: Sequence[Load]) -> tuple[float, list[Load]]:
    """Seconds per tick, and the jobs in ticks: whom a link serves first must not depend on the unit of time."""
    tick = tick_s(*(load.problem for load in loads))
    if tick in (0.0, 1.0):
        return 1.0, list(loads)
    counted = [in_ticks(load.problem, tick) for load in loads]
    # links are rounded to the messages of a job, and jobs with other messages have the same ones
    if all(shared_by(load.problem) == shared_by(loads[0].problem) for load in loads):
        links, changes, streams = counted[0].links, counted[0].changes, counted[0].streams
        counted = [replace(problem, links=links, changes=changes, streams=streams) for problem in counted]
    return tick, [
        load._replace(
            problem=problem,
            start_s=start_in_ticks(load.start_s, tick),
            slots_s=None if load.slots_s is None else np.round(load.slots_s / tick),
        )
        for load, problem in zip(loads, counted, strict=True)
    ]


def start_in_ticks(start_s: float, tick: float) -> float:
    """When a job begins, in ticks as `jobs_in_ticks` has them; of a second each it has them as they are."""
    return start_s if tick == 1.0 else float(round(start_s / tick))


@dataclass
class _Interpreted:
    """What this process has executed without machine code."""

    events: int = 0


_SO_FAR = _Interpreted()


def run(program: Program, *, compiled: bool | None = None) -> Times:
    """Execute a program, compiled where that is worth it (or as asked for).

    It is for a large one, and as soon as small ones have taken as long together as the import takes: a controller
    predicts its candidates in every iteration.
    """
    if compiled is None:
        if len(program.duration_s) <= LARGE and COMPILED not in sys.modules:
            _SO_FAR.events += events_of(program)
            compile_for(_SO_FAR.events)
        compiled = len(program.duration_s) > LARGE or COMPILED in sys.modules
    if compiled:
        from testbed.model.compiled import execute  # slow to import

        return execute(program, program.in_order())  # type: ignore[no-any-return]
    return plain.execute(program, program.in_order())


def events_of(program: Program) -> int:
    """About how much happens in a run, and so what it costs: actions, and pieces of messages on links."""
    hops = np.diff(program.route_start)[program.route]
    return len(program.duration_s) + int((np.maximum(program.pieces, 1) * np.maximum(hops, 1)).sum())


def compile_for(events: int) -> None:
    """Have the event model run compiled from now on, where so many events to come are worth it."""
    if events > _WORTH_IMPORT and (events > _WORTH_COMPILING or _machine_code_is_kept()):
        import testbed.model.compiled  # noqa: F401 - slow to import


def _machine_code_is_kept() -> bool:
    try:
        return user_cache("compiled").is_dir()
    except RuntimeError:  # a user without home
        return False


def makespan(
    problem: Problem, schedule: Schedule, *, receives: Receives | None = None, compiled: bool | None = None
) -> float:
    """Seconds from the common start to the last end or reduction on any rank; None: with receives as the problem has
    them. Raises DeadlockError."""
    tick, counted = jobs_in_ticks([Load(problem, schedule, 0.0, receives or problem.receives)])
    program, _ = lower(counted)
    return seconds_of(program, tick, schedule.name, compiled=compiled)


def seconds_of(program: Program, tick: float, name: str, *, compiled: bool | None = None) -> float:
    """Seconds to the last end or reduction of a schedule's program in ticks. Raises DeadlockError."""
    times = run(program, compiled=compiled)
    # as `last_end`, which is slow where it is not compiled; nan where one never comes
    seconds = tick * float(np.concatenate((times.end_s, times.arrived_s[program.last])).max(initial=0.0))
    if np.isnan(seconds):
        raise DeadlockError(f"schedule {name} waits for itself")
    return seconds


def ends_of_jobs(loads: Sequence[Load]) -> tuple[float, ...]:
    """Per job that shares the network, seconds from the common start to its last end or reduction.

    What the trace of `simulate_jobs` says, without the trace. Raises as it does.
    """
    tick, counted = jobs_in_ticks(loads)
    program, names = lower(counted)
    times = run(program)
    refuse_deadlock(program, names, times, loads)
    return tuple(tick * end for end in ends_by_job(program, times, names))


def ends_by_job(program: Program, times: Times, names: RowNames) -> list[float]:
    """Per job, from the common start to the end of its last action and reduction; nan when one never comes."""
    job_of_last = names.messages["job"][program.last]
    found = []
    for job in range(int(names.action_job.max()) + 1):
        ends, reduced = times.end_s[names.action_job == job], times.arrived_s[program.last[job_of_last == job]]
        found.append(float(np.concatenate((ends, reduced)).max()))
    return found


def refuse_deadlock(program: Program, names: RowNames, times: Times, loads: Sequence[Load]) -> None:
    """Raises DeadlockError where an action never came to run."""
    stuck = np.flatnonzero(np.isnan(times.end_s))
    if not len(stuck):
        return
    index = int(stuck[0])
    place = int(np.searchsorted(program.row_start, index, side="right")) - 1
    schedule = loads[int(names.action_job[index])].schedule
    row = schedule.rows[place % schedule.n_ranks]
    action = row[index - int(program.row_start[place])]
    raise DeadlockError(f"schedule {schedule.name}: rank {names.action_rank[index]} never gets past {action}")


def trace_of(program: Program, names: RowNames, times: Times, loads: Sequence[Load]) -> Trace:
    """The tables of what happened: actions by rank, messages by time of arrival."""
    actions = rows(ACTION, len(program.duration_s))
    _name_actions(actions, loads)
    actions["job"], actions["replica"], actions["rank"] = names.action_job, names.action_replica, names.action_rank
    actions["reached_s"], actions["ready_s"] = times.reached_s, times.ready_s
    actions["start_s"], actions["computed_s"], actions["end_s"] = times.start_s, times.end_s, times.end_s
    taken_s = times.arrived_s.copy()
    waits = program.needs >= 0
    taken_s[program.needs[waits]] = np.maximum(taken_s[program.needs[waits]], times.reached_s[waits])
    happened = np.flatnonzero(~np.isnan(times.arrived_s) & ~program.local & (program.part_of == NONE))
    order = happened[np.argsort(times.arrived_s[happened], kind="stable")]
    messages = rows(MESSAGE, len(order))
    for name in ("job", "kind", "stage", "microbatch", "source_rank", "target_rank", "payload_bytes", "wire_bytes"):
        messages[name] = names.messages[name][order]
    messages["posted_s"], messages["sent_s"] = times.posted_s[order], times.sent_s[order]
    messages["arrived_s"], messages["taken_s"] = times.arrived_s[order], taken_s[order]
    messages["awaited"] = times.awaited[order] > 0
    actions = actions[np.argsort(actions["rank"], kind="stable")]
    return Trace(actions, messages, len(program.begin_s))


def _name_actions(actions: Table, loads: Sequence[Load]) -> None:
    """Stage, kind, microbatch and part of every action, pipeline after pipeline."""
    codes = {kind: code for code, kind in enumerate(KINDS)}
    columns = ("stage", "kind", "microbatch", "part_begin", "part_end", "part_of")
    place = 0
    for load in loads:
        named = [(a.stage, codes[a.kind], a.microbatch, *a.part) for row in load.schedule.rows for a in row]
        for _ in load.problem.pipelines:
            mine = actions[place : place + len(named)]
            for column, values in zip(columns, zip(*named, strict=True), strict=True):
                mine[column] = values
            place += len(named)
