"""The tables of a trace: when every action and every message happened, predicted or measured, with the same columns.

`docs/data-format.md` says what every column means; a value that one side cannot know is nan there, never something
else. All times are seconds since the start of their iteration (the instant at which every rank may begin).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from testbed.pipeline.ir import KINDS as KINDS  # by the code in the `kind` column of actions

FORMAT = 4
"""Version of a run's files: kept in its manifest and in every parquet file.

1: `events.parquet`, with `enter_s` and `done_s`, without job and replica. 2: the JSON files of a single job had another
shape than those of several. 3: other names of what was measured before a schedule, and of routes in evidence.json.
4: as described in docs/data-format.md.
"""

READABLE_FORMATS = (2, 3, 4)

ACTION = np.dtype(
    [
        ("job", "i4"),
        ("iteration", "i4"),
        ("replica", "i4"),
        ("rank", "i4"),
        ("stage", "i4"),
        ("kind", "i1"),  # index into KINDS
        ("microbatch", "i4"),
        ("part_begin", "i2"),  # sub-blocks [part_begin, part_end) of part_of
        ("part_end", "i2"),
        ("part_of", "i2"),
        ("reached_s", "f8"),  # the rank came to the action
        ("ready_s", "f8"),  # its input was there
        ("start_s", "f8"),  # its slot began
        ("computed_s", "f8"),  # the real computation was over (predicted: the slot's end)
        ("end_s", "f8"),  # its slot was over and its output was handed to the network
    ]
)
"""One row per action."""

UNNOTICED_WAIT_S = 200e-6
"""A wait for input shorter than this found the data in its buffer and is the cost of the call: the column `awaited`
does not count it, and a paced rank's clock goes on. The model is told of it by the plan (plan/host_costs.py)."""

MESSAGE_KINDS = ("activation", "gradient", "all-gather", "reduce-scatter", "all-reduce", "tensor", "notice")
"""Kinds of message by the code in the `kind` column; a notice tells a sender that a receive was posted."""

ACTIVATION, GRADIENT, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, TENSOR, NOTICE = range(len(MESSAGE_KINDS))

MESSAGE_LETTERS: Mapping[int, Literal["F", "G"]] = {ACTIVATION: "F", GRADIENT: "G"}
"""The letter of a message between stages in pipeline.depend, by its code; other codes are no such messages."""

MESSAGE_CODES: Mapping[str, int] = {letter: code for code, letter in MESSAGE_LETTERS.items()}

MESSAGE = np.dtype(
    [
        ("job", "i4"),
        ("iteration", "i4"),
        ("kind", "i1"),  # index into MESSAGE_KINDS
        ("stage", "i4"),  # the producer's
        ("microbatch", "i4"),  # of a collective: its step
        ("source_rank", "i4"),
        ("target_rank", "i4"),
        ("payload_bytes", "f8"),  # of the tensor
        ("wire_bytes", "f8"),  # with all headers, per link
        ("posted_s", "f8"),  # the receive was posted (negative: during an earlier iteration)
        ("sent_s", "f8"),  # handed to the network
        ("arrived_s", "f8"),  # the last byte was there for the receiver
        ("taken_s", "f8"),  # the receiver had it in hand
        ("awaited", "?"),  # the receiver was waiting for it
    ]
)
"""One row per message between ranks."""

Table = NDArray[np.void]


def rows(dtype: np.dtype[Any], count: int) -> Table:
    """A table of `count` rows in which nothing is known yet: numbers are 0, times and bytes nan."""
    table = np.zeros(count, dtype=dtype)
    assert dtype.names is not None
    for name in dtype.names:
        if dtype[name].kind == "f":
            table[name] = np.nan
    return table


@dataclass(frozen=True)
class Trace:
    """`actions` has dtype ACTION, `messages` dtype MESSAGE; several iterations may follow each other."""

    actions: Table
    messages: Table
    n_ranks: int

    def iterations(self) -> NDArray[np.int32]:
        """The iteration numbers, ascending."""
        # np.unique would import numpy.ma, which every prediction would wait for
        return np.array(sorted(set(self.actions["iteration"].tolist())), np.int32)

    def of_iteration(self, iteration: int) -> Trace:
        """The trace of one iteration."""
        return Trace(
            self.actions[self.actions["iteration"] == iteration],
            self.messages[self.messages["iteration"] == iteration],
            self.n_ranks,
        )

    def without(self, iterations: Sequence[int]) -> Trace:
        """The trace of all other iterations."""
        actions, messages = (~np.isin(table["iteration"], iterations) for table in (self.actions, self.messages))
        return Trace(self.actions[actions], self.messages[messages], self.n_ranks)

    def of_job(self, job: int, ranks: range, start_s: float = 0.0) -> Trace:
        """One job's part of a trace of several: its ranks counted from 0, its times from its own start."""
        actions, messages = (table[table["job"] == job] for table in (self.actions, self.messages))
        return _moved(Trace(actions, messages, len(ranks)), 0, -ranks.start, -start_s)

    def as_job(self, job: int, ranks: range, start_s: float = 0.0) -> Trace:
        """The inverse: a job's own trace as a part of that of several."""
        return _moved(self, job, ranks.start, start_s)

    def makespans(self) -> NDArray[np.float64]:
        """Per iteration, seconds from the common start until the last action on any rank ended and the last gradients
        were reduced."""
        reduced = self.messages[np.isin(self.messages["kind"], (REDUCE_SCATTER, ALL_REDUCE))]
        over_s = np.fmax(reduced["arrived_s"], reduced["taken_s"])
        return np.array(
            [
                max(
                    self.actions["end_s"][self.actions["iteration"] == i].max(),
                    over_s[reduced["iteration"] == i].max(initial=0.0),
                )
                for i in self.iterations()
            ]
        )

    def bubble_ratios(self) -> NDArray[np.float64]:
        """Per iteration, the idle share of all ranks' time: 1 - sum of action times / (P x makespan).

        CrossPipe's "idle/total", averaged over the ranks that have a part in it.
        """
        ratios = []
        for iteration, makespan_s in zip(self.iterations(), self.makespans(), strict=True):
            done = self.actions[self.actions["iteration"] == iteration]
            busy = float((done["end_s"] - done["start_s"]).sum())
            ratios.append(1.0 - busy / (len(set(done["rank"].tolist())) * float(makespan_s)))
        return np.array(ratios)


def _moved(trace: Trace, job: int, by_ranks: int, by_s: float) -> Trace:
    """A copy of a trace of one job, with that number, its ranks and times moved."""
    actions, messages = trace.actions.copy(), trace.messages.copy()
    for table, ranks in ((actions, ("rank",)), (messages, ("source_rank", "target_rank"))):
        table["job"] = job
        for name in ranks:
            table[name] += by_ranks
        for name in (column for column in table.dtype.names or () if column.endswith("_s")):
            table[name] += by_s
    return Trace(actions, messages, trace.n_ranks)


def concatenate(traces: list[Trace]) -> Trace:
    """One trace of several, in the order given. Raises ValueError for an empty list."""
    if not traces:
        raise ValueError("no traces to join")
    return Trace(
        np.concatenate([t.actions for t in traces]),
        np.concatenate([t.messages for t in traces]),
        traces[0].n_ranks,
    )
