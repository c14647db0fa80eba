"""Collectives as messages: what an UNSHARD or a REDUCE_GRAD action sends, and what each message waits for.

The one lowering of collectives: the event model simulates exactly these messages, the engine sends exactly these
(`algorithms.py` names the ways to do it). The parameters of a stage, or their gradients, are one vector, cut into equal
cells; a message carries some that follow each other.

With ZeRO-1 (CrossPipe, section 3.5) a stage's parameters are all-gathered before its first F (UNSHARD), and its
gradients reduce-scattered after its last W (REDUCE_GRAD); without, they are all-reduced after its last W. All that is
implicit in a schedule, like the messages between stages: every all-gather begins with the iteration, in the order of
the stages (the order in which each rank first uses them), every reduction when its stage's last W or B ends. Neither
occupies a rank; both occupy links, first come, first served, together with the pipeline's messages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Cells = tuple[int, int]
"""The first cell of a vector, and the one behind the last."""


class CollectiveMessage(NamedTuple):
    """One message of a collective; members are numbered from 0, as the replicas of the stage are."""

    number: int
    """How many messages of the collective its source sends before it."""
    source: int
    target: int
    after: tuple[int, ...]
    """Indexes of the messages that must have been taken in at `source` before this one leaves."""
    own: bool
    """Whether it carries data of `source` itself, so that it waits until that is computed."""
    cells: Cells
    adds: bool
    """Whether `target` adds it to what it has there; otherwise it comes in the place of that."""
    behind: tuple[int, ...] = ()
    """Indexes of messages of `target` that must have left before it is taken in: they carry the same cells."""

    @property
    def n_cells(self) -> int:
        """How many cells it carries."""
        return self.cells[1] - self.cells[0]


class CollectiveMessages:
    """Steps as they are being written down; every one follows those that it waits for."""

    def __init__(self) -> None:
        self._steps: list[CollectiveMessage] = []
        self._sent: Counter[int] = Counter()

    def add(
        self,
        ends: tuple[int, int],
        cells: Cells,
        after: Sequence[int],
        *,
        own: bool,
        adds: bool,
        behind: tuple[int, ...] = (),
    ) -> int:
        """One more from the first of the `ends` to the second; returns its index."""
        source, target = ends
        self._steps.append(
            CollectiveMessage(self._sent[source], source, target, tuple(after), own, cells, adds, behind)
        )
        self._sent[source] += 1
        return len(self._steps) - 1

    def swap(self, ends: tuple[int, int], cells: Cells, after: tuple[Sequence[int], Sequence[int]]) -> tuple[int, int]:
        """Each end adds what the other one has; returns the indexes of the messages there and back."""
        first = len(self._steps)
        there = self.add(ends, cells, after[0], own=True, adds=True, behind=(first + 1,))
        back = self.add(ends[::-1], cells, after[1], own=True, adds=True, behind=(first,))
        return there, back

    def done(self) -> tuple[CollectiveMessage, ...]:
        """All of them."""
        return tuple(self._steps)


After = dict[int, list[int]]
"""Member -> indexes of the messages after which it has what it is to have."""


def ring_reduce(steps: CollectiveMessages, members: Sequence[int], parts: Sequence[Cells]) -> After:
    """Every member adds its own share to what it passes on.

    Part k begins its way behind the k-th member, so that it comes there last, as the sum of all. Returns after which
    messages each member has its part.
    """
    count, come = len(members), After()
    for k in range(count - 1):
        before, come = come, {member: [] for member in members}
        for place, source in enumerate(members):
            target, part = members[(place + 1) % count], parts[(place - k - 1) % count]
            come[target].append(steps.add((source, target), part, before.get(source, ()), own=True, adds=True))
    return come


def ring_gather(
    steps: CollectiveMessages,
    members: Sequence[int],
    parts: Sequence[Cells],
    after: After | None = None,
    *,
    own: bool = False,
) -> None:
    """Every member passes on what it got last, at first its own part, `after` these messages.

    `own` as in `CollectiveMessage`.
    """
    count, before = len(members), after or {}
    for k in range(count - 1):
        come: After = {}
        for place, source in enumerate(members):
            target, part = members[(place + 1) % count], parts[(place - k) % count]
            waits = before.get(source, ())
            come[target] = [steps.add((source, target), part, waits, own=own and k == 0, adds=False)]
        before = come


class Exchange(NamedTuple):
    """What the replicas of a stage do with its parameters and gradients."""

    n_cells: int
    """Into how many cells the vectors are cut."""
    gather: tuple[CollectiveMessage, ...]
    """Brings every member all parameters."""
    reduction: tuple[CollectiveMessage, ...]
    """Brings every member the sum of all gradients, or of its shard."""
    reduces_to: str
    """The kind of that in a trace: reduce-scatter or all-reduce."""
    shards: tuple[tuple[Cells, ...], ...]
    """Per member, the cells that are its own: each is one member's."""

    def cell_size(self, elements: int) -> int:
        """Elements of a cell of vectors that have so many; the last cells may be filled up."""
        return math.ceil(elements / self.n_cells)


def side_by_side(steps: tuple[CollectiveMessage, ...], tensor: int) -> tuple[CollectiveMessage, ...]:
    """The same algorithm in each of `tensor` groups at once: member m of group t becomes member m * tensor + t.

    Tensor ranks of a stage have different parameters: each shares its own with its counterparts in the replicas.
    """
    return tuple(
        step._replace(
            source=step.source * tensor + group,
            target=step.target * tensor + group,
            after=tuple(before * tensor + group for before in step.after),
            behind=tuple(before * tensor + group for before in step.behind),
        )
        for step in steps
        for group in range(tensor)
    )


class Collective(NamedTuple):
    """A collective over the replicas of one stage, of all its tensor ranks, with what its messages cost."""

    steps: tuple[CollectiveMessage, ...]
    wire_bytes: Mapping[int, float]
    """Number of cells in a message -> its bytes."""
    routes: Mapping[tuple[int, int], tuple[int, ...]]
    """(source member, target member) -> links, in order; a pair left out is joined without delay."""
    payload_bytes: Mapping[int, float] = {}
    """As `wire_bytes`; empty where nobody asks."""
    kind: str = "reduce-scatter"
    """As in a trace."""
    part_bytes: Mapping[int, tuple[float, ...]] = {}
    """As `wire_bytes`: of the parts in which a message is sent, each over a connection of its own; empty: it is sent as
    a whole."""

    def route(self, step: CollectiveMessage) -> tuple[int, ...]:
        """The links that a message takes."""
        return self.routes.get((step.source, step.target), ())

    def with_members(self, numbers: Sequence[int]) -> Collective:
        """The same among other members: `numbers` are theirs, in the order of those whose parts they take."""
        steps = [step._replace(source=numbers[step.source], target=numbers[step.target]) for step in self.steps]
        routes = {(numbers[a], numbers[b]): route for (a, b), route in self.routes.items()}
        return self._replace(steps=tuple(steps), routes=routes)

    def size(self, step: CollectiveMessage) -> float:
        """Wire bytes of a message."""
        return self.wire_bytes[step.n_cells]

    def parts(self, step: CollectiveMessage) -> tuple[float, ...]:
        """Of the parts in which it is sent."""
        return self.part_bytes[step.n_cells] if self.part_bytes else (self.size(step),)

    def payload(self, step: CollectiveMessage) -> float:
        """What of them is parameters or gradients."""
        return self.payload_bytes.get(step.n_cells, 0.0)


NO_COLLECTIVE = Collective((), {}, {})
