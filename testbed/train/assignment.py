"""What workers are given to train, and what each of them hands back. Imports no torch: the launcher reads it too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import RankBytes
from testbed.pipeline.receive_buffers import Numbers
from testbed.plan.drawn_slots import SlowerRank
from testbed.plan.mesh import Mesh
from testbed.spec.workload import Workload
from testbed.thresholds import COMPARED_ITERATIONS
from testbed.trace.renumbered import tables_numbered_as
from testbed.trace.tables import Table
from testbed.train.rank_witness import RankWitness

GRADIENT, AFTER_STEP, IN_USE = "gradient", "weight", "weight in use"
"""What is compared of a parameter: its gradient, the weight behind the optimizer's step, and the weight as every
replica computes with it, whoever has stepped it."""
PROJECTIONS = 8
"""Of a tensor. A difference shows as less than a tenth of what it is in one of 10 million (chi square, 8 degrees)."""
ALL = -1
"""Of replicas, or tensor ranks: what they keep together, each a part."""


class Fingerprint(NamedTuple):
    """Of a parameter or its gradient: what a rank keeps of it, or, put together, what all ranks do."""

    iteration: int
    what: str
    parameter: str
    """"layer.name", with the layer's number over all stages."""
    replica: int
    """Whose copy it is; ALL: each replica keeps a part of the only one."""
    tensor_rank: int
    """The same for tensor ranks."""
    elements: int
    """How many."""
    square: float
    """Sum of their squares."""
    projections: tuple[float, ...]
    """On random vectors (train/projections.py)."""


def last_compared(iterations: int, compared: int = COMPARED_ITERATIONS) -> int:
    """The number of the last iteration that is compared of so many; below 0: none is."""
    return min(iterations, compared) - 1


class Expected(NamedTuple):
    """The same of one process."""

    iteration: int
    what: str
    parameter: str
    elements: int
    square: float
    projections: tuple[float, ...]
    size: float
    """Euclidean norm of a gradient; of a weight, how far training has moved it, or its norm before it has."""
    rounding: float
    """Norm of the difference that another order of sums makes, and of the next."""
    last_digit: float
    """What the last digit of all elements of a weight, rounded in every step, comes to; 0 of a gradient."""


@dataclass(frozen=True)
class TimedSchedule:
    """A schedule, and when its ranks do what it says: all that changes where another one takes its place."""

    schedule: Schedule
    durations_s: tuple[tuple[float, ...], ...] | None
    """Per rank, the slot of every action in its row; None: no pacing."""
    begins_s: tuple[float, ...] = ()
    """How long after the common start each rank begins, by its position (Mesh.position); empty: all at once."""
    drawn: bool = False
    """Whether slots are those that are drawn for each iteration (plan/drawn_slots.py), in place of `durations_s`."""
    slower: tuple[SlowerRank, ...] = ()
    """Where slots are drawn, ranks that become slower while they train."""

    def of(self, pipeline_rank: int) -> TimedSchedule:
        """The same without the rows of all other ranks: where there are many, all of them for each are slow to send."""
        rows, slots = self.schedule.rows, self.durations_s
        mine = tuple(row if rank == pipeline_rank else () for rank, row in enumerate(rows))
        if slots is not None:
            slots = tuple(each if rank == pipeline_rank else () for rank, each in enumerate(slots))
        return replace(self, schedule=replace(self.schedule, rows=mine), durations_s=slots)

    def renamed(self, name: str) -> TimedSchedule:
        """The same under another name."""
        return replace(self, schedule=self.schedule.renamed(name))


@dataclass(frozen=True)
class TrainingTask:
    """What the workers of a job are given: a training, and the schedule that it begins with."""

    begins_with: TimedSchedule
    workload: Workload
    iterations: int
    """Warm-up included."""
    keep_gradients: bool = False
    """Hand over the last iteration's gradients, for parity tests."""
    sites: tuple[str, ...] = ()
    """The datacenter of every rank; empty: all are in one."""
    count_memory: bool = False
    """Count bytes in the first iteration, which takes time there."""
    compared: int = 0
    """Of so many first iterations gradients and weights are handed over as fingerprints, those of the first and of the
    last one; 0: of none. It takes time between iterations."""
    start_s: float = 0.0
    """How long after the common start of all jobs this one begins its iterations."""
    joins: int = 0
    """The round of its first iteration, where jobs beside it begin earlier."""
    also_compared: tuple[int, ...] = ()
    """Iterations whose weights are handed over as well, as those of the last compared one."""
    receive_buffers: tuple[Numbers, ...] = ()
    """Per pipeline rank (pipeline/receive_buffers.py); empty: every message has a buffer of its own, which is right for
    whatever schedule takes this one's place."""
    in_order: tuple[bool, ...] = ()
    """Per pipeline rank, whether the messages of each other rank come in the order in which it takes them
    (pipeline/receive_buffers.py); empty: that is not known."""

    def of(self, rank: int) -> TrainingTask:
        """What a rank is given of it: of the schedule, its own row."""
        return replace(self, begins_with=self.begins_with.of(self.mesh.coordinates(rank).pipeline_rank))

    def site(self, rank: int) -> str:
        """The datacenter of a rank."""
        return self.sites[rank - self.mesh.first_rank] if self.sites else ""

    @property
    def mesh(self) -> Mesh:
        """Who is who among the job's ranks."""
        degrees = self.workload.parallelism
        return Mesh(degrees.data, degrees.pipeline, degrees.tensor)


@dataclass(frozen=True)
class ReferenceOutcome:
    """What one process gets that trains the same without a pipeline, or why it is not known."""

    losses: tuple[float, ...] = ()
    """Per iteration, warm-up included."""
    gradient_norms: tuple[tuple[float, ...], ...] = ()
    """Per iteration, the Euclidean norm of every layer's gradients, in the order of layers."""
    took_s: float = 0.0
    refused: str = ""
    parameters: tuple[Expected, ...] | None = None
    """In the first iteration and in each that is the last one compared of a case; None: not known."""
    loss_rounding: float = 0.0
    """The largest relative difference that sums in another order make to a loss ..."""
    norm_rounding: float = 0.0
    """... and to the norm of a layer's gradients; 0 where it is not known."""

    def of_first(self, iterations: int) -> ReferenceOutcome:
        """The same of the first iterations alone."""
        return replace(self, losses=self.losses[:iterations], gradient_norms=self.gradient_norms[:iterations])


class MessageName(NamedTuple):
    """Which message of an iteration: columns of the trace."""

    kind: int
    stage: int
    microbatch: int
    """Of a collective: its step."""
    source_rank: int


@dataclass(frozen=True)
class IterationRecord:
    """What one rank did in one iteration. Times are seconds since the iteration's common start."""

    iteration: int
    rank: int
    actions: Table
    """dtype ACTION"""
    received: Table
    """dtype MESSAGE; sent_s is unknown here (nan): the sender tells it."""
    sent: dict[MessageName, float]
    """When each message left."""
    loss: float | None
    """On the last stage: this replica's share of the mean loss."""
    peak_in_flight: float
    """Microbatches of the whole rank that were really held at once."""
    overruns_s: tuple[float, ...]
    """By how much each action's real computation overran its slot."""
    late_start_s: float
    """How late this rank was at the common start."""
    witness: RankWitness
    gradient_squares: dict[int, float]
    """Layer, numbered over all stages -> sum of squares of those of its gradients that this rank keeps."""
    gradients: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    """Zero where another replica keeps them."""
    fingerprints: tuple[Fingerprint, ...] = ()
    """In the first and in the last compared iteration, where the job asks for them."""
    memory: RankBytes | None = None
    """In the first iteration, where the job asks for it: what the rank's tensors really took."""
    ended_s: float = 0.0
    """When its last slot was over on its logical clock, and what its replicas reduce was there."""

    def numbered_as(self, ranks: Sequence[int], replicas: Sequence[int]) -> IterationRecord:
        """The same where rank and replica 0, 1, ... have these numbers."""
        actions, received = tables_numbered_as(self.actions, self.received, ranks, replicas)
        sent = {name._replace(source_rank=ranks[name.source_rank]): at_s for name, at_s in self.sent.items()}
        prints = tuple(p if p.replica == ALL else p._replace(replica=replicas[p.replica]) for p in self.fingerprints)
        rank = ranks[self.rank]
        return replace(self, rank=rank, actions=actions, received=received, sent=sent, fingerprints=prints)

    def called(self, iteration: int) -> IterationRecord:
        """The same with another number."""
        if iteration == self.iteration:
            return self
        actions, received = self.actions.copy(), self.received.copy()
        actions["iteration"] = received["iteration"] = iteration
        return replace(self, iteration=iteration, actions=actions, received=received)
