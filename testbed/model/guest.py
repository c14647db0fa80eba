"""What a guest under the virtual clock adds to the model: one processor plays all ranks, and its clock costs to read.

User-Mode Linux moves its virtual time by 256 ns whenever a process reads the clock (`timer_read` in arch/um/kernel/
time.c says why), which gloo, TCP and the engine do some seventeen times for a message. What ranks do at one instant is
done one after the other, so that hundreds of messages at once delay each other by a millisecond. The model proper knows
the ranks of an experiment, each on a machine of its own; here the one processor is added, to say how much it comes to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.model.lower import Load, lower
from testbed.model.network import Floats
from testbed.model.simulate import ends_by_job, run
from testbed.trace.tables import NOTICE

SEND_S, TAKE_S = 1.6e-6, 2.6e-6
"""Of the guest's one processor, for a message that is sent and for one that is taken. Found on plan 6 of
benchmarks/option_pairs.py (192 all-gathers at once); checked on benchmarks/guest_costs.py and on other plans of it."""

_ROUNDS, _SETTLED = 12, 0.02
"""So many times at most messages are delayed by what the delays of the time before made of their order, until
iterations change by less than this share of what is added."""


def guest_shares(loads: Sequence[Load], least: float) -> list[float]:
    """Per job, by what share of an iteration a guest makes it longer; 0.0 of all where no job comes to `least`.

    Messages wait for the processor in the order in which they are sent and come. What waits comes later, which parts
    others, so that the waits are found by repetition. Raises DeadlockError as a prediction.
    """
    program, names = lower(loads)
    # gloo's thread answers a notice without waking anybody
    crossing = np.flatnonzero(~program.local & (names.messages["kind"] != NOTICE))
    times = run(program)
    starts = np.array([load.start_s for load in loads])
    alone = np.array(ends_by_job(program, times, names)) - starts
    nothing = [0.0] * len(loads)
    if len(crossing) * (SEND_S + TAKE_S) < least * alone.min():
        return nothing
    waits: Floats = np.zeros(len(program.release))
    shares: Floats = np.zeros(len(loads))
    for number in range(_ROUNDS):
        came = times.arrived_s[crossing] - waits[crossing]
        found = queued_s(times.sent_s[crossing], came)
        # half way: what was delayed too much comes too late to delay others, and the other way round
        waits[crossing] = found if number == 0 else (found + waits[crossing]) / 2
        times = run(program._replace(handover_s=program.handover_s + waits))
        before, shares = shares, (np.array(ends_by_job(program, times, names)) - starts) / alone - 1
        # at first every message waits for all before it and for what these waited: more than it comes to
        if shares.max() < least:
            return nothing
        if np.abs(shares - before).max() < _SETTLED * shares.max():
            break
    return [float(share) for share in shares]


def queued_s(sent_s: Floats, came_s: Floats) -> Floats:
    """Per message, how long it stands in the processor's queue, when it is sent and when it comes: first come, first
    served."""
    when = np.concatenate((sent_s, came_s))
    cost = np.repeat((SEND_S, TAKE_S), len(sent_s))
    order = np.argsort(when, kind="stable")
    before = np.concatenate(([0.0], np.cumsum(cost[order])[:-1]))
    waits: Floats = np.empty(len(when))
    waits[order] = before + np.maximum.accumulate(when[order] - before) - when[order]
    return waits[: len(sent_s)] + waits[len(sent_s) :]
