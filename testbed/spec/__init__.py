"""The YAML files as validated models; every error names file, field, value and what was expected."""

from testbed.spec.topology import Direction, Topology, load_topology
from testbed.spec.workload import Workload, load_workload

__all__ = ["Direction", "Topology", "Workload", "load_topology", "load_workload"]
