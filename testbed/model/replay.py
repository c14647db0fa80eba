"""How long the links take for messages that were really sent: the event model's network, without its ranks.

Where jobs share a link, a rank that is a little late lets another job's message go first, and both then arrive at other
times than predicted, though the link is as it should be. What the network owes a message is told by when all were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from testbed.model.lower import Load, lower
from testbed.model.network import Floats, Ints
from testbed.model.program import NONE, Program
from testbed.model.simulate import run
from testbed.trace.tables import Table, Trace

_NAME = ("job", "kind", "stage", "microbatch", "source_rank", "target_rank")


def on_the_way_s(
    loads: Sequence[Load],
    measured: Sequence[Trace],
    *,
    order_sensitive: bool = False,
    loads_of: Callable[[int], Sequence[Load]] | None = None,
) -> list[Floats | None]:
    """Per job, seconds from being sent to being there for each of its messages.

    `measured` are the same iterations of every job, with ranks from 0 and times from the job's own start. None for a
    job that is alone, whose own schedule says who sends when, unless its prediction is `order_sensitive` (depends on
    which message comes first); and with late receives, where messages wait for notices. `loads_of` an iteration: the
    same jobs, where links change.
    Raises KeyError for a message that the jobs do not send.
    """
    if (len(loads) == 1 and not order_sensitive) or any(load.receives != "early" for load in loads):
        return [None] * len(loads)
    program, names = lower(loads)
    whole = np.flatnonzero(program.part_of == NONE)
    number = dict(zip(_names(names.messages[whole]), whole.tolist(), strict=True))
    first_rank = [int(names.action_rank[names.action_job == job].min()) for job in range(len(loads))]
    each = zip(loads, measured, first_rank, strict=True)
    moved = [
        trace.as_job(job, range(first, first + trace.n_ranks), load.start_s).messages
        for job, (load, trace, first) in enumerate(each)
    ]
    messages = np.concatenate(moved)
    numbers = np.array([number[name] for name in _names(messages)], np.int64)
    taken_s = np.zeros(len(messages))
    for iteration in sorted(set(messages["iteration"].tolist())):
        mine = np.flatnonzero(messages["iteration"] == iteration)
        now = program if loads_of is None else lower(loads_of(iteration))[0]
        taken_s[mine] = _replayed_s(_without_ranks(now), numbers[mine], messages["sent_s"][mine])
    return list(np.split(taken_s, np.cumsum([len(part) for part in moved])[:-1]))


class MeasuredIterations(NamedTuple):
    """Of a job that runs freely, all that it trained."""

    load: Load
    trace: Trace
    """With ranks from 0, and times from the beginning of each iteration."""
    begins_s: Floats
    """When each began, in seconds since the common start of all jobs."""
    left_out: Sequence[int]
    """Iterations of which nothing is asked; what they sent was on the links all the same."""


def freely_on_the_way_s(jobs: Sequence[MeasuredIterations]) -> list[Floats | None]:
    """The same of jobs that run freely: per job, of the messages of all iterations but those that are left out.

    Of a job by itself, too: its iterations are a program of their own. Raises KeyError as `on_the_way_s`.
    """
    if any(job.load.receives != "early" for job in jobs):
        return [None] * len(jobs)
    loads = [job.load for job in jobs for _ in job.begins_s]
    program, names = lower(loads)
    whole = np.flatnonzero(program.part_of == NONE)
    number = dict(zip(_names(names.messages[whole]), whole.tolist(), strict=True))
    sizes = [job.trace.n_ranks for job in jobs for _ in job.begins_s]
    first_rank, first, moved = np.concatenate(([0], np.cumsum(sizes))), 0, []
    for job in jobs:
        messages = job.trace.messages.copy()
        which = first + messages["iteration"]
        messages["job"] = which
        messages["sent_s"] += job.begins_s[messages["iteration"]]
        for end in ("source_rank", "target_rank"):
            messages[end] += first_rank[which].astype(messages[end].dtype)
        first += len(job.begins_s)
        moved.append(messages)
    every = np.concatenate(moved)
    numbers = np.array([number[name] for name in _names(every)], np.int64)
    taken_s = _replayed_s(_without_ranks(program), numbers, every["sent_s"])
    parts = np.split(taken_s, np.cumsum([len(part) for part in moved])[:-1])
    return [
        part[~np.isin(messages["iteration"], job.left_out)]
        for part, messages, job in zip(parts, moved, jobs, strict=True)
    ]


def _without_ranks(program: Program) -> Program:
    """Its messages alone."""
    return program._replace(
        row_start=np.zeros_like(program.row_start),  # no rank has anything to do
        then_start=np.zeros_like(program.then_start),  # no message waits for another
        gathers=np.full(len(program.release), NONE),
    )


def _replayed_s(program: Program, numbers: Ints, sent_s: Floats) -> Floats:
    """What these messages of a program take that leave at these times."""
    leaving_s = program.first_s.copy()
    leaving_s[numbers] = sent_s
    times = run(program._replace(first=numbers[np.argsort(sent_s, kind="stable")], first_s=leaving_s))
    taken_s: Floats = times.arrived_s[numbers] - sent_s
    return taken_s


def _names(messages: Table) -> list[tuple[int, ...]]:
    return list(zip(*(messages[name].tolist() for name in _NAME), strict=True))
