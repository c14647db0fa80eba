"""Which border sends what where: default routes as routing-table entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from testbed.spec.topology import Direction

Paths = Mapping[tuple[str, str], Sequence[int]]
"""(source, target) of every connected pair of datacenters -> indexes of directions; () inside one datacenter."""


class Hop(NamedTuple):
    """At border `at`, traffic to datacenter `target` leaves by direction `out` (index into directions()).

    `source` is None for everybody's traffic, or the only datacenter whose traffic this entry is for.
    """

    at: str
    source: str | None
    target: str
    out: int


def border_routes(paths: Paths, directions: Sequence[Direction]) -> list[Hop]:
    """Entries that make every datacenter pair use exactly its path, hop by hop.

    Most pairs agree with the borders on their way; a pair that does not (equal delays) gets entries by source.
    """
    entries = [Hop(source, None, target, path[0]) for (source, target), path in paths.items() if path]
    for (source, target), path in paths.items():
        for index in path[1:]:
            at = directions[index].source
            if paths[at, target][0] != index:
                entries.append(Hop(at, source, target, index))
    return entries
