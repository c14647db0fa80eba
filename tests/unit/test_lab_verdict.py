"""The link gate's bands, and the parsing under them."""

from __future__ import annotations

import pytest

from testbed.cli.lab_tables import link_tables
from testbed.lab.calibrate import AskedDirection, LinkCheck, MeasuredDirection, verdict
from testbed.lab.probes import Spread, spread

ASKED = AskedDirection(delay_s=0.010, rtt_s=0.020, rate_bps=1e9)


def measured(
    rtt: float = 0.0201, one_way: float = 0.0101, rate: float | None = 1e9, dropped: int = 0
) -> MeasuredDirection:
    return MeasuredDirection(Spread(rtt, rtt, rtt, 25), Spread(one_way, one_way, one_way, 25), rate, dropped)


def test_within_the_bands() -> None:
    assert verdict(ASKED, measured()) == []
    assert verdict(ASKED, measured(rtt=0.02039, one_way=0.01039, rate=0.981e9)) == []
    assert verdict(ASKED, measured(rate=None)) == []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (measured(rtt=0.02041), "RTT median 20.41 ms, asked 20 ms, allowed ±400 us"),
        (measured(one_way=0.0095), "one-way delay median 9.5 ms"),
        (measured(rate=0.97e9), "rate 970 Mbit/s, asked 1 Gbit/s (-3.0 %, allowed ±2 %)"),
        (measured(rate=1.03e9), "+3.0 %"),
        (measured(dropped=3), "3 packets dropped"),
    ],
)
def test_outside_one_band(found: MeasuredDirection, reason: str) -> None:
    reasons = verdict(ASKED, found)
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_long_links_have_relative_bands() -> None:
    far = AskedDirection(delay_s=0.050, rtt_s=0.100, rate_bps=1e9)
    assert verdict(far, measured(rtt=0.1019, one_way=0.0509)) == []
    assert len(verdict(far, measured(rtt=0.1021, one_way=0.0511))) == 2


def test_asked_for_jitter_widens_the_bands() -> None:
    assert verdict(ASKED, measured(rtt=0.022, one_way=0.0115), jitter_s=0.002) == []


def test_a_check_is_json_and_a_table_row() -> None:
    bad = LinkCheck(0, "a->b", ASKED, measured(dropped=1), ("1 packets dropped",))
    again = LinkCheck(0, "a->b", ASKED, measured(), (), earlier=(bad,))
    assert (bad.ok, again.ok, again.attempts) == (False, True, 2)
    assert again.as_json()["earlier"][0]["reasons"] == ["1 packets dropped"]
    table, why = link_tables("links", [bad.as_json(), again.as_json()], width=140)
    assert [str(cell) for cell in table.columns[-1].cells] == ["NO", "yes"]  # type: ignore[union-attr]
    assert str(why) == "a->b: 1 packets dropped"


def test_a_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0, 3)
