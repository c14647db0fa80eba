"""What the tensor ranks of a pipeline rank send each other: everybody everything, inside their actions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from testbed.plan.plan import Job

INSTANTS_BYTES = 24
"""With which tensor ranks agree on when an action begins (train/tensor_peers.py)."""


class TensorExchange(NamedTuple):
    """Exchanges of one size: what each tensor rank sends every other one."""

    payload_bytes: int
    number: int


class OfActions(NamedTuple):
    """What a stage's tensor ranks exchange for each microbatch."""

    forward: tuple[TensorExchange, ...]
    backward: tuple[TensorExchange, ...]
    """In I or B; a weight gradient by itself needs nobody."""


def of_actions(job: Job, stages: Sequence[int], stage: int) -> OfActions:
    """Of a stage; `stages` tell which pipeline rank holds each one. Nothing without tensor ranks.

    With the instants, their parts of the boundary tensor that has come in; then the summands of every reduction, those
    of the forward again where it is computed again.
    """
    workload, rank, last = job.workload, stages[stage], len(stages) - 1
    if job.mesh.tp == 1:
        return OfActions((), ())
    element = workload.model.element_bytes
    part = element * math.ceil(workload.tensor_bytes() / element / job.mesh.tp)
    gathered = TensorExchange(INSTANTS_BYTES + part, 1)
    reductions = workload.model.forward_reductions(stage, len(stages))
    summed = TensorExchange(workload.tensor_bytes(), reductions)
    again = TensorExchange(workload.tensor_bytes(), (2 if workload.recompute else 1) * reductions)
    below, above = stage > 0 and stages[stage - 1] != rank, stage < last and stages[stage + 1] != rank
    return OfActions((gathered,) * below + (summed,), (gathered,) * above + (again,))


def tensor_exchanges(job: Job, stages: Sequence[int], rank: int) -> list[TensorExchange]:
    """All of a pipeline rank's in an iteration: those of its actions, and instants alone where an action waits for
    nothing but parameters. Empty without tensor ranks.
    """
    mine = [stage for stage, holder in enumerate(stages) if holder == rank]
    number: Counter[int] = Counter()
    for stage in mine:
        for exchanges in of_actions(job, stages, stage):
            for exchange in exchanges:
                number[exchange.payload_bytes] += exchange.number * job.workload.microbatches
    if job.mesh.tp > 1 and job.mesh.dp > 1:
        number[INSTANTS_BYTES] += sum(stage == 0 or stages[stage - 1] == rank for stage in mine)
    return [TensorExchange(*item) for item in number.items() if item[1]]


def buffer_bytes(exchanges: Sequence[TensorExchange], degree: int) -> int:
    """Of what each tensor rank receives them in: a buffer for every other one and every size."""
    return (degree - 1) * sum({exchange.payload_bytes for exchange in exchanges})
