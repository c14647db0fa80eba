"""Collectives as messages: what an UNSHARD or a REDUCE_GRAD action sends, and what each message waits for.

The one lowering of collectives: the event model simulates exactly these messages, the engine sends exactly these.

ZeRO-1 (CrossPipe, section 3.5): an all-gather of a stage's parameters before its first F (UNSHARD), a reduce-scatter of
its gradients after its last W (REDUCE_GRAD). Both are implicit in a schedule, like the messages between stages: every
all-gather begins with the iteration, in the order of the stages (the order in which each rank first uses them), every
reduce-scatter when its stage's last W or B ends. Neither occupies a rank; both occupy links, first come, first served,
together with the pipeline's messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Step(NamedTuple):
    """One message of a collective; members are numbered from 0, as the replicas of the stage are."""

    number: int
    """Its place in the algorithm: all members send their message of step k before that of step k + 1."""
    source: int
    target: int
    after: tuple[int, ...]
    """Indexes of the messages that must have arrived at `source` before this one leaves."""
    own: bool
    """Whether it carries data of `source` itself, so that it waits until that is computed."""
    shard: int
    """Which of the N equal shards of the stage's parameters or gradients it carries; shard i is member i's."""


def ring_all_gather(members: int) -> tuple[Step, ...]:
    """Every member passes on what it got last: N - 1 steps, in each a share of 1/N over every edge of the ring."""
    return _ring(members, own=False)


def ring_reduce_scatter(members: int) -> tuple[Step, ...]:
    """As the all-gather, but every member adds its own share to what it passes on, so every message waits for that.

    A shard begins its way behind its own member, so that it comes there last, as the sum of all.
    """
    return _ring(members, own=True)


def _ring(members: int, *, own: bool) -> tuple[Step, ...]:
    return tuple(
        Step(
            number=k,
            source=i,
            target=(i + 1) % members,
            after=((k - 1) * members + (i - 1) % members,) if k else (),
            own=own,
            shard=(i - k - own) % members,
        )
        for k in range(members - 1)
        for i in range(members)
    )


def side_by_side(steps: tuple[Step, ...], tensor: int) -> tuple[Step, ...]:
    """The same algorithm in each of `tensor` groups at once: member m of group t becomes member m * tensor + t.

    Tensor ranks of a stage have different parameters: each shares its own with its counterparts in the replicas.
    """
    return tuple(
        step._replace(
            source=step.source * tensor + group,
            target=step.target * tensor + group,
            after=tuple(before * tensor + group for before in step.after),
        )
        for step in steps
        for group in range(tensor)
    )


class Collective(NamedTuple):
    """A collective over the replicas of one stage, of all its tensor ranks."""

    steps: tuple[Step, ...]
    wire_bytes: float
    """Of each message."""
    routes: Mapping[tuple[int, int], tuple[int, ...]]
    """(source member, target member) -> links, in order; a pair left out is joined without delay."""
    payload_bytes: float = 0.0
    """Of each message."""

    def route(self, step: Step) -> tuple[int, ...]:
        """The links that a message takes."""
        return self.routes.get((step.source, step.target), ())


NO_COLLECTIVE = Collective((), 0.0, {})
