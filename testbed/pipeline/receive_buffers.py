"""Which memory each message of an iteration is received into: few pieces of it, each for one message after another.

A receive is posted long before its message comes, so a buffer may be used again only where nobody can send the next
message into it before the rank is done with the last one. No time says that, but the order of actions may: where the
action that makes the next message cannot begin before this rank has ended its last action of the last one's microbatch,
whatever anything takes. Of 1F1B that is as many buffers as a rank holds microbatches, however many there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import Row, Schedule

Numbers = tuple[int, ...]
"""Of a rank, the buffer of every message that it takes from another one, in the order of its row."""


class _Use(NamedTuple):
    """Of a message that a rank takes, in actions of that rank."""

    ended_before: int
    """So many it has surely ended before the message can be sent."""
    needed_until: int
    """It is needed in the first so many."""


def incoming(schedule: Schedule, rank: int) -> list[Message]:
    """The messages that a rank takes from others in an iteration, in the order of its row."""
    holder, taken = schedule.stage_to_rank, (consumed(action, schedule.n_stages) for action in schedule.rows[rank])
    return [message for message in taken if message is not None and holder[message.stage] != rank]


def come_in_order(schedule: Schedule) -> tuple[bool, ...]:
    """Per rank: whether the messages from each other rank come in the order in which it takes them, whatever anything
    takes.

    They do where they are sent in that order, over one connection: a message leaves when it is sent and its receive is
    known to be posted, and receives are posted in the order in which they are taken (docs/how-true.md).
    """
    n_stages, holder = schedule.n_stages, schedule.stage_to_rank
    sent: dict[tuple[int, int], list[Message]] = {}
    for rank, action in schedule.actions():
        made = produced(action, n_stages)
        if made is not None:
            sent.setdefault((rank, holder[made.consumer]), []).append(made)
    found = []
    for rank in range(schedule.n_ranks):
        taken: dict[int, list[Message]] = {}
        for message in incoming(schedule, rank):
            taken.setdefault(holder[message.stage], []).append(message)
        found.append(all(messages == sent[source, rank] for source, messages in taken.items()))
    return tuple(found)


def own_buffers(schedule: Schedule) -> tuple[Numbers, ...]:
    """Per rank: every message has one for itself, whatever the order of actions."""
    return tuple(tuple(range(len(incoming(schedule, rank)))) for rank in range(schedule.n_ranks))


def shared_buffers(schedule: Schedule) -> tuple[Numbers, ...]:
    """Per rank: as few as the order of actions proves to be enough; iterations come one after the other.

    Raises ValueError for rows that wait for each other in a circle.
    """
    before = _ended_before(schedule)
    return tuple(_numbered(_uses(schedule, rank, before)) for rank in range(schedule.n_ranks))


def _uses(schedule: Schedule, rank: int, before: dict[Message, NDArray[np.int64]]) -> list[_Use]:
    row = schedule.rows[rank]
    last = {(action.stage, action.microbatch): place + 1 for place, action in enumerate(row)}
    return [
        _Use(int(before[message][rank]), last[message.consumer, message.microbatch])
        for message in incoming(schedule, rank)
    ]


def _numbered(uses: Sequence[_Use]) -> Numbers:
    """As few buffers as there are messages at once: one that is free again first is taken first."""
    numbers, free = [0] * len(uses), list[tuple[int, int]]()
    for place in sorted(range(len(uses)), key=lambda place: uses[place]):
        use = uses[place]
        again = free and free[0][0] <= use.ended_before
        number = heapq.heappop(free)[1] if again else len(free)
        numbers[place] = number
        heapq.heappush(free, (use.needed_until, number))
    return tuple(numbers)


def _ended_before(schedule: Schedule) -> dict[Message, NDArray[np.int64]]:
    """By message between ranks, how many actions every rank has surely ended when the one that makes it begins.

    These are vector clocks: an action knows what the one before it in its row knows, and what the maker of its input.
    """
    rows, n_stages = schedule.rows, schedule.n_stages
    known = np.zeros((schedule.n_ranks, schedule.n_ranks), dtype=np.int64)
    places, made, before = [0] * schedule.n_ranks, dict[Message, NDArray[np.int64]](), {}
    waiting: dict[Message, int] = {}
    able = list(range(schedule.n_ranks))
    while able:
        rank = able.pop()
        row, clock = rows[rank], known[rank]
        while places[rank] < len(row):
            action = row[places[rank]]
            takes, makes = consumed(action, n_stages), produced(action, n_stages)
            if takes is not None:
                if takes not in made:
                    waiting[takes] = rank
                    break
                np.maximum(clock, made.pop(takes), out=clock)
            if makes is not None:
                before[makes] = clock.copy()
            places[rank] += 1
            clock[rank] = places[rank]
            if makes is not None:
                made[makes] = clock.copy()
                if makes in waiting:
                    able.append(waiting.pop(makes))
    _require_all_ended(rows, places)
    return before


def _require_all_ended(rows: Sequence[Row], places: Sequence[int]) -> None:
    stands = next((rank for rank, row in enumerate(rows) if places[rank] < len(row)), None)
    if stands is not None:
        raise ValueError(f"rank {stands} waits for ever at {rows[stands][places[stands]]}")
