"""When the actions of an order run: all of them, or again from the last checkpoint before what a move has changed.

Links are those of the list scheduler: first come, first served, several hops cut through, each message planned at once
over its whole route; no acknowledgements, one replica. Where a message crosses one link at most, times are those of the
event model. Plain functions on arrays that compile.py compiles; times are whole ticks in floats, so equal ones are
equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints

COMPILED: tuple[str, ...] = ()
INLINED = (
    "replay",
    "first_to_end",
    "restored",
    "at_checkpoint",
    "go_on",
    "carried",
    "keep",
    "set_latest",
    "critical_path",
    "judged",
)
"""What becomes part of the compiled functions that call it (order_annealing.py)."""

EVERY = 16
"""Actions between two checkpoints."""

NONE = -1

DONE, AS_BEFORE, WORSE = 0, 1, 2
"""How a replay ends: with the last action; where all that follows is as before; where it is too late, or for ever."""


class Work(NamedTuple):
    """n actions on P ranks; what is the same in every order."""

    row_start: Ints
    """(P + 1,): where each rank's row begins in an order"""
    rank: Ints
    """(n,)"""
    length: Floats
    """(n,)"""
    producer: Ints
    """(n,): the action whose message it needs, or NONE ..."""
    consumer: Ints
    """(n,): ... and the one that takes its own, or NONE"""
    route: Ints
    """(n, hops): the links that its message crosses, NONE behind the last ..."""
    wire: Floats
    """(n, hops): ... and how long it occupies them"""
    delay: Floats
    """(links,): one way"""
    link_free: Floats
    """(links,): since when"""
    handover: Floats
    """(n,): from the last bit to the use of its message; 0 within a rank"""
    ready: Floats
    """(n,): since when its stage has its parameters"""
    unnoticed: float
    """A wait that does not delay a rank."""
    last: Ints
    """(S,): of every stage the action that ends last ..."""
    after: Floats
    """(n,): ... and how long its gradients are reduced after that, 0 of all others"""


class Course(NamedTuple):
    """What happens in an order."""

    arrived: Floats
    """(n,): when an action's input is there"""
    end: Floats
    """(n,)"""
    action: Ints
    """(n,): by the order of their ends ..."""
    step: Ints
    """(n,): ... and where each is in that, n for none"""
    position: Ints
    """(checkpoints, P): each rank's next place in the order ..."""
    ends: Floats
    """(checkpoints, P): ... when that action ends; infinite while its input has not come ..."""
    turn: Ints
    """(checkpoints, P): ... and a number that says whose end was known first"""
    link_free: Floats
    """(checkpoints, links)"""


class Now(NamedTuple):
    """Where a replay is: a row of a course's checkpoints."""

    position: Ints
    ends: Floats
    turn: Ints
    link_free: Floats


def idle_course(work: Work, order: Ints) -> Course:
    """Before anything has happened: its first checkpoint alone is set."""
    n, n_ranks, links = len(order), len(work.row_start) - 1, len(work.delay)
    checkpoints = n // EVERY + 2
    course = Course(
        np.zeros(n),
        np.zeros(n),
        np.zeros(n, np.int64),
        np.full(n, n),
        np.zeros((checkpoints, n_ranks), np.int64),
        np.full((checkpoints, n_ranks), np.inf),
        np.zeros((checkpoints, n_ranks), np.int64),
        np.zeros((checkpoints, links)),
    )
    course.position[0], course.turn[0], course.link_free[0] = work.row_start[:-1], np.arange(n_ranks), work.link_free
    first = np.flatnonzero(work.producer == NONE)
    course.arrived[first] = work.ready[first]
    for rank in range(n_ranks):
        begin = work.row_start[rank]
        if begin < work.row_start[rank + 1] and work.producer[order[begin]] == NONE:
            course.ends[0, rank] = work.ready[order[begin]] + work.length[order[begin]]
    return course


def replay(
    work: Work,
    order: Ints,
    before: Course,
    course: Course,
    now: Now,
    set_in: Ints,
    latest: Floats,
    allowance: float,
    move: int,
    since: int,
    rank: int,
    begin: int,
    end: int,
) -> tuple[int, int]:
    """Run an order that is another one than `before` in the places from `begin` to `end` of a rank's row.

    Begins at the checkpoint `since`, a step; what happens is put into `course`, where `set_in` of an action is `move`.
    It ends early where an action behind the change is later than its `latest` end and the allowance. Returns the step
    at which it ends, and how.
    """
    turn, step, differ = restored(work, order, before, now, since, rank, begin), since, 0
    passed = now.position[rank] > end
    while True:
        if step % EVERY == 0 and at_checkpoint(before, course, now, step // EVERY) and passed and differ == 0:
            return step, AS_BEFORE
        who = first_to_end(now)
        if who == NONE:
            return step, DONE if step == len(order) else WORSE
        action, ends = order[now.position[who]], now.ends[who]
        course.end[action], course.action[step] = ends, action
        if set_in[action] == move and course.arrived[action] != before.arrived[action]:
            differ -= 1
        if passed and ends > latest[action] + allowance:
            return step, WORSE
        passed = passed or (who == rank and now.position[who] >= end)
        now.position[who] += 1
        step += 1
        consumer = work.consumer[action]
        if consumer != NONE:  # who waits for a message goes on before who has sent it
            came = carried(work, now, action, consumer, ends)
            course.arrived[consumer], set_in[consumer] = came, move
            differ += came != before.arrived[consumer]
            other = work.rank[consumer]
            place = now.position[other]
            if other != who and place < work.row_start[other + 1] and order[place] == consumer:
                known = before.end if before.position[since // EVERY, other] == place else course.end
                free = known[order[place - 1]] if place > work.row_start[other] else 0.0
                go_on(work, now, other, consumer, free, came, turn)
                turn += 1
        place = now.position[who]
        now.ends[who] = np.inf
        if place < work.row_start[who + 1]:
            following = order[place]
            producer = work.producer[following]
            new = set_in[following] == move
            if new or producer == NONE or before.step[producer] < since:
                came = course.arrived[following] if new else before.arrived[following]
                go_on(work, now, who, following, ends, came, turn)
                turn += 1


def first_to_end(now: Now) -> int:
    """The rank whose action ends next, of several the one of which that was known first; NONE where all wait."""
    who, ends, first = NONE, np.inf, 0
    for rank in range(len(now.ends)):
        if now.ends[rank] < ends or (now.ends[rank] == ends and who != NONE and now.turn[rank] < first):
            who, ends, first = rank, now.ends[rank], now.turn[rank]
    return who


def restored(work: Work, order: Ints, before: Course, now: Now, since: int, rank: int, begin: int) -> int:
    """Go back to a checkpoint; what the rank does next may be what has changed. Returns the next turn's number."""
    checkpoint, turn = since // EVERY, 0
    for other in range(len(now.position)):
        now.position[other], now.ends[other] = before.position[checkpoint, other], before.ends[checkpoint, other]
        now.turn[other] = before.turn[checkpoint, other]
        turn = max(turn, now.turn[other] + 1)
    for link in range(len(now.link_free)):
        now.link_free[link] = before.link_free[checkpoint, link]
    if now.position[rank] == begin and begin < work.row_start[rank + 1]:
        action = order[begin]
        free = before.end[order[begin - 1]] if begin > work.row_start[rank] else 0.0
        producer = work.producer[action]
        now.ends[rank] = np.inf
        if producer == NONE or before.step[producer] < since:
            go_on(work, now, rank, action, free, before.arrived[action], now.turn[rank])
    return turn


def at_checkpoint(before: Course, course: Course, now: Now, checkpoint: int) -> bool:
    """Note a checkpoint; whether it is the one of before."""
    same = True
    for rank in range(len(now.position)):
        course.position[checkpoint, rank], course.ends[checkpoint, rank] = now.position[rank], now.ends[rank]
        course.turn[checkpoint, rank] = now.turn[rank]
        same &= before.position[checkpoint, rank] == now.position[rank]
        same &= before.ends[checkpoint, rank] == now.ends[rank]
    for link in range(len(now.link_free)):
        course.link_free[checkpoint, link] = now.link_free[link]
        same &= before.link_free[checkpoint, link] == now.link_free[link]
    return same


def go_on(work: Work, now: Now, rank: int, action: int, free: float, came: float, turn: int) -> None:
    """A rank that is free since then knows when its next action ends."""
    start = came if came > free + work.unnoticed else free
    now.ends[rank], now.turn[rank] = start + work.length[action], turn


def carried(work: Work, now: Now, action: int, consumer: int, sent: float) -> float:
    """When a message is there."""
    first_bit, last_bit = sent, sent
    for hop in range(work.route.shape[1]):
        link = work.route[action, hop]
        if link == NONE:
            break
        start = max(first_bit, now.link_free[link])
        now.link_free[link] = max(start + work.wire[action, hop], last_bit)
        first_bit, last_bit = start + work.delay[link], now.link_free[link] + work.delay[link]
    came: float = max(last_bit + work.handover[action], work.ready[consumer])
    return came


def judged(work: Work, before: Course, course: Course, since: int, until: int) -> tuple[float, float]:
    """The makespan, and the mean of the ends of all stages; `course` has what ended from step to step, `before` the
    rest."""
    last, total = 0.0, 0.0
    for stage in range(len(work.last)):
        action = work.last[stage]
        new = since <= before.step[action] < until or before.step[action] == len(before.step)
        end = (course.end[action] if new else before.end[action]) + work.after[action]
        last, total = max(last, end), total + end
    return last, total / len(work.last)


def keep(work: Work, before: Course, course: Course, since: int, until: int) -> None:
    """Take what is new from step to step over into `before`."""
    for step in range(since, until):
        action = course.action[step]
        before.action[step], before.step[action], before.end[action] = action, step, course.end[action]
        consumer = work.consumer[action]
        if consumer != NONE:
            before.arrived[consumer] = course.arrived[consumer]
    for checkpoint in range(since // EVERY, (until - 1) // EVERY + 1):
        for rank in range(before.position.shape[1]):
            before.position[checkpoint, rank] = course.position[checkpoint, rank]
            before.ends[checkpoint, rank] = course.ends[checkpoint, rank]
            before.turn[checkpoint, rank] = course.turn[checkpoint, rank]
        for link in range(before.link_free.shape[1]):
            before.link_free[checkpoint, link] = course.link_free[checkpoint, link]


def set_latest(
    work: Work, order: Ints, place: Ints, course: Course, makespan: float, latest: Floats, since: int, until: int
) -> None:
    """Until when each action may end without the last one being later, as long as messages keep their order on links.

    Backwards from the step `until`; before `since` only as far as something has changed.
    """
    step, down_to = until - 1, since
    while step >= down_to:
        action = course.action[step]
        limit, behind, consumer = makespan - work.after[action], place[action] + 1, work.consumer[action]
        if behind < work.row_start[work.rank[action] + 1]:
            limit = min(limit, latest[order[behind]] - work.length[order[behind]])
        if consumer != NONE:
            on_its_way = course.arrived[consumer] - course.end[action]
            limit = min(limit, latest[consumer] - work.length[consumer] - on_its_way)
        if limit != latest[action]:
            latest[action] = limit
            if place[action] > work.row_start[work.rank[action]]:
                down_to = min(down_to, course.step[order[place[action] - 1]])
            if work.producer[action] != NONE:
                down_to = min(down_to, course.step[work.producer[action]])
        step -= 1


def critical_path(work: Work, order: Ints, place: Ints, course: Course, path: Ints) -> int:
    """Places of actions none of which can be later without the last one being later; returns how many there are."""
    action, last, count = NONE, -1.0, 0
    for stage in range(len(work.last)):
        candidate = work.last[stage]
        end = course.end[candidate] + work.after[candidate]
        if end > last:
            action, last = candidate, end
    while action != NONE:
        here = place[action]
        path[count], count = here, count + 1
        before = order[here - 1] if here > work.row_start[work.rank[action]] else NONE
        producer = work.producer[action]
        in_row = before != NONE and (producer == NONE or course.end[before] >= course.arrived[action])
        action = before if in_row else producer
    return count
