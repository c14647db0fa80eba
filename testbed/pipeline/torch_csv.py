"""Schedules to and from the CSV of torch.distributed.pipelining: one row per rank, one action per cell.

torch's own reader takes much that is wrong without a word (garbage behind an action, for one); this one takes nothing
but whole, known cells, and hands back only schedules that can run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from enum import Enum

from testbed.errors import BadInput
from testbed.files import csv_rows
from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import COMPUTE, WHOLE, Action, Kind, Row, Schedule, parse_action
from testbed.pipeline.problem import uniform
from testbed.pipeline.validate import validate

_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


class Form(Enum):
    """What torch's reader is given."""

    COMPUTE_ONLY = "compute_only"
    """F, B, I and W: torch adds the rest. Any torch reads it."""
    COMMS = "comms"
    """`compute_comms` as torch takes it up to 2.14, which knows no action to wait."""
    COMMS_AND_WAITS = "waits"
    """`compute_comms` as torch 2.15 takes it, which wants one for each send and each reduction."""


def to_csv(schedule: Schedule, form: Form) -> str:
    """The schedule in a form that torch reads.

    Sub-blocks, which torch does not know, are merged into whole blocks first. Where messages are written every receive
    stands at the front of its row, so that torch posts it before the sender sends: on gloo a later one costs a round
    trip.
    """
    whole = whole_blocks(schedule)
    rows = whole.rows
    if form is not Form.COMPUTE_ONLY:
        rows = tuple(_with_comms(whole, rank) for rank in range(whole.n_ranks))
    if form is Form.COMMS_AND_WAITS:
        rows = tuple(map(_with_waits, rows))
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def from_csv(text: str, name: str, n_microbatches: int | None = None) -> Schedule:
    """The schedule in a `compute_only` or `compute_comms` file; M is one more than the largest microbatch unless given.

    Sends, receives, waits and whatever else our IR leaves implicit are dropped; `(0F1;3B0)OVERLAP_F_B` becomes `0F1`,
    `3B0`. Raises BadInput naming the row and cell of what is no action or on the wrong rank, or InvalidSchedule.
    """
    rows: list[Row] = []
    placement: dict[int, int] = {}
    for rank, cells in enumerate(_cells(text, name)):
        row: list[Action] = []
        for index, cell in enumerate(cells):
            where = f"row {rank + 1}, cell {index + 1}"
            for action in _parse_cell(cell, name, where):
                if placement.setdefault(action.stage, rank) != rank:
                    expected = f"an action of a stage of this row (stage {action.stage} is in row"
                    raise BadInput.of(name, where, cell, f"{expected} {placement[action.stage] + 1})")
                if action.kind in COMPUTE:
                    row.append(action)
        rows.append(tuple(row))
    if sorted(placement) != list(range(len(placement))) or not placement:
        raise BadInput.of(name, "stages", sorted(placement), "stages numbered from 0 without a gap")
    largest = max((a.microbatch for row in rows for a in row if a.microbatch is not None), default=-1)
    count = largest + 1 if n_microbatches is None else n_microbatches
    if count < 1 or count > sum(map(len, rows)):  # a stray large number must not make the checks below run for ever
        raise BadInput.of(name, "microbatches", count, "at least one, and a forward of each")
    schedule = Schedule(name, tuple(rows), tuple(placement[s] for s in range(len(placement))), count)
    _check(schedule)
    return schedule


def whole_blocks(schedule: Schedule) -> Schedule:
    """The schedule without sub-blocks: a block that is cut up stands where its last part stood.

    A block's message leaves after its last part, so nobody waits for what now comes later; its own input it needs
    later than before. Raises InvalidSchedule for a schedule that could not run in the first place.
    """
    rows = tuple(tuple(a._replace(part=WHOLE) for a in row if a.part.is_last) for row in schedule.rows)
    merged = Schedule(schedule.name, rows, schedule.stage_to_rank, schedule.n_microbatches)
    _check(merged)
    return merged


def _check(schedule: Schedule) -> None:
    placement, count = schedule.stage_to_rank, schedule.n_microbatches
    validate(schedule, uniform(schedule.n_ranks, count, memory=float("inf"), stage_to_rank=placement))


def _with_comms(schedule: Schedule, rank: int) -> Row:
    """Receives, then computation with each send behind what it sends and REDUCE_GRAD behind a stage's last gradient."""
    result = list(_receives(schedule, rank))
    left = Counter(dict.fromkeys(range(schedule.n_stages), schedule.n_microbatches))
    for action in schedule.rows[rank]:
        result.append(action)
        message = produced(action, schedule.n_stages)
        if message is not None and schedule.stage_to_rank[message.consumer] != rank:
            kind = Kind.SEND_F if message.kind == "F" else Kind.SEND_B
            result.append(Action(message.stage, kind, message.microbatch))
        if action.kind in (Kind.B, Kind.W):
            left[action.stage] -= 1
            if left[action.stage] == 0:
                result.append(Action(action.stage, Kind.REDUCE_GRAD))
    return tuple(result)


_WAITS = {Kind.SEND_F: Kind.WAIT_SEND_F, Kind.SEND_B: Kind.WAIT_SEND_B}


def _with_waits(row: Row) -> Row:
    """A wait for each reduction behind it; for a forward's send behind the backward that proves its arrival, and for
    every other send at the end: where torch 2.15 itself puts them (_add_reduce_grad, _add_wait_send)."""
    result: list[Action] = []
    sent: dict[Action, Action] = {}
    for action in row:
        result.append(action)
        if action.kind is Kind.REDUCE_GRAD:
            result.append(action._replace(kind=Kind.WAIT_REDUCE_GRAD))
        elif action.kind in _WAITS:
            sent[action] = action._replace(kind=_WAITS[action.kind])
        elif action.kind in (Kind.B, Kind.I):
            forward = sent.pop(action._replace(kind=Kind.SEND_F), None)
            result += [forward] if forward else []
    return (*result, *sent.values())


def _receives(schedule: Schedule, rank: int) -> Iterator[Action]:
    """A rank's receives, per peer in the order it sends: torch gives all messages one tag, so a pair is one queue."""
    awaited = {consumed(action, schedule.n_stages) for action in schedule.rows[rank]}
    for peer, row in enumerate(schedule.rows):
        for action in row:
            message: Message | None = produced(action, schedule.n_stages)
            if peer != rank and message is not None and message in awaited:
                kind = Kind.RECV_F if message.kind == "F" else Kind.RECV_B
                yield Action(message.consumer, kind, message.microbatch)


def _cells(text: str, name: str) -> list[list[str]]:
    rows = csv_rows(text, name)
    for index, row in enumerate(rows):
        if not any(cell.strip(" \t") for cell in row):
            raise BadInput.of(name, f"row {index + 1}", ",".join(row), "at least one action (a row is a rank)")
    return rows


def _parse_cell(cell: str, name: str, where: str) -> list[Action]:
    """The actions of a cell: none for an idle slot, several for those computed at once."""
    text = cell.strip(" \t")
    if not text:
        return []
    overlap = _OVERLAP.fullmatch(text)
    parts = overlap[1].split(";") if overlap else [text]
    try:
        actions = [parse_action(part.strip(" \t") if overlap else part) for part in parts]
    except ValueError as error:
        raise BadInput.of(name, where, cell, f"an action such as 2F0 or 1SEND_F3 ({error})") from error
    if any(action.part != WHOLE for action in actions):
        raise BadInput.of(name, where, cell, "a whole block: torch's notation has no parts")
    if overlap and (len(actions) < 2 or any(action.kind not in COMPUTE for action in actions)):
        raise BadInput.of(name, where, cell, "at least two of F, B, I, W to overlap")
    return actions
