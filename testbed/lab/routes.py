"""Which border sends what where: the paths of `topology.route()` as routing-table entries."""

from __future__ import annotations

from typing import NamedTuple

from testbed.spec.topology import Topology


class Hop(NamedTuple):
    """At border `at`, traffic to datacenter `target` leaves by direction `out` (index into directions()).

    `source` is None for everybody's traffic, or the only datacenter whose traffic this entry is for.
    """

    at: str
    source: str | None
    target: str
    out: int


def border_routes(topology: Topology) -> list[Hop]:
    """Entries that make every datacenter pair use exactly `topology.route()`, hop by hop.

    Most pairs agree with the borders on their way; a pair that does not (equal delays) gets entries by source.
    Pairs without a path get none; that is BadInput where a workload needs them.
    """
    directions = topology.directions()
    paths = {(s, t): path for s in topology.datacenters for t in topology.datacenters if (path := _path(topology, s, t))}
    entries = [Hop(source, None, target, path[0]) for (source, target), path in paths.items()]
    for (source, target), path in paths.items():
        for index in path[1:]:
            at = directions[index].source
            if paths[at, target][0] != index:
                entries.append(Hop(at, source, target, index))
    return entries


def connected(topology: Topology, source: str, target: str) -> bool:
    """Whether there is a path from one datacenter to another (a datacenter is connected to itself)."""
    return source == target or bool(_path(topology, source, target))


def _path(topology: Topology, source: str, target: str) -> list[int]:
    from testbed.errors import BadInput

    try:
        return topology.route(source, target)
    except BadInput:
        return []
