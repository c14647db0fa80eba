"""A queue in bytes and losses by packet: both shapers' arithmetic, how losses are counted, what is refused."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput, MachineLacks, RunFailed
from testbed.lab import calibrate, loss, probes
from testbed.lab.counters import InterfaceDrops
from testbed.lab.shaping import End, ShapedDirection, ShapedLink, netem, police, qdisc
from testbed.lab.shaping.relay_process import VNET_HEADER
from testbed.lab.shaping.relay_process import RelayDirection as Relayed
from testbed.plan import framing
from testbed.spec.document import validate
from testbed.spec.topology import SMALLEST_QUEUE, Direction, Topology
from testbed.thresholds import LOSS_CHANCE

TICK_NS = 64.0


def direction(**values: float) -> Direction:
    settings = {"delay_s": 0.01, "rate_bps": 1e9, "queue_bytes": 0.0, "jitter_s": 0.0, "loss": 0.0} | values
    return Direction(link="a--b", source="a", target="b", **settings)


def shaped(**values: float) -> ShapedDirection:
    asked, end = direction(**values), End("a", 1, "wan0", "02:54:0a:80:00:01")
    return ShapedDirection(0, asked, end, end, asked.queue_bytes or 64e6, seed=7)


def frame(size: int) -> bytes:
    """A packet of `size` bytes on the wire, as a TAP hands it over."""
    content = bytearray(size)
    content[23] = 17
    return VNET_HEADER.pack(1, 0, 0, 0, 34, 6) + bytes(content)


class Kernel:
    """tcf_police_act (net/sched/act_police.c), then netem_enqueue (net/sched/sch_netem.c), in nanoseconds."""

    def __init__(self, rate_bps: float, queue_bytes: float, delay_s: float) -> None:
        want = police.bucket(rate_bps, queue_bytes, TICK_NS)
        self.ns_per_byte = 1e9 / want.rate_bytes_per_s
        self.burst_ns = self.tokens_ns = want.burst_ticks * TICK_NS
        self.filled_at = 0.0
        self.delay_ns = round(delay_s * 1e9)
        self.last_ns = 0.0

    def accept(self, size: int, now: int) -> float | None:
        """When it leaves the far end; None where it is dropped."""
        tokens = min(self.burst_ns, self.tokens_ns + min(now - self.filled_at, self.burst_ns))
        tokens -= size * self.ns_per_byte
        if tokens < 0:
            return None
        self.tokens_ns, self.filled_at = tokens, float(now)
        self.last_ns = max(self.last_ns, now + self.delay_ns) + size * self.ns_per_byte
        return self.last_ns


@given(
    packets=st.lists(st.tuples(st.integers(60, 9014), st.integers(0, 400_000)), min_size=1, max_size=80),
    room=st.sampled_from([9_014, 20_000, 100_000]),
    rate=st.sampled_from([1e8, 1e9]),
)
def test_both_shapers_drop_and_release_the_same(packets: list[tuple[int, int]], room: int, rate: float) -> None:
    kernel = Kernel(rate, room, 0.002)
    relay = Relayed(
        {"delay_s": 0.002, "rate_bps": rate, "jitter_s": 0.0, "loss": 0.0, "queue_bytes": room, "sink": -1, "seed": 1}
    )
    now, expected = 1_000_000, []
    for size, pause in packets:
        now += pause
        waiting = max(0.0, relay.queue_empty_at - now) * rate / 8e9 + size
        if abs(waiting - room) < 16:  # the kernel's bucket is filled in ticks
            continue
        leaves = kernel.accept(size, now)
        relay.accept(frame(size), now)
        expected += [] if leaves is None else [leaves]
    assert [each.release for each in relay.in_flight] == pytest.approx(expected, abs=2)


def test_what_is_on_its_way_takes_no_room() -> None:
    relay = Relayed(
        {"delay_s": 1.0, "rate_bps": 1e9, "jitter_s": 0, "loss": 0, "queue_bytes": 9014, "sink": -1, "seed": 1}
    )
    for number in range(100):
        relay.accept(frame(9014), number * 72_112)
    assert (relay.packets, relay.dropped) == (100, 0)


def test_jitter_comes_before_the_wire_and_keeps_its_rate() -> None:
    relay = Relayed(
        {"delay_s": 0.01, "rate_bps": 1e8, "jitter_s": 0.01, "loss": 0, "queue_bytes": 1e9, "sink": -1, "seed": 1}
    )
    for _ in range(100):
        relay.accept(frame(1250), 0)  # 0.1 ms each
    releases = [each.release for each in relay.in_flight]
    assert all(later - earlier >= 99_999 for earlier, later in pairwise(releases))
    assert releases[-1] < 20_000_000 + 100 * 100_000 + 1


@pytest.mark.parametrize(
    ("rate", "rate_told", "wider"), [(1e9, 125_000_000, None), (64e9, 2**32 - 1, 8_000_000_000), (34e9, 4.25e9, None)]
)
def test_a_queue_in_bytes_survives_the_wire_format(rate: float, rate_told: float, wider: int | None) -> None:
    want = police.bucket(rate, 500e3, TICK_NS)
    assert want == (round(rate / 8), math.ceil(62_500 * 1e9 / rate))
    message = police.request(3, want)
    message.encode()
    again = police.FilterMessage(message.data)
    again.decode()
    acts = again.get_attr("TCA_OPTIONS").get_attr("TCA_MATCHALL_ACT").get_attr("TCA_ACT_PRIO_1")
    found = acts.get_attr("TCA_ACT_OPTIONS").get_attr("TCA_POLICE_TBF")
    assert (found["rate"], found["burst"], found["action"]) == (rate_told, want.burst_ticks, 2)
    assert acts.get_attr("TCA_ACT_OPTIONS").get_attr("TCA_POLICE_RATE64") == wider, "the kernel takes the larger one"
    assert len(acts.get_attr("TCA_ACT_OPTIONS").get_attr("TCA_POLICE_RATE")) == 1024


@pytest.mark.parametrize("rate", [1e6, 3e8, 1e9, 9.7e9])
def test_a_queue_has_all_the_room_that_is_asked_for(rate: float) -> None:
    want = police.bucket(rate, SMALLEST_QUEUE, TICK_NS)
    assert want.burst_ticks * TICK_NS >= SMALLEST_QUEUE * 1e9 / want.rate_bytes_per_s


def test_netem_leaves_the_queue_to_what_counts_bytes() -> None:
    assert netem.parameters(shaped(queue_bytes=500e3)).limit_packets == qdisc.UINT32
    assert netem.parameters(shaped()).limit_packets < 3_000_000  # of 66 bytes


def test_a_kernel_without_a_queue_in_bytes_refuses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(police, "available", lambda _tick: "no police")
    plain, bounded = shaped(), shaped(queue_bytes=500e3)
    with pytest.raises(MachineLacks, match=r"a->b asks for a queue of 500 kB.*--shaper relay"):
        netem.NetemShaper().build([ShapedLink(plain, bounded, 9000)])


@pytest.mark.parametrize("what", [{"loss": 0.001}, {"jitter_s": 1e-4}])
def test_towards_links_that_treat_packets_singly_super_packets_are_one_frame(what: dict[str, float]) -> None:
    assert framing.gso_bytes([direction(), direction(**what)]) == framing.MTU
    assert framing.gso_bytes([direction(), direction()]) == framing.LARGEST_GSO


def test_losses_reach_packets_not_super_packets() -> None:
    """Of 1,000 single frames 10 % are lost one by one; of super-packets of 7 it would be seven at a time."""
    relay = Relayed(
        {"delay_s": 0, "rate_bps": 1e9, "jitter_s": 0, "loss": 0.1, "queue_bytes": 1e9, "sink": -1, "seed": 3}
    )
    for number in range(1000):
        relay.accept(frame(9014), number * 100_000)
    fewest, most = loss.likely_losses(1000, 0.1, LOSS_CHANCE)
    assert fewest <= relay.lost <= most


def binomial(sent: int, share: float, lost: int) -> float:
    return math.comb(sent, lost) * share**lost * (1 - share) ** (sent - lost)


@given(st.integers(1, 60), st.floats(0.001, 0.999), st.sampled_from([1e-4, 1e-2, 0.2]))
def test_what_chance_allows_is_the_binomial_distribution(sent: int, share: float, chance: float) -> None:
    fewest, most = loss.likely_losses(sent, share, chance)
    assert sum(binomial(sent, share, n) for n in range(fewest)) <= chance * (1 + 1e-6)
    assert sum(binomial(sent, share, n) for n in range(fewest + 1)) > chance * (1 - 1e-6)
    assert sum(binomial(sent, share, n) for n in range(most + 1, sent + 1)) <= chance * (1 + 1e-6)
    assert 0 <= fewest <= most <= sent


def test_a_seventh_of_the_losses_is_not_as_asked() -> None:
    sent = loss.packets_to_send(0.001, 50e-6)
    asked = calibrate.AskedDirection(0.01, 0.02, 1e9, 0.001)

    def reasons(lost: int) -> list[str]:
        return calibrate.verdict(asked, calibrate.MeasuredDirection(losses=loss.LossCount(sent, lost)))

    assert sent == 20_000
    assert reasons(20) == []
    assert reasons(3) == ["3 of 20000 packets lost, asked 0.1 %, allowed 6 to 39"]
    assert reasons(140)


def test_probes_allow_for_what_is_lost() -> None:
    assert probes.probes_for(1.0) == (25, 13)
    assert probes.probes_for(0.25) == (100, 13)
    assert probes.probes_for(0.01) == (200, 1)


def topology(**link: Any) -> Topology:
    document = {
        "name": "t",
        "datacenters": {"a": {"nodes": 1}, "b": {"nodes": 1}},
        "links": [{"between": ["a", "b"], "delay": "5 ms", "rate": "1 Gbit/s", **link}],
    }
    return validate(Topology, document, "t.yaml")


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ({"jitter": "6 ms"}, "jitter: got '6 ms', expected at most the forward delay, 5 ms"),
        ({"reverse": {"jitter": "6 ms"}}, "at most the reverse delay, 5 ms"),
        ({"queue": "0 B"}, "queue"),
        ({"queue": "9014 B"}, "queue"),
        ({"loss": 1}, "loss"),
    ],
)
def test_what_no_shaper_can_do_is_refused(link: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        topology(**link)


def test_the_limits_themselves_are_not() -> None:
    asked = topology(jitter="5 ms", queue="18028 B", loss=0.99).directions()[0]
    assert (asked.jitter_s, asked.queue_bytes, asked.loss) == (0.005, SMALLEST_QUEUE, 0.99)


class Message(dict):  # type: ignore[type-arg]
    """A decoded netlink message: fields, and attributes by name."""

    def get_attr(self, name: str) -> Any:
        return self.get(name)


class FakeNetlink:
    """An interface with one qdisc at its root, and a policer before it that has dropped something."""

    def __init__(self, kind: str) -> None:
        def qdisc_message(parent: int, name: str, drops: int) -> Message:
            counted = Message(
                TCA_STATS_BASIC={"packets": 70, "bytes": 5000}, TCA_STATS_QUEUE=Message(drops=drops, backlog=0)
            )
            return Message(parent=parent, TCA_KIND=name, TCA_STATS2=counted)

        self.qdiscs = [qdisc_message(qdisc.ROOT, kind, 4), qdisc_message(0xFFFFFFF1, "clsact", 3)]

    def index(self, _interface: str) -> int:
        return 1

    def ask(self, _method: str, **_settings: object) -> list[Message]:
        return self.qdiscs


@pytest.mark.parametrize("kind", ["netem", "tbf"])
def test_every_qdisc_is_read_in_one_way(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    netlink: Any = FakeNetlink(kind)
    root = qdisc.at_root(netlink, "wan0", kind)
    dropped = police.dropped(netlink, "wan0")
    assert (qdisc.drops(root), dropped) == (4, 3)
    monkeypatch.setattr("testbed.lab.shaping.qdisc.interface_drops", lambda _pid, _interface: InterfaceDrops(9, 2))
    found = qdisc.counted(shaped(loss=0.1), root, dropped=dropped, lost=4)
    assert (found.packets, found.wire_bytes, found.dropped, found.lost) == (70, 5000, 5, 4)
    with pytest.raises(RunFailed, match="no fq at its root"):
        qdisc.at_root(netlink, "wan0", "fq")
