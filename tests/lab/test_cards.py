"""Network cards in a real lab, by netem or by tbf, whichever the kernel has: shaped, counted, measured by the gate."""

from __future__ import annotations

from typing import Any

import pytest
from in_sandbox import in_sandbox

pytestmark = pytest.mark.root


def with_cards(rates: list[float]) -> dict[str, Any]:
    """Checks and counters of a lab: datacenter a has cards of 200 Mbit/s, b one of 500 Mbit/s, c has none.

    `rates` (bit/s) are then given to a's cards behind the lab's back.
    """
    from testbed.lab.calibrate import calibrate
    from testbed.lab.network import Lab
    from testbed.plan.resolve import measurement_of
    from testbed.spec.document import validate
    from testbed.spec.topology import Topology

    document = {
        "name": "cards",
        "datacenters": {
            "a": {"nodes": 3, "inside": {"delay": "10 us", "rate": "200 Mbit/s"}},
            "b": {"nodes": 1, "inside": {"rate": "500 Mbit/s"}},
            "c": {"nodes": 1},
        },
        "links": [
            {"between": ["a", "b"], "delay": "2 ms", "rate": "100 Mbit/s"},
            {"between": ["b", "c"], "delay": "2 ms", "rate": "100 Mbit/s"},
        ],
    }
    with Lab(measurement_of(validate(Topology, document, "test")), shaper="relay") as lab:
        for number, rate_bps in enumerate(rates):
            lab.change_link(4 + number, rate_bps=rate_bps)
        before = lab.counters()
        checks = calibrate(lab)
        counted = [after.since(earlier) for after, earlier in zip(lab.counters(), before, strict=True)]
        return {
            "shaper": lab.card_shaper_name,
            "checks": {check.label: check.as_json() for check in checks},
            "counted": {row.label: row.as_row() for row in counted},
            "described": lab.describe()["cards"],
        }


CARDS = ["a/0->a (card)", "a/1->a (card)", "a/2->a (card)", "b/0->b (card)"]


def test_cards_are_shaped_measured_and_counted() -> None:
    found = in_sandbox(with_cards, [], timeout_s=120)
    assert found["shaper"] in ("netem", "tbf")
    # two nodes of a measured towards each other, b's only one towards its border
    checked = [label for label in found["checks"] if "card" in label]
    assert checked == ["a/0->a (card)", "a/1->a (card)", "b/0->b (card)"]
    for label in checked:
        check = found["checks"][label]
        assert not check["broken"]
        assert check["measured"]["dropped"] == 0
        assert check["measured"]["rate_bps"] == pytest.approx(check["asked"]["rate_bps"], rel=0.02)
        # the probe's bytes are counted where they were sent
        assert found["counted"][label]["wire_bytes"] > 0.3 * check["asked"]["rate_bps"] / 8
    assert [row["direction"] for row in found["described"]] == CARDS
    assert list(found["counted"])[4:] == CARDS
    assert found["counted"]["a/2->a (card)"]["wire_bytes"] == 0
    if found["shaper"] == "tbf":
        notes = found["checks"]["a/0->a (card)"]["notes"]
        assert any("in the model only" in note for note in notes), notes
    assert found["checks"]["b/0->b (card)"]["notes"] == []


def test_a_card_of_another_rate_is_caught() -> None:
    found = in_sandbox(with_cards, [200e6, 150e6], timeout_s=120)
    reasons = found["checks"]["a/1->a (card)"]["reasons"]
    assert any("rate 150" in reason or "rate 149" in reason for reason in reasons), reasons
    assert not any("rate" in reason for reason in found["checks"]["a/0->a (card)"]["reasons"])
