"""Routes of single flows: where they differ from the default, rules by source and target address at every border."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from testbed.lab import addresses

if TYPE_CHECKING:
    from testbed.lab.network import Lab

_PRIORITY = 100
"""Of the rules, before those by source datacenter."""

_TABLES = 20_000
"""Table number of "leave by direction 0"; behind those by source datacenter."""


class FlowRoutes:
    """What is laid over a lab's default routes."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._rules: list[tuple[str, dict[str, Any]]] = []
        self._sized: list[tuple[str, dict[str, Any]]] = []
        self._tables: set[int] = set()

    def use(self, routes: Mapping[tuple[str, str], tuple[int, ...]]) -> None:
        """Have traffic between (source node, target node) take these directions; what was in force before is removed.

        Raises RunFailed when the kernel refuses.
        """
        for name, rule in self._rules:
            with self._lab.netlink(self._lab.borders[name]) as netlink:
                netlink.ask("rule", "del", **rule)
        for name, entry in self._sized:
            with self._lab.netlink(self._lab.containers[name]) as netlink:
                netlink.ask("route", "del", **entry)
        self._rules, self._sized = [], []
        for (source, target), route in routes.items():
            for index in route:
                self._add(source, target, index)

    def _add(self, source: str, target: str, index: int) -> None:
        """At the border where direction `index` begins, traffic of this pair leaves by it."""
        lab, name = self._lab, self._lab.directions[index].source
        rule = {
            "src": f"{lab.address(source)}/32",
            "dst": f"{lab.address(target)}/32",
            "table": _TABLES + index,
            "priority": _PRIORITY,
        }
        with lab.netlink(lab.borders[name]) as netlink:
            if index not in self._tables:
                _, _, _, gateway = lab.link_ends(index)
                oif = netlink.index(lab.link_interface(index))
                netlink.ask("route", "add", dst="default", gateway=gateway, oif=oif, table=_TABLES + index)
                self._tables.add(index)
            netlink.ask("rule", "add", **rule)
        self._rules.append((name, rule))

    def size(self, source: str, target: str, metrics: dict[str, int]) -> None:
        """TCP between this pair begins with these route metrics."""
        lab = self._lab
        with lab.netlink(lab.containers[source]) as netlink:
            (outer,) = (m for m in netlink.ask("get_routes", family=2, table=254) if m["dst_len"] == 0)
            entry = {
                "dst": f"{lab.address(target)}/32",
                "gateway": outer.get_attr("RTA_GATEWAY"),
                "oif": netlink.index(addresses.NODE_INTERFACE),
            }
            netlink.ask("route", "add", **entry, metrics=metrics)
        self._sized.append((source, entry))
