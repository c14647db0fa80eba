"""A two-layer Clos as a routing problem made at once, for studies of policies on networks larger than any lab's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.model.network import Floats, Ints
from testbed.routing.routing_problem import RoutingProblem


def clos_problem(
    leaves: int,
    spines: Sequence[int],
    ends: Ints,
    *,
    job: Ints | None = None,
    wire_bytes: Floats | None = None,
    target_host: Ints | None = None,
    host: Ints | None = None,
    rate_bps: float = 1.0,
) -> RoutingProblem:
    """Flows over a Clos whose living spines are `spines`; `ends` has a row (source leaf, target leaf) per flow.

    Without `wire_bytes` every flow has one byte; all of them are of data parallelism. Flows inside a leaf have nothing
    to choose. Candidate k goes over spines[k]. `host` is the sending host, by number over all leaves: its network card
    has the same rate as a link; without it hosts send as fast as they want.
    """
    count, width = len(ends), max(spines) + 1
    pairs, pair = np.unique(ends[:, 0] * leaves + ends[:, 1], return_inverse=True)

    def candidates(a: int, b: int) -> tuple[tuple[int, ...], ...]:
        if a == b:
            return ((),)
        return tuple((2 * (a * width + spine), 2 * (b * width + spine) + 1) for spine in spines)

    sizes = np.ones(count) if wire_bytes is None else wire_bytes
    return RoutingProblem(
        rate_bps=np.full(2 * leaves * width + (0 if host is None else int(host.max()) + 1), rate_bps),
        link_target=np.array(
            [end for leaf in range(leaves) for spine in range(width) for end in (leaves + spine, leaf)], np.int64
        ),
        candidates=tuple(candidates(*divmod(int(pair), leaves)) for pair in pairs),
        pair=pair.astype(np.int64).reshape(-1),
        source=ends[:, 0].astype(np.int64),
        target=ends[:, 1].astype(np.int64),
        target_host=np.arange(count, dtype=np.int64) if target_host is None else target_host,
        job=np.zeros(count, np.int64) if job is None else job,
        wire_bytes=sizes,
        collective_bytes=sizes,
        card=np.full(count, -1, np.int64) if host is None else 2 * leaves * width + host.astype(np.int64),
    )
