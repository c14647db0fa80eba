"""A lab whose wires were laid anew for another plan is the lab of that plan: nothing is left of the one before."""

from __future__ import annotations

import re
from typing import Any

import pytest
from in_sandbox import in_sandbox
from networks import network, two_datacenters

from testbed.lab.lab import serves_as_well
from testbed.plan.plan import Plan

pytestmark = pytest.mark.root

DATACENTERS = {"a": 2, "b": 1, "c": 1}
BURST, LARGER_BURST = 1_000_000, 3_000_000


def before() -> Plan:
    """Traffic from a to c goes over b, by a link that the other plan has not."""
    return network(
        DATACENTERS,
        [
            {"between": ["a", "b"], "delay": "2 ms", "rate": "1 Gbit/s"},
            {"between": ["b", "c"], "delay": "2 ms", "rate": "100 Mbit/s"},
            {"between": ["a", "c"], "delay": "30 ms", "rate": "1 Gbit/s"},
        ],
    )


def after() -> Plan:
    return network(
        DATACENTERS,
        [
            {"between": ["a", "c"], "delay": "5 ms", "rate": "10 Mbit/s"},
            {"between": ["a", "b"], "delay": "20 ms", "rate": "200 Mbit/s"},
        ],
    )


def facts(lab: Any) -> dict[str, Any]:
    said = lab.containers["c/0"].run(["ping", "-c", "3", "-i", "0.05", "-q", lab.address("b/0")])
    rules = []
    for name, router in lab.routers.items():
        with lab.netlink(router) as netlink:
            rules += [[name, rule.get_attr("FRA_TABLE")] for rule in netlink.ask("get_rules", family=2)]
    described = lab.describe()
    links = [{name: value for name, value in link.items() if name != "early_s"} for link in described["links"]]
    return {
        "described": described | {"host": None, "links": links},
        "rules": rules,
        "rtt_ms": float(re.search(r"= ([\d.]+)/", said)[1]),  # type: ignore[index]
        "counted": [row.dropped for row in lab.counters()],
        "mininet": sorted(f"{link.intf1.name} {link.intf2.name}" for link in lab.net.links),
        "alive": len(lab.processes()),
    }


def fresh_and_rewired() -> list[dict[str, Any]]:
    from testbed.lab.lab import Lab

    with Lab(after(), shaper="relay", largest_burst_bytes=LARGER_BURST) as lab:
        found = [facts(lab)]
    with Lab(before(), shaper="relay", largest_burst_bytes=BURST) as lab:
        lab.routes.use({("a/0", "c/0"): (4,)})  # a rule of the plan before
        lab.routes.lose("a--b")
        lab.rewire(after(), largest_burst_bytes=LARGER_BURST)
        found.append(facts(lab))
        lab.rewire(before(), largest_burst_bytes=BURST)
        lab.rewire(after(), largest_burst_bytes=LARGER_BURST)
        found.append(facts(lab))
    return found


def test_a_rewired_lab_is_as_a_fresh_one() -> None:
    fresh, *rewired = in_sandbox(fresh_and_rewired, timeout_s=240)
    for found in rewired:
        assert found["rtt_ms"] > 49
        assert found["rtt_ms"] < 2 * fresh["rtt_ms"]  # over both links, twice
        found["rtt_ms"] = fresh["rtt_ms"]
        assert found == fresh


def test_containers_serve_plans_that_need_nothing_else() -> None:
    plan = two_datacenters()
    assert serves_as_well(plan, two_datacenters(delay="70 ms", rate="10 Mbit/s"))
    assert not serves_as_well(plan, two_datacenters(nodes=2))
    assert not serves_as_well(
        plan, network({"a": 1, "c": 1}, [{"between": ["a", "c"], "delay": "1 s", "rate": "1 Mbit/s"}])
    )
