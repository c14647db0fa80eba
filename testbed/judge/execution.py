"""Did ranks do what the label says? The order of actions that each of them executed, against the rows of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from testbed.judge.fidelity import Check
from testbed.pipeline.ir import Action, Part, Row
from testbed.plan.mesh import Mesh
from testbed.trace.tables import KINDS, Trace

_COLUMNS = ("stage", "kind", "microbatch", "part_begin", "part_end", "part_of")


class ExecutedRow(NamedTuple):
    """The actions of a rank in the order in which it came to them."""

    rank: int
    """Among those of all jobs."""
    row: Row
    iterations: tuple[int, ...]
    """Those in which it did just this."""


def executed_rows(measured: Trace, first_rank: int = 0) -> list[ExecutedRow]:
    """What every rank of a job did, by the clock; one entry per rank where all iterations are alike.

    `measured` has the job's ranks from 0, which are called from `first_rank` on.
    """
    actions = measured.actions
    actions = actions[np.lexsort((actions["reached_s"], actions["iteration"], actions["rank"]))]
    named = np.stack([actions[name].astype(np.int64) for name in _COLUMNS], axis=1)
    owners = np.stack([actions["rank"], actions["iteration"]], axis=1)
    begins = np.flatnonzero(np.any(np.diff(owners, axis=0, prepend=-1) != 0, axis=1))
    iterations_of: dict[tuple[int, bytes], list[int]] = {}
    rows: dict[bytes, Row] = {}
    for begin, end in zip(begins, [*begins[1:], len(actions)], strict=True):
        rank, iteration = owners[begin].tolist()
        key = named[begin:end].tobytes()
        if key not in rows:
            rows[key] = tuple(
                Action(stage, KINDS[kind], microbatch, Part(*part))
                for stage, kind, microbatch, *part in named[begin:end].tolist()
            )
        iterations_of.setdefault((rank, key), []).append(iteration)
    return [ExecutedRow(first_rank + rank, rows[key], tuple(found)) for (rank, key), found in iterations_of.items()]


def planned_rows(mesh: Mesh, rows: Sequence[Row] | None) -> dict[int, Row]:
    """By rank, what it should execute: every replica and tensor rank of a pipeline rank the same.

    {} where there are no rows: a plan that nobody has run may leave them to the run.
    """
    if rows is None:
        return {}
    return {rank: rows[mesh.coordinates(rank).pipeline_rank] for rank in mesh.ranks}


def execution_check(
    executed: Sequence[ExecutedRow], planned: Mapping[int, Row], takes_part: Mapping[int, Sequence[int]] | None = None
) -> Check:
    """Whether every rank executed in every iteration what the plan has for the case; `takes_part` says by rank in which
    iterations, where not in all."""
    why = "a time is that of the schedule whose name it has, or says nothing"
    otherwise = [order for order in executed if order.row != planned.get(order.rank)]
    missing = sorted(planned.keys() - {order.rank for order in executed})
    reasons = [f"rank {', '.join(map(str, missing))} executed nothing"] if missing else []
    if otherwise:
        ranks, named = len({order.rank for order in otherwise}), _named(otherwise, planned)
        reasons.append(f"{ranks} of {len(planned)} ranks executed another schedule than the plan's: {named}")
    if takes_part is not None:
        reasons += _otherwise_absent(executed, takes_part)
    right = len(planned.keys() - {order.rank for order in otherwise} - set(missing))
    found = f"{right} of {len(planned)} ranks"
    return Check("actions executed as planned", found, "all", why, tuple(reasons))


def _otherwise_absent(executed: Sequence[ExecutedRow], takes_part: Mapping[int, Sequence[int]]) -> list[str]:
    did = {rank: set[int]() for rank in takes_part}
    for order in executed:
        did.setdefault(order.rank, set()).update(order.iterations)
    wrong = {rank: sorted(mine.symmetric_difference(takes_part.get(rank, ()))) for rank, mine in did.items()}
    rank, numbers = next(((rank, numbers) for rank, numbers in sorted(wrong.items()) if numbers), (-1, []))
    if not numbers:
        return []
    how = "had no part" if numbers[0] not in did[rank] else "had a part"
    return [f"rank {rank} {how} in iteration {numbers[0]}, other than its replica was foretold to"]


def _named(otherwise: Sequence[ExecutedRow], planned: Mapping[int, Row]) -> str:
    """The first action that is not the plan's, of the first iteration in which one is not."""
    first = min(otherwise, key=lambda order: (order.iterations[0], order.rank))
    each = zip_longest(map(str, first.row), map(str, planned.get(first.rank, ())), fillvalue="nothing")
    place, (did, should) = next((place, both) for place, both in enumerate(each) if both[0] != both[1])
    when = f"iteration {first.iterations[0]}"
    if len(first.iterations) > 1:
        when += f" and {len(first.iterations) - 1} more"
    return f"rank {first.rank} did {did} instead of {should} as action {place} in {when}"
