"""A trace of some ranks of a job, with their numbers among all of its ranks, or counted anew from 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.trace.tables import Table, Trace


def tables_numbered_as(
    actions: Table, messages: Table, ranks: Sequence[int], replicas: Sequence[int]
) -> tuple[Table, Table]:
    """Copies in which rank and replica 0, 1, ... have these numbers."""
    actions, messages = actions.copy(), messages.copy()
    names, of_replicas = np.asarray(ranks), np.asarray(replicas)
    actions["rank"], actions["replica"] = names[actions["rank"]], of_replicas[actions["replica"]]
    for end in ("source_rank", "target_rank"):
        messages[end] = names[messages[end]]
    return actions, messages


def numbered_as(trace: Trace, ranks: Sequence[int], replicas: Sequence[int], n_ranks: int) -> Trace:
    """The same of a trace; the job has so many ranks in all."""
    return Trace(*tables_numbered_as(trace.actions, trace.messages, ranks, replicas), n_ranks)


def counted_anew(trace: Trace, ranks: Sequence[int], replicas: Sequence[int]) -> Trace:
    """The inverse: a copy in which these ranks and replicas, ascending, are 0, 1, ...; there are no others in it."""
    actions, messages = trace.actions.copy(), trace.messages.copy()
    actions["rank"] = np.searchsorted(ranks, actions["rank"])
    actions["replica"] = np.searchsorted(replicas, actions["replica"])
    for end in ("source_rank", "target_rank"):
        messages[end] = np.searchsorted(ranks, messages[end])
    return Trace(actions, messages, len(ranks))
