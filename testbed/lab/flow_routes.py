"""Routes of single flows: where they differ from the default, rules by source and target address at every router."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.lab import addresses
from testbed.lab.routing_tables import next_hop

if TYPE_CHECKING:
    from testbed.lab.lab import Lab

_PRIORITY = 100
"""Of the rules, before those by source datacenter."""

_SERVICE_PRIORITY = 90
"""Of those for packets of a type of service: before all others."""

_TABLES = 20_000
"""Table number of "leave by direction 0"; behind those by source datacenter."""


class Enforced(NamedTuple):
    """How the routes in force are kept to: pairs (source node, target node)."""

    hashed: frozenset[tuple[str, str]]
    """By ports of theirs that the routers' own hash sends there."""
    pinned: frozenset[tuple[str, str]]
    """By rules."""

    def __str__(self) -> str:
        rest = f"; pinned by rule: {', '.join(self._named(self.pinned))}" if self.pinned else ""
        return f"{len(self.hashed)} of {len(self.hashed) + len(self.pinned)} routes by ports{rest}"

    def as_json(self) -> dict[str, list[str]]:
        """JSON-able."""
        return {"by_ports": self._named(self.hashed), "by_rules": self._named(self.pinned)}

    @staticmethod
    def _named(pairs: frozenset[tuple[str, str]]) -> list[str]:
        return [f"{source} -> {target}" for source, target in sorted(pairs)]


class FlowRoutes:
    """What is laid over a lab's default routes."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._rules: list[tuple[str, dict[str, Any]]] = []
        self._sized: list[tuple[str, dict[str, Any]]] = []
        self._tables: set[int] = set()
        """Directions whose table has been made; the kernel empties it when the link goes down."""

    def forget_tables(self, directions: Iterable[int]) -> None:
        """Make the tables of these directions again when they are needed: their links went down."""
        self._tables.difference_update(directions)

    def clear(self) -> None:
        """Remove what was in force. Raises RunFailed when the kernel refuses, or has lost it meanwhile."""
        self._remove(self._rules)
        for name, entry in self._sized:
            with self._lab.netlink(self._lab.containers[name]) as netlink:
                netlink.ask("route", "del", **entry)
        self._rules, self._sized = [], []

    def pin(self, routes: Mapping[tuple[str, str], tuple[int, ...]]) -> None:
        """Have traffic between (source node, target node) take these directions. Raises RunFailed."""
        for (source, target), route in routes.items():
            for index in route:
                self._rules.append(self._add(source, target, index))

    @contextmanager
    def of_service(self, type_of_service: int, source: str, target: str, route: Sequence[int]) -> Iterator[None]:
        """Have packets of a type of service between this pair take these directions meanwhile, whatever all other
        traffic does. Raises RunFailed."""
        rules: list[tuple[str, dict[str, Any]]] = []
        try:
            for index in route:
                rules.append(self._add(source, target, index, priority=_SERVICE_PRIORITY, tos=type_of_service))
            yield
        finally:
            self._remove(rules)

    def _add(
        self, source: str, target: str, index: int, priority: int = _PRIORITY, **more: int
    ) -> tuple[str, dict[str, Any]]:
        """At the router where direction `index` begins, traffic of this pair leaves by it; returns router and rule."""
        lab, name = self._lab, self._lab.directions[index].source
        rule: dict[str, Any] = {
            "src": f"{lab.address(source)}/32",
            "dst": f"{lab.address(target)}/32",
            "table": _TABLES + index,
            "priority": priority,
            **more,
        }
        with lab.netlink(lab.routers[name]) as netlink:
            if index not in self._tables:
                netlink.ask("route", "add", dst="default", table=_TABLES + index, **next_hop(lab, netlink, index))
                self._tables.add(index)
            netlink.ask("rule", "add", **rule)
        return name, rule

    def _remove(self, rules: Iterable[tuple[str, dict[str, Any]]]) -> None:
        for name, rule in rules:
            with self._lab.netlink(self._lab.routers[name]) as netlink:
                netlink.ask("rule", "del", **rule)

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
