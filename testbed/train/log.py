"""What one rank did in one iteration: written down while it runs, made into rows of the trace's tables afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from testbed.pipeline.depend import Message
from testbed.pipeline.ir import Action
from testbed.trace.tables import ACTION, KINDS, MESSAGE, MESSAGE_CODES, UNNOTICED_WAIT_S, Table, rows
from testbed.train.assignment import MessageName
from testbed.train.collective_runner import CollectiveLog as CollectiveLog


class LoggedAction(NamedTuple):
    """An action of the row, with what it takes and makes looked up beforehand."""

    action: Action
    takes: Message | None
    source: int | None
    """The rank that sends what it takes; None where it comes from this rank."""
    makes: Message | None
    target: int | None
    """The rank that takes what it makes; None where it stays on this rank."""
    completes: bool = False
    """Whether all gradients of its stage are computed by its end."""
    together: bool = False
    """Whether it waits for something that does not come to all tensor ranks at the same instant."""


class ActionLog:
    """Collects what one rank did in one iteration, and makes rows of it afterwards. Times on the monotonic clock."""

    def __init__(self, iteration: int, rank: int, replica: int, start_s: float) -> None:
        self.iteration, self.rank, self.replica, self.start_s = iteration, rank, replica, start_s
        self.collectives = CollectiveLog([], [])
        self.actions: list[tuple[float, float, float, float, float]] = []
        """Per step: reached, ready, start, computed, end."""
        self.received: list[tuple[LoggedAction, float, float, float]] = []
        """The step that took the message; when it was posted, first waited for, and taken."""
        self.sent: list[tuple[LoggedAction, float]] = []
        self.overruns: list[float] = []
        self.ended_s = 0.0
        """As IterationRecord has it."""
        self.most_in_flight = 0
        self.activation_bytes = 0
        """The most that were counted at the end of a forward."""

    def in_flight(self, count: int) -> None:
        """So many microbatches of stages are held now."""
        self.most_in_flight = max(self.most_in_flight, count)

    def ended(self, clock_s: float) -> None:
        """The last slot was over at `clock_s` on the logical clock, and all that comes from replicas is there."""
        come_s = max((received.taken_s for received in self.collectives.received), default=clock_s)
        self.ended_s = max(clock_s, come_s) - self.start_s

    def action_rows(self, steps: Sequence[LoggedAction]) -> Table:
        """One row per action."""
        table = rows(ACTION, len(steps))
        table["iteration"], table["rank"], table["replica"] = self.iteration, self.rank, self.replica
        actions = [step.action for step in steps]
        table["stage"] = [action.stage for action in actions]
        table["kind"] = [KINDS.index(action.kind) for action in actions]
        table["microbatch"] = [action.microbatch for action in actions]
        for place, name in enumerate(("part_begin", "part_end", "part_of")):
            table[name] = [action.part[place] for action in actions]
        times = np.array(self.actions) - self.start_s
        for place, name in enumerate(("reached_s", "ready_s", "start_s", "computed_s", "end_s")):
            table[name] = times[:, place]
        return table

    def message_rows(self, payload_bytes: int) -> Table:
        """Messages between stages that were taken."""
        table = rows(MESSAGE, len(self.received))
        if not len(table):
            return table
        messages = [step.takes for step, *_ in self.received if step.takes is not None]
        table["iteration"], table["target_rank"], table["payload_bytes"] = self.iteration, self.rank, payload_bytes
        table["kind"] = [MESSAGE_CODES[message.kind] for message in messages]
        table["stage"] = [message.stage for message in messages]
        table["microbatch"] = [message.microbatch for message in messages]
        table["source_rank"] = [step.source for step, *_ in self.received]
        posted, began, taken = np.array([times for _, *times in self.received]).T
        table["posted_s"], table["taken_s"] = posted - self.start_s, taken - self.start_s
        table["awaited"] = taken - began > UNNOTICED_WAIT_S
        # who was not waiting does not know when it came
        table["arrived_s"] = np.where(table["awaited"], table["taken_s"], np.nan)
        return table

    def collective_rows(self, cell_bytes: int, rank_of: Callable[[int], int]) -> Table:
        """Messages between replicas that have come in; `rank_of` tells the rank that holds this one's stages."""
        table = rows(MESSAGE, len(self.collectives.received))
        for row, received in zip(table, self.collectives.received, strict=True):
            row["iteration"], row["target_rank"] = self.iteration, self.rank
            row["payload_bytes"] = received.step.n_cells * cell_bytes
            row["kind"], row["stage"], row["microbatch"] = received.kind, received.stage, received.step.number
            row["source_rank"] = rank_of(received.step.source)
            row["posted_s"], row["taken_s"] = received.posted_s - self.start_s, received.taken_s - self.start_s
            row["awaited"] = received.taken_s - received.began_s > UNNOTICED_WAIT_S
            row["arrived_s"] = row["taken_s"] if row["awaited"] else np.nan
        return table

    def sent_s(self) -> dict[MessageName, float]:
        """When every message left, since the start."""
        sent = {
            MessageName(MESSAGE_CODES[step.makes.kind], step.makes.stage, step.makes.microbatch, self.rank): when
            for step, when in self.sent
            if step.makes is not None
        }
        for kind, stage, step, when in self.collectives.sent:
            sent[MessageName(kind, stage, step.number, self.rank)] = when
        return {name: when - self.start_s for name, when in sent.items()}
