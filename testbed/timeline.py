"""When every action and message happened. Predicted and measured timelines are this one type, with the same columns.

All times are seconds since the start of their iteration (the instant at which every rank may begin).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.pipeline.ir import Kind

KINDS = (Kind.F, Kind.B, Kind.I, Kind.W)
"""Kinds of action by the code in the `kind` column."""

ACTION = np.dtype(
    [
        ("iteration", "i4"),
        ("rank", "i4"),
        ("stage", "i4"),
        ("kind", "i1"),  # index into KINDS
        ("microbatch", "i4"),
        ("part_begin", "i2"),  # sub-blocks [part_begin, part_end) of part_of
        ("part_end", "i2"),
        ("part_of", "i2"),
        ("enter_s", "f8"),  # the rank reached the action
        ("ready_s", "f8"),  # its input was there
        ("start_s", "f8"),  # its slot began
        ("done_s", "f8"),  # the real computation was over (predicted: the slot's end)
        ("end_s", "f8"),  # its slot was over and its output was handed to the network
    ]
)
"""One row per action."""

UNNOTICED_WAIT_S = 200e-6
"""A wait for input shorter than this found the data in its buffer and is the cost of the call: a paced rank's clock
goes on, so the model lets the rank go on too."""

MESSAGE_KINDS = ("F", "G", "all-gather", "reduce-scatter", "notice")
"""Kinds of message by the code in the `kind` column: activation, gradient, and a stage's all-gather and reduce-scatter
with its replicas (one row per ring edge that costs anything; an all-gather has one row)."""

NO_MICROBATCH = -1
"""In the `microbatch` column of collectives."""

MESSAGE = np.dtype(
    [
        ("iteration", "i4"),
        ("kind", "i1"),  # index into MESSAGE_KINDS
        ("stage", "i4"),  # the producer's
        ("microbatch", "i4"),
        ("source_rank", "i4"),
        ("target_rank", "i4"),
        ("bytes", "f8"),  # predicted: on the wire; measured: handed to the network
        ("posted_s", "f8"),  # the receive was posted (negative: during an earlier iteration; predicted early: nan)
        ("sent_s", "f8"),  # handed to the network
        ("arrived_s", "f8"),  # predicted: last byte in; measured: the receiver had it in hand
        ("awaited", "?"),  # the receiver was waiting for it: only then does a measured arrived_s tell the arrival
    ]
)
"""One row per message between ranks."""

Table = NDArray[np.void]


@dataclass(frozen=True)
class Timeline:
    """`actions` has dtype ACTION, `messages` dtype MESSAGE; several iterations may follow each other."""

    actions: Table
    messages: Table
    n_ranks: int

    def iterations(self) -> NDArray[np.int32]:
        """The iteration numbers, ascending."""
        return np.unique(self.actions["iteration"])

    def of_iteration(self, iteration: int) -> Timeline:
        """The timeline of one iteration."""
        return Timeline(
            self.actions[self.actions["iteration"] == iteration],
            self.messages[self.messages["iteration"] == iteration],
            self.n_ranks,
        )

    def makespans(self) -> NDArray[np.float64]:
        """Per iteration, seconds from the common start to the end of the last action or reduce-scatter on any rank."""
        reduced = self.messages[self.messages["kind"] == MESSAGE_KINDS.index("reduce-scatter")]
        return np.array(
            [
                max(
                    self.actions["end_s"][self.actions["iteration"] == i].max(),
                    reduced["arrived_s"][reduced["iteration"] == i].max(initial=0.0),
                )
                for i in self.iterations()
            ]
        )

    def bubble_ratios(self) -> NDArray[np.float64]:
        """Per iteration, the idle share of all ranks' time: 1 - sum of action times / (P x makespan).

        CrossPipe's "idle/total" (reading/crosspipe.md), averaged over the ranks.
        """
        ratios = []
        for iteration, makespan_s in zip(self.iterations(), self.makespans(), strict=True):
            rows = self.actions[self.actions["iteration"] == iteration]
            busy = float((rows["end_s"] - rows["start_s"]).sum())
            ratios.append(1.0 - busy / (self.n_ranks * float(makespan_s)))
        return np.array(ratios)


def concatenate(timelines: list[Timeline]) -> Timeline:
    """One timeline of several, in the order given. Raises ValueError for an empty list."""
    if not timelines:
        raise ValueError("no timelines to join")
    return Timeline(
        np.concatenate([t.actions for t in timelines]),
        np.concatenate([t.messages for t in timelines]),
        timelines[0].n_ranks,
    )
