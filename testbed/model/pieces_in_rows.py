"""Pieces that leave in a row: all of a message's are put on its first link at once, which nothing else comes between.

When each of them is at the first router follows from when the one before it left. So only the next one of every row has
to be known, and which row's comes first: a heap of rows, in the place of an event for every piece.
"""

from __future__ import annotations

from testbed.model.network import LinkOccupancy, carry_acknowledgements
from testbed.model.program import Program
from testbed.model.state import AHEAD, LAST, MORE, State

COMPILED: tuple[str, ...] = ()
INLINED = (
    "leave_in_a_row",
    "next_in_row",
    "first_link",
    "at_router",
    "piece_at",
    "piece_bytes",
    "begin_row",
    "go_on_in_row",
    "end_row",
    "sink_row",
    "row_is_later",
    "put_row",
)
"""What becomes part of the functions that call it (compile.py)."""


def leave_in_a_row(program: Program, state: State, wires: LinkOccupancy, message: int, now: float) -> None:
    """Put all pieces of a message on its first link, which stays as it is and carries nothing else between them: when
    each is at the first router follows from when the one before it left."""
    link, count = first_link(program, message), program.pieces[message]
    carry_acknowledgements(wires, link, now)
    free = max(now, wires.free_s[link])
    state.in_row[message] = count
    state.left_s[message] = (
        free + piece_bytes(program, message, piece_at(program, message, 0)) * wires.seconds_per_byte[link]
    )
    begin_row(state, at_router(program, state, wires, message), state.numbered[0] + 1, message)
    state.numbered[0] += count
    for number in range(count):
        free += piece_bytes(program, message, piece_at(program, message, number)) * wires.seconds_per_byte[link]
    wires.free_s[link] = free
    wires.out_s[link] = max(wires.out_s[link], free + wires.delay_s[link])


def next_in_row(program: Program, state: State, wires: LinkOccupancy) -> int:
    """Of the row whose piece comes next: which piece it is (LAST, MORE or AHEAD); the one behind it is next now."""
    message = state.row_message[0]
    place, link = program.pieces[message] - state.in_row[message], first_link(program, message)
    state.in_row[message] -= 1
    if state.in_row[message] == 0:
        end_row(state)
    else:
        more = piece_bytes(program, message, piece_at(program, message, place + 1))
        state.left_s[message] += more * wires.seconds_per_byte[link]
        go_on_in_row(state, at_router(program, state, wires, message), state.row_number[0] + 1)
    return piece_at(program, message, place)


def first_link(program: Program, message: int) -> int:
    """The link that a message leaves over."""
    return int(program.route_links[program.route_start[program.route[message]]])


def at_router(program: Program, state: State, wires: LinkOccupancy, message: int) -> float:
    """When the next piece of a row is at the first router."""
    return float(state.left_s[message] + wires.delay_s[first_link(program, message)] + program.card_lag_s[message])


def piece_at(program: Program, message: int, number: int) -> int:
    """Which piece of a message leaves after so many others."""
    if number + 1 >= program.pieces[message]:
        return LAST
    return AHEAD if number == 0 and program.notice_ahead_bytes[message] > 0 else MORE


def piece_bytes(program: Program, message: int, which: int) -> float:
    """Wire bytes of a piece of a message."""
    if which == LAST:
        return float(program.wire_bytes[message])
    return float(program.piece_bytes[message] if which == MORE else program.notice_ahead_bytes[message])


def begin_row(state: State, when: float, number: int, message: int) -> None:
    """One more row of pieces, whose first one is at its first router then."""
    place = state.rows[0]
    state.rows[0] += 1
    while place > 0:
        above = (place - 1) // 2
        if not row_is_later(state, above, when, number):
            break
        put_row(state, place, state.row_s[above], state.row_number[above], state.row_message[above])
        place = above
    put_row(state, place, when, number, message)


def go_on_in_row(state: State, when: float, number: int) -> None:
    """The row whose piece comes next: the one behind that comes then."""
    sink_row(state, when, number, state.row_message[0])


def end_row(state: State) -> None:
    """The row whose piece comes next has no more."""
    state.rows[0] -= 1
    last = state.rows[0]
    sink_row(state, state.row_s[last], state.row_number[last], state.row_message[last])


def sink_row(state: State, when: float, number: int, message: int) -> None:
    """A row in the place of the first one, and from there to where it belongs."""
    place, count = 0, state.rows[0]
    while 2 * place + 1 < count:
        below = 2 * place + 1
        if below + 1 < count and row_is_later(state, below, state.row_s[below + 1], state.row_number[below + 1]):
            below += 1
        if row_is_later(state, below, when, number):
            break
        put_row(state, place, state.row_s[below], state.row_number[below], state.row_message[below])
        place = below
    put_row(state, place, when, number, message)


def row_is_later(state: State, place: int, when: float, number: int) -> bool:
    """Whether a row's next piece comes after what comes then, with that number."""
    return bool(state.row_s[place] > when or (state.row_s[place] == when and state.row_number[place] > number))


def put_row(state: State, place: int, when: float, number: int, message: int) -> None:
    """Write a row of the heap."""
    state.row_s[place], state.row_number[place], state.row_message[place] = when, number, message
