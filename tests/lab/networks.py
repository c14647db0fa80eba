"""Small topologies for lab tests."""

from __future__ import annotations

from typing import Any

from testbed.plan.plan import Plan
from testbed.planning.resolve import measurement_of
from testbed.spec.document import validate
from testbed.spec.topology import Topology


def two_datacenters(delay: str = "10 ms", rate: str = "1 Gbit/s", nodes: int = 1, **link: Any) -> Plan:
    return network({"a": nodes, "b": nodes}, [{"between": ["a", "b"], "delay": delay, "rate": rate, **link}])


def network(
    datacenters: dict[str, int], links: list[dict[str, Any]], routes: list[dict[str, Any]] | None = None
) -> Plan:
    document = {
        "name": "test",
        "datacenters": {name: {"nodes": nodes} for name, nodes in datacenters.items()},
        "links": links,
        "routes": routes or [],
    }
    return measurement_of(validate(Topology, document, "test"))
