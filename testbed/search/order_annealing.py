"""The loop of simulated annealing on orders, as plain functions on arrays that compile.py compiles (anneal.py)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints
from testbed.search.course import EVERY, NONE, WORSE, Course, Now, Work, critical_path, judged, keep, replay, set_latest

COMPILED = ("anneal",)
INLINED = ("begun", "drawn_target", "shifted", "fits_between", "put_back", "accepted")
"""What compile.py compiles of this module, and what becomes part of that."""

WITHOUT_LOCK = ("anneal",)
"""Annealings run in threads side by side (compile.py)."""

FARTHEST = 5
"""Places an action may move at once, earlier or later."""

SHARE_ON_CRITICAL_PATH = 0.75
"""Share of the moves that are drawn from the actions on which the makespan hangs; the others from all."""

MAKESPAN, SCORE, BEST, PATH_LENGTH, MOVES_MADE, WEIGHT_OF_ENDS = 0, 1, 2, 3, 4, 5
"""What `Search.numbers` holds: of the order at hand its makespan and what is compared; the best makespan; how many
actions are on the critical path; moves made; what the mean of the stages' own ends counts beside the makespan."""


class ActionMemory(NamedTuple):
    """What actions are, and what they hold."""

    stage: Ints
    kind: Ints
    microbatch: Ints
    needed: Floats
    """What an action needs beside what is held ..."""
    delta: Floats
    """... and what it adds to that."""
    limit: Floats
    """(P,): the most that may be held"""


class Search(NamedTuple):
    """Where a search is; goes on from call to call."""

    order: Ints
    """(n,): the order at hand ..."""
    place: Ints
    """... each action's place in it ..."""
    held: Floats
    """... what is held before each place ..."""
    latest: Floats
    """... until when each action may end without the last one being later ..."""
    path: Ints
    """... and the places of its critical path."""
    trial: Ints
    """What is tried: the order at hand but for one move."""
    best: Ints
    """The best order met."""
    set_in: Ints
    """The move in which an action's arrival was set last (course.replay)."""
    numbers: Floats
    """(6,): see MAKESPAN"""


def anneal(
    work: Work,
    what: ActionMemory,
    search: Search,
    course: Course,
    tried: Course,
    now: Now,
    moves: int,
    seed: int,
    temperature: float,
    cooling: float,
) -> None:
    """Make `moves` moves; a move that makes the order worse by d is kept with probability exp(-d / temperature).

    The temperature is multiplied by `cooling` at every move. `course` is that of the order at hand, `tried` and `now`
    are room to work in. The first move of a search is none: it finds out how long the order takes that it begins with.
    """
    np.random.seed(seed)
    n, numbers = len(search.order), search.numbers
    for _ in range(moves):
        move = int(numbers[MOVES_MADE])
        numbers[MOVES_MADE] += 1
        if move == 0:
            begun(work, what, search, course, tried, now)
            continue
        temperature *= cooling
        source = np.random.randint(n)
        if np.random.random() < SHARE_ON_CRITICAL_PATH:
            source = search.path[np.random.randint(int(numbers[PATH_LENGTH]))]
        step = 1 - 2 * np.random.randint(2)
        farthest = source + step * (1 + np.random.randint(FARTHEST))
        rank = work.rank[search.order[source]]
        target = drawn_target(work, what, search.order, source, step, farthest)
        if target == source:
            continue
        begin, end = min(source, target), max(source, target)
        shifted(search, source, target, step)
        if not fits_between(what, search, begin, end, what.limit[rank]):
            put_back(search, begin, end)
            continue
        allowance = -temperature * np.log(1.0 - np.random.random())
        since = 0
        if begin > work.row_start[rank]:
            since = course.step[search.order[begin - 1]] // EVERY * EVERY
        state = (search.set_in, search.latest, allowance, move, since, rank, begin, end)
        until, ending = replay(work, search.trial, course, tried, now, *state)
        if ending == WORSE:
            put_back(search, begin, end)
            continue
        makespan, mean = judged(work, course, tried, since, until)
        score = makespan + numbers[WEIGHT_OF_ENDS] * mean
        if makespan < numbers[BEST]:
            numbers[BEST] = makespan
            search.best[:] = search.trial
        if score > numbers[SCORE] + allowance:
            put_back(search, begin, end)
            continue
        numbers[SCORE] = score
        accepted(work, what, search, course, tried, (begin, end), (since, until), makespan)


def begun(work: Work, what: ActionMemory, search: Search, course: Course, tried: Course, now: Now) -> None:
    """Find out what happens in the order that a search begins with."""
    n = len(search.order)
    everything = (search.set_in, search.latest, np.inf, 0, 0, 0, NONE, n)
    until, _ = replay(work, search.order, course, tried, now, *everything)
    makespan, mean = judged(work, course, tried, 0, until)
    search.numbers[SCORE] = makespan + search.numbers[WEIGHT_OF_ENDS] * mean
    search.numbers[BEST] = makespan
    accepted(work, what, search, course, tried, (0, n - 1), (0, until), makespan)


def drawn_target(work: Work, what: ActionMemory, order: Ints, source: int, step: int, farthest: int) -> int:
    """How far an action can move, `step` by step (1 or -1): not past one of its stage that is of its microbatch, or of
    its kind, nor out of its row."""
    action, target = order[source], source
    rank = work.rank[action]
    while target != farthest:
        place = target + step
        if place < work.row_start[rank] or place >= work.row_start[rank + 1]:
            break
        other = order[place]
        same = what.microbatch[other] == what.microbatch[action] or what.kind[other] == what.kind[action]
        if same and what.stage[other] == what.stage[action]:
            break
        target = place
    return target


def shifted(search: Search, source: int, target: int, step: int) -> None:
    """Try the order with the action at `source` at `target`."""
    for place in range(source, target, step):
        search.trial[place] = search.order[place + step]
    search.trial[target] = search.order[source]


def fits_between(what: ActionMemory, search: Search, begin: int, end: int, limit: float) -> bool:
    """Whether the places from `begin` to `end` keep within their rank's memory."""
    held = search.held[begin]
    for place in range(begin, end + 1):
        action = search.trial[place]
        if what.needed[action] > 0 and held + what.needed[action] > limit:
            return False
        held += what.delta[action]
    return True


def put_back(search: Search, begin: int, end: int) -> None:
    """Try the order at hand again."""
    for place in range(begin, end + 1):
        search.trial[place] = search.order[place]


def accepted(
    work: Work,
    what: ActionMemory,
    search: Search,
    course: Course,
    tried: Course,
    places: tuple[int, int],
    steps: tuple[int, int],
    makespan: float,
) -> None:
    """Have the order that is tried at hand: other places from the first to the last one, other steps up to the last."""
    rank, held = -1, 0.0
    for place in range(places[0], places[1] + 1):
        action = search.trial[place]
        if work.rank[action] != rank:
            rank = work.rank[action]
            held = 0.0 if place == work.row_start[rank] else search.held[place]
        search.order[place], search.place[action], search.held[place] = action, place, held
        held += what.delta[action]
    keep(work, course, tried, steps[0], steps[1])
    until = steps[1] if makespan == search.numbers[MAKESPAN] else len(search.order)
    set_latest(work, search.order, search.place, course, makespan, search.latest, steps[0], until)
    search.numbers[MAKESPAN] = makespan
    search.numbers[PATH_LENGTH] = critical_path(work, search.order, search.place, course, search.path)
