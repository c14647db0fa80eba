"""Which node every rank of every pipeline is on."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.errors import BadInput
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload


def place(topology: Topology, workload: Workload, occupied: frozenset[str] = frozenset()) -> list[tuple[str, ...]]:
    """The nodes of every pipeline, the first one first, none of them `occupied` by another job. Raises BadInput.

    A pipeline's nodes are in the order of its ranks: the tensor ranks of a stage one after the other.
    """
    name, degree = workload.name, workload.parallelism.data
    given: dict[str, list[str]] = {}
    if isinstance(workload.placement, list):
        given["placement"] = workload.placement
    given |= {f"data_parallel.replicas.{n}": nodes for n, nodes in enumerate(workload.data_parallel.replicas or [])}
    known, taken = set(topology.nodes()), set(occupied)
    for where, nodes in given.items():
        for node in nodes:
            if node not in known:
                raise BadInput.of(name, where, node, f"a node of {topology.name} ({', '.join(topology.nodes())})")
            if node in taken:
                raise BadInput.of(name, where, node, "a node that no other rank has")
            taken.add(node)
    if "placement" not in given:
        free = {dc: [n for n in _nodes_of(topology, dc) if n not in taken] for dc in topology.datacenters}
        together = degree if workload.data_parallel.replicas is None else 1
        pipelines = _contiguous(topology, workload, free, together)
    else:
        pipelines = [tuple(given["placement"])]
        if workload.data_parallel.replicas is None:
            pipelines += _beside(topology, workload, pipelines[0], occupied)
    return pipelines + [tuple(nodes) for nodes in workload.data_parallel.replicas or []]


def _nodes_of(topology: Topology, datacenter: str) -> list[str]:
    return [f"{datacenter}/{n}" for n in range(topology.datacenters[datacenter].nodes)]


def _contiguous(
    topology: Topology, workload: Workload, free: dict[str, list[str]], degree: int
) -> list[tuple[str, ...]]:
    """Shares of the stages that are as equal as the nodes of the datacenters let them be, in the order of the file; all
    `degree` replicas of a stage in its datacenter, and all of its tensor ranks.
    """
    ranks, tensor = workload.parallelism.pipeline, workload.parallelism.tensor
    rooms = [len(nodes) // (degree * tensor) for nodes in free.values()]
    if ranks > sum(rooms):
        times = f" in each of {degree} pipelines" if degree > 1 else ""
        times += f", each on {tensor} nodes" if tensor > 1 else ""
        whole = sum(site.nodes for site in topology.datacenters.values())
        times += " on the nodes that other jobs leave" if sum(map(len, free.values())) < whole else ""
        expected = f"no more stages than {topology.name} can place contiguously ({sum(rooms)}{times})"
        raise BadInput.of(workload.name, "parallelism.pipeline", ranks, expected)
    pipelines: list[list[str]] = [[] for _ in range(degree)]
    for nodes, share in zip(free.values(), _shares(ranks, rooms), strict=True):
        taken = share * tensor
        for number, pipeline in enumerate(pipelines):
            pipeline += nodes[number * taken : (number + 1) * taken]
    return [tuple(pipeline) for pipeline in pipelines]


def _shares(stages: int, rooms: Sequence[int]) -> list[int]:
    """How many stages each datacenter gets: one after the other to the one with the fewest, where there is room."""
    shares = [0] * len(rooms)
    for _ in range(stages):
        least = min((index for index, room in enumerate(rooms) if shares[index] < room), key=shares.__getitem__)
        shares[least] += 1
    return shares


def _beside(
    topology: Topology, workload: Workload, first: tuple[str, ...], occupied: frozenset[str]
) -> list[tuple[str, ...]]:
    """Replicas of a pipeline on further nodes of the same datacenters."""
    taken, pipelines = {*first, *occupied}, []
    for _ in range(workload.parallelism.data - 1):
        nodes = []
        for node in first:
            datacenter = node.split("/")[0]
            left = [other for other in _nodes_of(topology, datacenter) if other not in taken]
            if not left:
                expected = f"no more pipelines than datacenter {datacenter} has nodes for"
                raise BadInput.of(workload.name, "parallelism.data", workload.parallelism.data, expected)
            nodes.append(left[0])
            taken.add(left[0])
        pipelines.append(tuple(nodes))
    return pipelines
