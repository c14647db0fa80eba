"""Correct trainings that are nothing alike, drawn by seed: what the limits for gradients and weights are checked on.

None of these was looked at when the limits were set (testbed/thresholds.py). Used by `mutants.py --correct`.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from testbed.schedule.registry import FAMILIES

MLP = "{kind: my_model.py:Mlp, layers: 8}"
MESHES = ((1, 2, 1), (2, 1, 2), (2, 2, 1), (1, 3, 1), (1, 2, 2), (3, 1, 1), (1, 1, 4), (2, 2, 2))


class Setting(NamedTuple):
    """What is trained: replicas, pipeline ranks, tensor ranks, the schedule, and fields of the workload."""

    mesh: tuple[int, int, int]
    schedule: str
    fields: dict[str, str]


def drawn(seed: int, count: int) -> dict[str, Setting]:
    """So many trainings by name: every family of schedules and every mesh in turn, all else by chance."""
    draw = random.Random(f"correct/{seed}")
    families = [name for name, one in FAMILIES.items() if not one.solver]
    draw.shuffle(families)
    found = {}
    for number in range(count):
        mesh, schedule = MESHES[number % len(MESHES)], families[number % len(families)]
        fields = {
            "seed": str(draw.randrange(10_000)),
            "model": _model(draw, tensor=mesh[2]),
            "microbatches": str(draw.choice((3, 4, 5, 6))),
            "microbatch_size": str(draw.choice((1, 2))),
            "memory": "12",
            "recompute": draw.choice(("true", "false")),
            "receives": draw.choice(("early", "late")),
            "optimizer": _optimizer(draw),
        }
        if mesh[0] > 1:
            sharding, algorithm = draw.choice(("zero-1", "none")), draw.choice(("ring", "hierarchical"))
            fields["data_parallel"] = f"{{sharding: {sharding}, algorithm: {algorithm}, parameters: 4 MB}}"
        found[f"{number}: {schedule}, {' x '.join(map(str, mesh))}"] = Setting(mesh, schedule, fields)
    return found


def _model(draw: random.Random, *, tensor: int) -> str:
    if tensor == 1 and draw.random() < 0.2:
        return MLP
    heads = 4 if tensor == 4 else draw.choice((2, 4))
    width, sequence = draw.choice((16, 24, 32)), draw.choice((8, 12, 16))
    dtype = draw.choice(("float32", "float32", "float32", "float64"))
    return f"{{layers: {draw.choice((8, 12))}, d_model: {width}, heads: {heads}, sequence: {sequence}, dtype: {dtype}}}"


def _optimizer(draw: random.Random) -> str:
    kind = draw.choice(("adamw", "adamw", "sgd"))
    rate = 10 ** draw.uniform(-4, -2) if kind == "adamw" else 10 ** draw.uniform(-2, -0.5)
    return f"{{kind: {kind}, learning_rate: {rate:.6f}}}"
