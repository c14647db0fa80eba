"""Links of a live lab that change at instants to come: what waits is kept, nothing is lost, and it is told when."""

from __future__ import annotations

import time
from typing import Any

import pytest
from in_sandbox import in_sandbox
from networks import two_datacenters

pytestmark = pytest.mark.root

HELD_S = 0.4


def pings(lab: Any) -> tuple[list[float], list[int]]:
    """Round trips in ms, and numbers, of pings while links change, in the order in which answers come."""
    said = lab.containers["a/0"].run(["ping", "-c", "100", "-i", "0.005", "-W", "1", lab.address("b/0")])
    answers = [line for line in said.splitlines() if "time=" in line]
    numbers = [int(line.partition("icmp_seq=")[2].split()[0]) for line in answers]
    return [float(line.partition("time=")[2].split()[0]) for line in answers], numbers


def chance_facts() -> dict[str, Any]:
    from testbed.lab.lab import Lab
    from testbed.lab.shaping import TimedChange

    with Lab(two_datacenters("10 ms", "100 Mbit/s"), shaper="relay") as lab:
        lab.schedule_changes([TimedChange(time.monotonic(), 0, jitter_s=8e-3)])
        jitter = pings(lab)
        late = [(counted.packets, counted.dropped, counted.lost) for counted in lab.counters()]
        lab.schedule_changes([TimedChange(time.monotonic(), 0, jitter_s=0.0, loss=0.3)])
        loss = pings(lab)
        lost = sum(counted.lost or 0 for counted in lab.counters())
        lab.schedule_changes([TimedChange(time.monotonic(), 0, loss=0.0)])
        return {"jitter": jitter, "loss": loss, "lost": lost, "late": late, "after": pings(lab)}


def test_jitter_keeps_the_order_and_loss_is_counted() -> None:
    found = in_sandbox(chance_facts)
    times_ms, numbers = found["jitter"]
    assert numbers == sorted(numbers), "none overtakes another"
    assert [(dropped, lost) for _, dropped, lost in found["late"]] == [(0, 0)] * 2
    assert len(numbers) == found["late"][1][0] >= 99, "every answer that was sent has come"
    assert max(times_ms) - min(times_ms) > 4, "they come early and late"
    assert found["lost"] > 0
    assert len(found["loss"][1]) == 100 - found["lost"]
    assert len(found["after"][1]) >= 99, "all as before"


def changed_facts() -> dict[str, Any]:
    from testbed.lab.lab import Lab
    from testbed.lab.shaping import TimedChange

    with Lab(two_datacenters("5 ms", "100 Mbit/s"), shaper="relay") as lab:
        now = time.monotonic()
        begins, ends = now + 0.2, now + 0.2 + HELD_S
        changes = [TimedChange(begins, 0, sends=False), TimedChange(ends, 0, delay_s=0.03, sends=True)]
        lab.schedule_changes(changes)
        said = lab.containers["a/0"].run(["ping", "-c", "30", "-i", "0.03", lab.address("b/0")])
        happened = lab.changes_happened()
        lost = [counted.dropped for counted in lab.counters()]
        return {
            "said": said,
            "late_s": [at - one.at_s for at, one in zip(happened, changes, strict=True)],
            "lost": lost,
        }


def test_what_comes_while_a_link_sends_nothing_is_sent_afterwards() -> None:
    found = in_sandbox(changed_facts)
    assert found["lost"] == [0, 0]
    assert " 0% packet loss" in found["said"]
    answers = [line for line in found["said"].splitlines() if "time=" in line]
    times_ms = [float(line.partition("time=")[2].split()[0]) for line in answers]
    numbers = [int(line.partition("icmp_seq=")[2].split()[0]) for line in answers]
    assert numbers == sorted(numbers), "nothing is overtaken"
    assert times_ms[0] < 30
    assert max(times_ms) > 1e3 * HELD_S / 2, "what came when it was just down waited for nearly all of it"
    assert times_ms[-1] >= 35, "30 ms there, 5 ms back"
    assert all(-1e-6 < late_s < 0.2 for late_s in found["late_s"]), found["late_s"]
