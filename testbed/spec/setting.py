"""How `--set KEY=VALUE` and the axes of a study name a field of a topology or of a workload."""

from __future__ import annotations

from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

IN_TOPOLOGY = "topology."


def setting(field: str) -> str:
    """The whole name of a field: with `topology.` in front of one that only topologies have."""
    first = field.partition(".")[0]
    alone = first in Topology.model_fields and first not in Workload.model_fields
    return f"{IN_TOPOLOGY}{field}" if alone else field
