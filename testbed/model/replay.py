"""How long the links take for messages that were really sent: the event model's network, without its ranks.

Where jobs share a link, a rank that is a little late lets another job's message go first, and both then arrive at other
times than predicted, though the link is as it should be. What the network owes a message is told by when all were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
