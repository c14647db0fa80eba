"""A job for the workers, and what each of them hands back. Imports no torch: the launcher reads it too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from testbed.pipeline.ir import Schedule
from testbed.plan.mesh import Mesh
from testbed.spec.workload import Workload
from testbed.trace.tables import Table
from testbed.train.witness import RankWitness


@dataclass(frozen=True)
class Job:
    """One schedule to train with."""

    schedule: Schedule
    workload: Workload
    durations_s: tuple[tuple[float, ...], ...] | None
    """Per rank, the slot of every action in its row; None: no pacing."""
    iterations: int
    """Warm-up included."""
    turn_s: float = 0.0
    """How much later than the one before each rank begins an iteration."""
    keep_gradients: bool = False
    """Hand over the last iteration's gradients, for parity tests."""

    @property
    def collective_bytes(self) -> int:
        """Of each message between replicas."""
        return self.workload.shard_bytes(self.schedule.n_stages)

    @property
    def mesh(self) -> Mesh:
        """Who is who among the job's ranks."""
        degrees = self.workload.parallelism
        return Mesh(degrees.data, degrees.pipeline, degrees.tensor)


@dataclass(frozen=True)
class Reference:
    """What one process gets that trains the same without a pipeline, or why it is not known."""

    losses: tuple[float, ...] = ()
    """Per iteration, warm-up included."""
    gradient_norms: tuple[tuple[float, ...], ...] = ()
    """Per iteration, the Euclidean norm of every layer's gradients, in the order of layers."""
    took_s: float = 0.0
    refused: str = ""


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
