"""Messages, measured against predicted, flow by flow: two errors that cancel in an iteration time are seen here.

When a message arrived is known where its receiver was waiting for it. Of a message that lay ready it is only known that
it arrived before it was taken: it counts where that alone contradicts the prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.grouping import grouped
from testbed.pipeline.ir import Kind
from testbed.plan.mesh import Coordinates, Mesh
from testbed.trace.predictions import predicted_numbers
from testbed.trace.tables import (
    ACTIVATION,
    ALL_GATHER,
    ALL_REDUCE,
    GRADIENT,
    KINDS,
    MESSAGE_KINDS,
    NOTICE,
    REDUCE_SCATTER,
    UNNOTICED_WAIT_S,
    Table,
    Trace,
)

Floats = NDArray[np.float64]

_ACTION = ("iteration", "rank", "stage", "kind", "microbatch", "part_begin")
_MAKES = {KINDS.index(Kind.F): ACTIVATION, KINDS.index(Kind.I): GRADIENT, KINDS.index(Kind.B): GRADIENT}
COLLECTIVES = ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE
"""Kinds of their messages."""
_MADE = ("source_rank", "stage", "kind", "microbatch")


class FlowMessages(NamedTuple):
    """The messages of one kind from one rank to another. Differences are measured minus predicted, in seconds."""

    source_rank: int
    target_rank: int
    kind: str
    messages: int
    """In all measured iterations."""
    awaited: int
    """Those whose arrival is known."""
    impossible: int
    """Those taken before they were predicted to arrive; their differences count as well."""
    arrival_median_s: float | None
    """Of the arrivals, since the start of the iteration; None where none is known."""
    arrival_worst_s: float | None
    """The one furthest from its prediction, with its sign."""
    extra_p25_s: float | None
    """Of the time from the end of the slot that made the message to its arrival, as the next three."""
    extra_median_s: float | None
    extra_p90_s: float | None
    extra_worst_s: float | None


class MessageTimes(NamedTuple):
    """All measured messages beside their predictions, a row each; seconds."""

    rows: Table
    """The measured ones, dtype MESSAGE."""
    arrival_off_s: Floats
    """Measured minus predicted arrival; nan where it is not known and nothing contradicts the prediction."""
    extra_s: Floats
    """Arrival since the end of the slot that made it (of a collective's message: since it left), measured minus
    predicted; nan in the same rows."""
    overtaken_s: Floats
    """Of collectives' messages that share a link: by how much each is off their mean; 0 for all others. If one came
    before another that was predicted to be first, both have about what the other one takes."""
    beyond_free_s: Floats
    """As `extra_s`, without that mean, and beyond the least that links owe a message of its size on its way: waiting
    for others, who may not come, is no part of that."""

    def median_overtaken_s(self) -> float:
        """The worst of an iteration, as the median over iterations; 0 where no message is known."""
        iterations = np.unique(self.rows["iteration"])
        worst = [float(self.overtaken_s[self.rows["iteration"] == iteration].max()) for iteration in iterations]
        return float(np.median(worst)) if worst else 0.0


class KnownTimes(NamedTuple):
    """What the messages of a flow took beyond the model, in each iteration: those whose arrival is known, since of one
    that lay ready it is not. All of a collective in an iteration are one, as they may count with their mean."""

    sent: NDArray[np.int64]
    number: NDArray[np.int64]
    """Of those that are known."""
    quickest_s: Floats
    """The least; nan where none is known, as the next two."""
    upper_s: Floats
    """The third quartile."""
    beyond_free_s: Floats
    """The median beyond what links owe it that are free."""


class Likeness(NamedTuple):
    """Which of a job's ranks are alike to the network, so that chance may tell whose message comes first."""

    first_like: Sequence[int] = (0,)
    """Per replica, and of each replica per tensor rank, the first one on links like its own: of messages that they send
    in the same place of a schedule the first is compared with the first."""
    tensor: int = 1
    """How many tensor ranks share a stage."""
    sites: Sequence[str] = ()
    """The datacenter of every rank. What replicas send each other from one to another shares a link: if one message
    comes before another there, the other comes later by as much, so that they count with their mean."""


NOBODY_ALIKE = Likeness()


def message_times(
    measured: Trace,
    predicted: Trace,
    *,
    paced: bool,
    ranks: Likeness = NOBODY_ALIKE,
    on_the_way_s: Floats | None = None,
) -> MessageTimes:
    """Pair every measured message with its prediction.

    Both may hold several iterations: each is compared with its own prediction (trace/predictions.py). `paced`: slots
    are as long as predicted, however long the real computation took. `on_the_way_s`: what the links should have taken
    for each, by what else was sent (model/replay.py); without it, what was predicted. Raises KeyError for a message
    that was not predicted; of one that an unpredicted action made, no more is known than its arrival.
    """
    rows, iterations = measured.messages, measured.iterations().tolist()
    numbers = dict(zip(iterations, predicted_numbers(predicted, iterations).tolist(), strict=True))
    twin = _twins(rows, predicted, numbers, ranks)
    due_s = twin["arrived_s"] if on_the_way_s is None else rows["sent_s"] + on_the_way_s
    known = rows["awaited"] | (rows["taken_s"] < due_s)
    off_s = np.where(known, rows["taken_s"], np.nan) - twin["arrived_s"]
    late_s = rows["sent_s"] - twin["sent_s"]
    between = np.isin(rows["kind"], (ACTIVATION, GRADIENT))
    planned_s = _made(predicted.actions, predicted.actions["end_s"])
    made_s = _made(
        measured.actions, _slot_ends(measured, predicted, numbers) if paced else measured.actions["computed_s"]
    )
    late_s[between] = [
        made_s[iteration, *message] - planned_s[numbers[iteration], *other]
        for (iteration, *message), other in zip(
            _columns(rows[between], ("iteration", *_MADE)), _columns(twin[between], _MADE), strict=True
        )
    ]
    extra_s = off_s - late_s
    if on_the_way_s is not None:
        extra_s += twin["arrived_s"] - twin["sent_s"] - on_the_way_s
    shared_s = _shared(extra_s, rows, twin, ranks.sites) if ranks.sites else extra_s
    beyond_free_s = extra_s if on_the_way_s is None else extra_s + on_the_way_s - _least(on_the_way_s, rows, twin)
    return MessageTimes(rows, off_s, shared_s, np.nan_to_num(np.abs(extra_s - shared_s)), beyond_free_s)


def _least(on_the_way_s: Floats, rows: Table, twin: Table) -> Floats:
    """Per message, the least of those of its flow that are as large."""
    sizes = np.round(twin["wire_bytes"])
    keys = np.stack([rows["source_rank"], rows["target_rank"], rows["kind"], sizes], axis=1)
    _, which = np.unique(keys, axis=0, return_inverse=True)
    least = np.full(int(which.max(initial=0)) + 1, np.inf)
    np.minimum.at(least, which.ravel(), on_the_way_s)
    found: Floats = least[which.ravel()]
    return found


def _shared(extra_s: Floats, rows: Table, twin: Table, sites: Sequence[str]) -> Floats:
    """Extra times where collectives' messages of one size that share a route in an iteration have their mean.

    It is known where the arrival of all is.
    """

    def of(index: int) -> tuple[Any, ...]:
        row = rows[index]
        ends = sites[row["source_rank"]], sites[row["target_rank"]]
        size = round(float(twin["wire_bytes"][index]))
        return (*ends, size, *(int(row[name]) for name in ("job", "iteration", "kind")))

    collectives = np.flatnonzero(np.isin(rows["kind"], COLLECTIVES)).tolist()
    shared_s = extra_s.copy()
    for mine in grouped((of(index), index) for index in collectives).values():
        shared_s[mine] = extra_s[mine].mean()
    return shared_s


def _twins(rows: Table, predicted: Trace, numbers: Mapping[int, int], ranks: Likeness) -> Table:
    """The prediction of every measured message; of replicas like each other, in the order in which they send.

    `numbers` say which predicted iteration a measured one is compared with.
    """
    first_like, tensor = ranks.first_like, ranks.tensor
    expected = predicted.messages[predicted.messages["kind"] != NOTICE]
    mesh = Mesh(len(first_like) // tensor, predicted.n_ranks // len(first_like), tensor)

    def within(rank: Coordinates) -> tuple[int, int]:
        """Its replica, and the first of its tensor ranks on links like this one's."""
        mine = first_like[rank.replica * tensor : (rank.replica + 1) * tensor]
        return rank.replica, mine.index(mine[rank.tensor_rank])

    def group(row: np.void) -> tuple[int, ...]:
        ends = int(row["source_rank"]), int(row["target_rank"])
        source, target = map(mesh.coordinates, ends)
        place = source.pipeline_rank, target.pipeline_rank
        # what replicas send each other crosses other links than what the next two do, and none come by chance first
        who = [*within(source), *within(target)]
        if source.replica == target.replica:
            who = [first_like[source.replica * tensor + source.tensor_rank]]
        return (*(int(row[name]) for name in ("job", "kind", "stage", "microbatch")), *place, *who)

    places, found = (
        grouped(((int(row["iteration"]), *group(row)), index) for index, row in enumerate(each))
        for each in (expected, rows)
    )
    twin = np.empty(len(rows), np.int64)
    for (iteration, *name), mine in found.items():
        theirs = places[numbers[iteration], *name]
        twin[_in_order(rows, mine)] = _in_order(expected, theirs)
    found_twins: Table = expected[twin]
    return found_twins


def _in_order(table: Table, indexes: list[int]) -> list[int]:
    """In the order of leaving; what leaves together, with no notable gap between one and the next, of arrival."""
    if len(indexes) < 2:
        return indexes
    mine = table[indexes]
    leaving = np.argsort(mine["sent_s"], kind="stable")
    batch = np.empty(len(indexes), np.int64)
    batch[leaving] = np.cumsum(np.diff(mine["sent_s"][leaving], prepend=-np.inf) > UNNOTICED_WAIT_S)
    arrived_s = np.fmax(mine["arrived_s"], mine["taken_s"])
    return [indexes[place] for place in np.lexsort((arrived_s, batch))]


def by_flow(times: MessageTimes, first_rank: int = 0) -> list[FlowMessages]:
    """One row per kind of message and pair of ranks, in the order of ranks, which are numbered from `first_rank` on."""
    rows = times.rows
    found = []
    for (source, target, kind), mine in _flows(rows):
        off_s, extra_s = (values[mine & ~np.isnan(values)] for values in (times.arrival_off_s, times.extra_s))
        impossible = mine & ~rows["awaited"] & ~np.isnan(times.arrival_off_s)
        found.append(
            FlowMessages(
                first_rank + source,
                first_rank + target,
                MESSAGE_KINDS[kind],
                int(mine.sum()),
                int((mine & rows["awaited"]).sum()),
                int(impossible.sum()),
                _percentile(off_s, 50),
                _worst(off_s),
                _percentile(extra_s, 25),
                _percentile(extra_s, 50),
                _percentile(extra_s, 90),
                _worst(extra_s),
            )
        )
    return found


def by_iteration(times: MessageTimes, iterations: Sequence[int]) -> list[Floats]:
    """Per flow, in the order of `by_flow`: the quartiles of its messages' extra time (3, iterations); nan where none
    is known, or none was sent."""
    rows = times.rows
    found = []
    for _, mine in _flows(rows):
        known = mine & ~np.isnan(times.extra_s)
        each = np.full((3, len(iterations)), np.nan)
        for place, iteration in enumerate(iterations):
            if len(values := times.extra_s[known & (rows["iteration"] == iteration)]):
                each[:, place] = np.percentile(values, (25, 50, 75))
        found.append(each)
    return found


def known_by_iteration(times: MessageTimes, iterations: Sequence[int]) -> list[KnownTimes]:
    """Per flow, in the order of `by_flow`: what its messages took in each of these iterations."""
    rows, found = times.rows, []
    for (_, _, kind), mine in _flows(rows):
        most = 1 if kind in COLLECTIVES else None
        sent, number, columns = [], [], []
        for iteration in iterations:
            each = mine & (rows["iteration"] == iteration)
            known = each & ~np.isnan(times.extra_s)
            values, beyond_s = times.extra_s[known], times.beyond_free_s[known]
            sent.append(len(rows[each][:most]))
            number.append(len(values[:most]))
            several = len(values) > 0
            columns.append((values.min(), np.percentile(values, 75), np.median(beyond_s)) if several else (np.nan,) * 3)
        found.append(KnownTimes(np.array(sent, np.int64), np.array(number, np.int64), *np.array(columns).T))
    return found


def _flows(rows: Table) -> Iterator[tuple[tuple[int, int, int], NDArray[np.bool_]]]:
    """Every flow by ranks and code of its kind, in this order, and which rows are its own."""
    for source, target, kind in sorted({*_columns(rows, ("source_rank", "target_rank", "kind"))}):
        mine = (rows["source_rank"] == source) & (rows["target_rank"] == target) & (rows["kind"] == kind)
        yield (source, target, kind), mine


def _slot_ends(measured: Trace, predicted: Trace, numbers: Mapping[int, int]) -> Floats:
    """When the slot of every measured action should have ended: its own start, and the length that was predicted.

    nan for one that was not predicted. `numbers` as in `_twins`.
    """
    length_s = predicted.actions["end_s"] - predicted.actions["start_s"]
    of = dict(zip(_columns(predicted.actions, _ACTION), length_s.tolist(), strict=True))
    keys = ((numbers[iteration], *rest) for iteration, *rest in _columns(measured.actions, _ACTION))
    ends: Floats = np.array([of.get(key, np.nan) for key in keys])
    ends += measured.actions["start_s"]
    return ends


def _made(actions: Table, ends_s: Floats) -> dict[tuple[int, ...], float]:
    """(iteration, rank, stage, kind of message, microbatch) -> end of the action that makes that message."""
    last = (actions["part_end"] == actions["part_of"]) & np.isin(actions["kind"], list(_MAKES))
    made: dict[tuple[int, ...], float] = {}
    keys = _columns(actions[last], ("iteration", "rank", "stage", "kind", "microbatch"))
    for (iteration, rank, stage, kind, microbatch), end_s in zip(keys, ends_s[last], strict=True):
        made[iteration, rank, stage, _MAKES[kind], microbatch] = float(end_s)
    return made


def _columns(rows: Table, names: Sequence[str]) -> Iterator[tuple[int, ...]]:
    return zip(*(rows[name].tolist() for name in names), strict=True)


def _percentile(values: Floats, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _worst(values: Floats) -> float | None:
    return float(values[np.argmax(np.abs(values))]) if len(values) else None
