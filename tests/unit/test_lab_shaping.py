"""Shapers without a kernel: netem's parameters and their read-back, the relay's accounting and timing."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import BadInput
from testbed.lab.shaping import End, LinkCounters, ShapedDirection, anywhere, choose
from testbed.lab.shaping.netem import (
    NetemParameters,
    QdiscMessage,
    differences,
    parameters,
    read_back,
    request,
    tick_nanoseconds,
)
from testbed.lab.shaping.relay_process import (
    LATENESS_BUCKETS,
    VNET_HEADER,
    RelayDirection,
    lateness_bound,
    lateness_bucket,
    lateness_quantile,
    wire_size,
)
from testbed.spec import topology

PSCHED = "000003e8 00000040 000f4240 3b9aca00"
TICK_NS = 64.0


def shaped(queue_bytes: float = 16e6, **values: float) -> ShapedDirection:
    settings = {"delay_s": 0.0102, "rate_bps": 1e9, "queue_bytes": 0.0, "jitter_s": 0.0, "loss": 0.0} | values
    asked = topology.Direction(link="a--b", source="a", target="b", **settings)
    end = End("a", 1, "wan0", "02:54:0a:80:00:01")
    return ShapedDirection(0, asked, end, end, queue_bytes, seed=7)


# --- netem --------------------------------------------------------------------------------------


def test_netem_parameters_are_in_kernel_units() -> None:
    want = parameters(shaped(jitter_s=1e-4, loss=0.25))
    assert want == NetemParameters(10_200_000, 100_000, 125_000_000, 523_864, 2**30)


def test_tick_is_read_from_the_kernel() -> None:
    assert tick_nanoseconds(PSCHED) == TICK_NS


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"delay_s": 0.0},
        {"delay_s": 0.00204805},
        {"rate_bps": 1e3},
        {"loss": 0.013, "jitter_s": 3e-5},
        {"rate_bps": 34e9},
        {"rate_bps": 34.5e9},
        {"rate_bps": 100e9},
    ],
)
def test_what_is_asked_survives_the_wire_format(values: dict[str, float]) -> None:
    want = parameters(shaped(**values))
    message = request(3, want, 7, TICK_NS)
    message.encode()
    again = QdiscMessage(message.data)
    again.decode()
    assert again["index"] == 3
    assert again["parent"] == 0xFFFFFFFF
    assert differences(want, read_back(again, TICK_NS), TICK_NS) == []
    options = again.get_attr("TCA_OPTIONS")
    assert options.get_attr("TCA_NETEM_LATENCY64") == want.delay_ns
    assert options.get_attr("TCA_NETEM_PRNG_SEED") == 7
    assert again.get_attr("TCA_RATE") is None


@pytest.mark.parametrize("name", NetemParameters._fields)
def test_every_parameter_is_compared(name: str) -> None:
    want = parameters(shaped(loss=0.1, jitter_s=1e-3))
    found = want._replace(**{name: getattr(want, name) + 100})
    assert [text.split(":")[0] for text in differences(want, found, TICK_NS)] == [name]


def test_an_unknown_shaper_is_bad_input() -> None:
    with pytest.raises(BadInput, match="auto, relay, netem"):
        choose("magic")


# --- relay --------------------------------------------------------------------------------------


def tcp_packet(payload: int, segment: int, options: int = 12) -> bytes:
    headers = 14 + 20 + 20 + options
    gso_type = 1 if payload > segment else 0
    vnet = VNET_HEADER.pack(1, gso_type, headers + 100, segment if gso_type else 0, 34, 16)
    frame = bytearray(headers + payload)
    frame[23] = 6
    frame[34 + 12] = (5 + options // 4) << 4
    return vnet + bytes(frame)


def udp_packet(payload: int) -> bytes:
    frame = bytearray(14 + 20 + 8 + payload)
    frame[23] = 17
    return VNET_HEADER.pack(1, 0, 0, 0, 34, 6) + bytes(frame)


def test_each_segment_of_a_super_packet_pays_for_its_headers() -> None:
    headers = 66
    assert wire_size(tcp_packet(1000, 8948)) == (headers + 1000, 1000, 1)
    assert wire_size(tcp_packet(8948, 8948)) == (headers + 8948, 8948, 1)
    assert wire_size(tcp_packet(62_636, 8948)) == (7 * headers + 62_636, 62_636, 7)
    assert wire_size(tcp_packet(8949, 8948)) == (2 * headers + 8949, 8949, 2)
    assert wire_size(udp_packet(500)) == (542, 0, 1)


def relay(**values: Any) -> RelayDirection:
    config = {"delay_s": 0.01, "rate_bps": 8e6, "jitter_s": 0.0, "loss": 0.0, "queue_bytes": 1e9, "sink": -1, "seed": 1}
    return RelayDirection(config | values)


def test_a_link_serialises_then_delays() -> None:
    direction = relay()  # 1 byte = 1 us
    packet = udp_packet(958)  # 1000 bytes on the wire: 1 ms
    begin = 1_000_000_000
    assert direction.accept(packet, begin)
    assert not direction.accept(packet, begin)
    assert not direction.accept(packet, begin + 5_000_000)
    releases = [frame.release - begin for frame in direction.in_flight]
    assert releases == [11_000_000, 12_000_000, 16_000_000]


def test_what_a_passage_takes_by_itself_is_taken_off_the_delay_and_no_more() -> None:
    packet, begin = udp_packet(958), 1_000_000_000
    for delay_s, wanted in ((0.01, 9_000_000), (0.002, 1_000_000), (0.0005, 1_000_000)):
        direction = relay(early_s=0.002)
        direction.set({"delay_s": delay_s}, begin)  # a link that changes keeps it
        direction.accept(packet, begin)
        assert direction.in_flight[0].release - begin == wanted


def test_only_waiting_bytes_fill_the_queue() -> None:
    direction = relay(queue_bytes=2500.0)
    packet = udp_packet(958)
    accepted = [direction.accept(packet, 0) or len(direction.in_flight) for _ in range(5)]
    assert len(accepted) == 5
    assert len(direction.in_flight) == 2
    assert direction.dropped == 3
    direction.accept(packet, 2_000_000)  # the wire is idle again; what is in flight takes no room
    assert len(direction.in_flight) == 3
    assert direction.packets == 3
    assert direction.wire_bytes == 3000


def test_neither_jitter_nor_a_change_reorders() -> None:
    direction = relay(jitter_s=0.005)
    for number in range(200):
        direction.accept(udp_packet(58), number * 100_000)
    direction.set({"delay_s": 0.0, "jitter_s": 0.0}, 199 * 100_000)
    direction.accept(udp_packet(58), 20_100_000)
    releases = [frame.release for frame in direction.in_flight]
    assert releases == sorted(releases)
    assert len(set(releases)) > 10


def releases_of(direction: RelayDirection) -> list[int]:
    return [frame.release for frame in direction.in_flight]


def test_what_is_not_sent_yet_goes_as_the_link_is_now() -> None:
    """Frames of 1000 B, 1 ms each at 8 Mbit/s, 10 ms away; at 1.5 ms the first is sent and half of the second is."""
    direction, packet = relay(rate_bps=8e6, delay_s=0.01), udp_packet(958)
    for _ in range(3):
        direction.accept(packet, 0)
    assert releases_of(direction) == [11_000_000, 12_000_000, 13_000_000]
    direction.set({"rate_bps": 4e6}, 1_500_000)
    assert releases_of(direction) == [11_000_000, 12_500_000, 14_500_000]
    direction.set({"rate_bps": 16e6, "delay_s": 0.002}, 3_500_000)
    assert releases_of(direction) == [11_000_000, 12_500_000, 12_500_000], "nothing is overtaken: 5.75 ms otherwise"
    direction.accept(packet, 20_000_000)
    assert releases_of(direction)[-1] == 22_500_000


def test_a_direction_that_sends_nothing_keeps_what_comes() -> None:
    direction, packet = relay(rate_bps=8e6, delay_s=0.01, queue_bytes=3000), udp_packet(958)
    assert [direction.accept(packet, 0) for _ in range(2)] == [True, False]
    direction.set({"sends": False}, 500_000)
    assert releases_of(direction) == []
    assert not direction.accept(packet, 600_000)
    assert direction.dropped == 0
    assert not direction.accept(packet, 600_000)
    assert direction.dropped == 1, "room for 3000 B, and 2500 wait: half a frame is sent"
    direction.set({"delay_s": 0.003}, 700_000)
    assert releases_of(direction) == []
    direction.set({"sends": False}, 800_000)
    direction.set({"sends": True}, 4_000_000)
    assert releases_of(direction) == [], "another outage is not over"
    direction.set({"sends": True}, 5_000_000)
    assert releases_of(direction) == [8_500_000, 9_500_000, 10_500_000]
    assert (direction.packets, direction.wire_bytes) == (3, 3000)


def test_loss_follows_the_seed() -> None:
    def lost(seed: int) -> list[bool]:
        direction = relay(loss=0.3, seed=seed)
        before, pattern = 0, []
        for number in range(300):
            direction.accept(udp_packet(1), number * 10**9)
            pattern.append(direction.lost > before)
            before = direction.lost
        return pattern

    assert lost(1) == lost(1)
    assert lost(1) != lost(2)
    assert 50 < sum(lost(1)) < 130


def test_lateness_buckets_are_ordered_and_tight() -> None:
    previous = -1
    for nanoseconds in [*range(2000), *(int(1.1**n) for n in range(80, 240))]:
        bucket = lateness_bucket(nanoseconds)
        assert bucket >= previous
        previous = bucket
        if bucket < LATENESS_BUCKETS - 1:
            assert nanoseconds < lateness_bound(bucket) <= max(nanoseconds + 1, 1.25 * nanoseconds + 1)


def test_quantiles_and_windows_of_counters() -> None:
    histogram = [0] * LATENESS_BUCKETS
    histogram[lateness_bucket(50_000)] = 98
    histogram[lateness_bucket(2_000_000)] = 2
    assert lateness_quantile(histogram, 0.5) == pytest.approx(50e-6, rel=0.25)
    assert lateness_quantile(histogram, 0.99) == pytest.approx(2e-3, rel=0.25)
    early = LinkCounters(0, "a->b", 10, 1000, None, 1, 0, 5.0, tuple([0] * LATENESS_BUCKETS))
    late = LinkCounters(0, "a->b", 110, 9000, None, 1, 3, 7.0, tuple(histogram))
    window = late.since(early)
    assert (window.packets, window.wire_bytes, window.payload_bytes, window.dropped, window.lost) == (
        100,
        8000,
        None,
        0,
        3,
    )
    assert early.lateness_s(0.5) is None
    assert window.as_row()["lateness_max_s"] == pytest.approx(2e-3, rel=0.25)


def test_the_vnet_header_is_the_kernels() -> None:
    assert struct.calcsize(VNET_HEADER.format) == 10


def test_a_shaper_that_cannot_be_made_is_bad_input_before_a_guest_boots(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Needs:\n    def __init__(self, what): ...\n\nclass Nothing: ...\n")
    for name, expected in (("Needs", "can be made without arguments .TypeError"), ("Nothing", "has all methods of")):
        with pytest.raises(BadInput, match=rf"--shaper: shaper: got '.*:{name}', expected .*{expected}"):
            anywhere(f"{file}:{name}")
