"""What a controller's probes and looks take and carry beside what a job has of a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.adaptation import sightings
from testbed.plan.network_state import planned
from testbed.planning.resolve import load_plan
from testbed.session.adapting_lab import stored_s, whole_route

PP4 = Path(__file__).parents[2] / "workloads/tiny-gpt-pp4.yaml"
CHAIN = """
name: chain
datacenters: {a: {nodes: 4, inside: {rate: 30 Mbit/s}}, m: {nodes: 0}, b: {nodes: 4}}
links: [{between: [a, m], rate: 6 Mbit/s, delay: 1 ms}, {between: [m, b], rate: 12 Mbit/s, delay: 1 ms}]
"""


def test_every_link_but_the_slowest_stores_it_in_vain(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN)
    plan = load_plan(tmp_path / "chain.yaml", PP4)
    there, back = (sightings.Path(*ends, route) for ends, route in ((("a", "b"), (0, 2)), (("b", "a"), (3, 1))))
    assert stored_s(plan, there, "a/0") == pytest.approx(12_000 / 12e6 + 12_000 / 30e6), "its node's card, too"
    assert stored_s(plan, back, "b/0") == pytest.approx(12_000 / 12e6)
    alone = sightings.Path("b", "m", (3,))
    assert stored_s(plan, alone, "b/0") == 0.0


def test_what_a_node_sends_goes_over_its_card_first(tmp_path: Path) -> None:
    """In the books of links, too: there trains of looks were missing on cards."""
    (tmp_path / "chain.yaml").write_text(CHAIN)
    plan = load_plan(tmp_path / "chain.yaml", PP4)
    card, *links = whole_route(plan, sightings.Path("a", "b", (0, 2)), "a/1")
    assert (planned(plan.network).everything[card].source, links) == ("a/1", [0, 2])
    assert whole_route(plan, sightings.Path("b", "a", (3, 1)), "b/0") == (3, 1)
