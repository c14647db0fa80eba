"""Ports for the routers' hash: next hops of equal cost, gloo's connections, and the choice among ports."""

from __future__ import annotations

import random
from pathlib import Path

from testbed.lab import ports
from testbed.lab.hashing import Connection, equal_hops
from testbed.plan.network_state import planned
from testbed.plan.plan import Route
from testbed.planning.resolve import network_of
from testbed.spec import load_topology

ADDRESS_OF = {"a/0": "10.1.0.2", "a/1": "10.1.0.6", "b/0": "10.2.0.2", "b/1": "10.2.0.6"}
ACROSS = [(a, b) for a in ADDRESS_OF for b in ADDRESS_OF if a[0] != b[0]]


def test_a_leaf_has_a_next_hop_for_every_spine(tmp_path: Path) -> None:
    (tmp_path / "clos.yaml").write_text(
        "name: clos\ndatacenters: {pod: {clos: {leaves: 3, spines: 2, hosts: 1, rate: 1 Gbit/s}}}\n"
    )
    network = network_of(load_topology(tmp_path / "clos.yaml"))
    found = equal_hops(planned(network))
    leaves = [f"pod-leaf{number}" for number in range(3)]
    assert set(found) == {(a, b) for a in leaves for b in leaves if a != b}
    for (at, _), hops in found.items():
        assert [network.directions[index].source for index in hops] == [at, at]
        assert {network.directions[index].target for index in hops} == {"pod-spine0", "pod-spine1"}


def test_the_node_with_the_greater_address_connects() -> None:
    port_of = {"a/0": 40000, "b/1": 40200}
    assert ports.between(("b/1", "a/0"), port_of, ADDRESS_OF) == Connection("b/1", 40200, "a/0", 40001)
    assert ports.between(("a/0", "b/1"), port_of, ADDRESS_OF) == Connection("a/0", 40001, "b/1", 40200)


def hash_over(spines: int, seed: int) -> dict[Connection, Route]:
    class Hash(dict[Connection, Route]):
        def __missing__(self, connection: Connection) -> Route:
            self[connection] = (random.Random(f"{seed} {connection}").randrange(spines),)
            return self[connection]

    return Hash()


def test_two_spines_leave_nothing_to_rules() -> None:
    drawn = random.Random(1)
    for seed in range(10):
        wanted: dict[ports.NodePair, Route] = {pair: (drawn.randrange(2),) for pair in ACROSS}
        way = hash_over(2, seed).__getitem__
        chosen = ports.choose(wanted, wanted, ADDRESS_OF, way)
        assert chosen.hashed == set(wanted)
        assert {pair: way(ports.between(pair, chosen.port_of, ADDRESS_OF)) for pair in wanted} == wanted
        assert all(port % 2 == 0 for port in chosen.port_of.values())


def test_where_no_port_does_all_the_first_pairs_come_first() -> None:
    wanted: dict[ports.NodePair, Route] = dict.fromkeys(ACROSS, (0,))
    first = [("a/0", "b/0"), ("a/1", "b/1")]

    def way(connection: Connection) -> Route:
        """No port sends all pairs of a node by direction 0: even for the first ones, or for all but them."""
        return (0,) if ((connection.source, connection.target) in first) == (connection.source_port % 4 < 2) else (1,)

    chosen = ports.choose(wanted, first, ADDRESS_OF, way)
    assert set(first) <= chosen.hashed
    assert chosen.hashed < set(wanted)
