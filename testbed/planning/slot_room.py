"""Whether slots have room for what tensor ranks send each other in them over network cards.

The model knows when that occupies the cards, not that an action takes longer for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from testbed.pipeline.ir import KINDS, Action, Kind
from testbed.pipeline.link import LinkCost
from testbed.pipeline.problem import NO_CARD, Problem
from testbed.plan.plan import Job
from testbed.trace.tables import Table, Trace


class Overrun(NamedTuple):
    """An action that takes longer than its slot."""

    takes_s: float
    slot_s: float

    @property
    def over_s(self) -> float:
        """By how much."""
        return self.takes_s - self.slot_s


class Overruns(NamedTuple):
    """Of a job."""

    worst: dict[tuple[Kind, int], Overrun]
    """By kind and stage, the action that overruns its slot by most."""
    share: float
    """Of all actions, those that overrun theirs."""


def overruns(problem: Problem, job: Job, trace: Trace) -> Overruns:
    """The actions of a job that overrun their slots, with `trace` as predicted.

    A card carries what its rank sends and what its tensor ranks exchange in the order in which they come; an exchange
    that began waits for messages that leave meanwhile. `trace` has the ranks of the plan, in one iteration or several.
    """
    worst, count, iterations = dict[tuple[Kind, int], Overrun](), 0, trace.iterations().tolist()
    mine = trace.actions[np.isin(trace.actions["rank"], job.mesh.ranks)]
    for number in iterations:
        for key, found in _in_iteration(problem, job, trace.of_iteration(number)):
            if found.over_s > 0:
                count += 1
                worst[key] = max(worst.get(key, found), found, key=lambda each: each.over_s)
    return Overruns(worst, count / max(1, len(mine)))


def _in_iteration(problem: Problem, job: Job, trace: Trace) -> Iterator[tuple[tuple[Kind, int], Overrun]]:
    """Every action of a job that has an exchange over a card."""
    for rank in job.mesh.ranks if problem.exchanged else ():
        replica, pipeline_rank, tensor_rank = job.mesh.coordinates(rank)
        pipeline = problem.pipelines[replica * job.mesh.tp + tensor_rank]
        card = pipeline.rank_cards[pipeline_rank] if pipeline.rank_cards else NO_CARD
        if card == NO_CARD:
            continue
        messages = trace.messages[trace.messages["source_rank"] == rank]
        actions = trace.actions[trace.actions["rank"] == rank - tensor_rank]
        yield from _on_card(problem, problem.links[card], actions, messages)


def _on_card(
    problem: Problem, card: LinkCost, actions: Table, messages: Table
) -> Iterator[tuple[tuple[Kind, int], Overrun]]:
    """How long every action of a rank takes that has an exchange, and its slot.

    Every exchange waits for a trip over the cards. Who sends a summand needs the word that its receive is posted, which
    is told when the sum before is over (model/tensor_exchange.py): where one sum follows another, that is a trip more.
    """
    sent = sorted(zip(messages["sent_s"].tolist(), messages["wire_bytes"].tolist(), strict=True))
    free_s, following, told_s = 0.0, 0, 0.0
    for row in actions[actions["start_s"].argsort(kind="stable")]:
        kind, start_s, end_s, stage = KINDS[row["kind"]], float(row["start_s"]), float(row["end_s"]), int(row["stage"])
        exchanges = problem.exchanges(Action(stage, kind, 0))
        share = (row["part_end"] - row["part_begin"]) / row["part_of"]
        gathered = bool(exchanges.gathered.there) and row["part_begin"] == 0
        sums = exchanges.sums * share * bool(exchanges.summed.there)
        size = exchanges.sums * share * sum(exchanges.summed) + gathered * sum(exchanges.gathered)
        size = (problem.tensor - 1) * (size + (sums + gathered) * sum(problem.exchange_notice))
        if not size:
            continue
        while following < len(sent) and sent[following][0] <= start_s:
            free_s = max(free_s, sent[following][0]) + sent[following][1] * card.seconds_per_byte
            following += 1
        free_s = max(free_s, start_s) + float(size) * card.seconds_per_byte + card.delay_s * gathered
        if sums:
            free_s = max(free_s, told_s) + card.delay_s * (1.0 + 2.0 * max(0.0, sums - 1))
        while following < len(sent) and sent[following][0] < min(free_s, end_s):
            free_s += sent[following][1] * card.seconds_per_byte
            following += 1
        told_s = free_s + card.delay_s if sums else told_s
        yield (kind, stage), Overrun(free_s - start_s, end_s - start_s)
