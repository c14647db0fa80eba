"""Round trips by ICMP echoes: of an address that answers, of one that does not, and without a turn of the processor."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from testbed.lab.echoes import SO_TIMESTAMPNS, Echoes, arrival_ns, exchange, internet_checksum

pytestmark = pytest.mark.root


def echoes_of(address: str, count: int, interval_s: float, patience_s: float) -> list[float]:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as own:
        one = Echoes(own, address, 56)
        exchange([one], count, interval_s, patience_s)
        return one.round_trips_s


def test_every_request_is_answered_once_and_what_waits_takes_no_processor() -> None:
    before = time.process_time()
    found = echoes_of("127.0.0.1", 25, 0.015, 1.0)
    assert len(found) == 25
    assert all(0 < round_trip_s < 1 for round_trip_s in found)
    assert time.process_time() - before < 0.1, "of 0.4 s: it sleeps between an answer and the next request"


def test_who_does_not_answer_has_no_round_trips() -> None:
    assert echoes_of("127.0.0.1", 0, 0.01, 0.05) == []
    assert echoes_of("0.0.0.1", 3, 0.01, 0.05) == []  # no network takes it


def test_the_checksum_of_rfc_1071() -> None:
    assert internet_checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xDDF2 ^ 0xFFFF


def test_who_loses_its_turn_between_two_clocks_reads_both_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steady_ns, turns_lost = 5_000_000_000, [7_000_000, 3_000_000]

    def pass_by(ns: int) -> int:
        nonlocal steady_ns
        steady_ns += ns
        return steady_ns

    def dates() -> int:
        return 10**18 + pass_by(turns_lost.pop() if turns_lost else 1_000)

    monkeypatch.setattr(time, "monotonic_ns", lambda: pass_by(1_000))
    monkeypatch.setattr(time, "time_ns", dates)
    came_ns = steady_ns - 40_000
    stamp = struct.pack("=qq", *divmod(10**18 + came_ns, 10**9))
    arrived_ns = arrival_ns([(socket.SOL_SOCKET, SO_TIMESTAMPNS, stamp)])
    assert not turns_lost
    assert abs(arrived_ns - came_ns) <= 1_000
