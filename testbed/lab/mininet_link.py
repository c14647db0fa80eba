"""Plain Mininet's TCLink with a link's delay and rate, measured by ping and iperf3: what our links are compared with.

As a Mininet user would build it: two hosts, one TCLink(bw, delay), nothing else set. Where the kernel lacks netem or
the rate is beyond what TCLink accepts, Mininet only logs an error and carries on unshaped; `said` has what it logged.
"""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from mininet.link import TCLink
from mininet.log import lg
from mininet.net import Mininet
from mininet.node import Host

from testbed.errors import MachineLacks, RunFailed
from testbed.lab.container import BoundedHost
from testbed.lab.netlink import Netlink
from testbed.lab.probes import Ends, Spread, ping_overhead_s, round_trips
from testbed.plan.framing import ETHERNET_HEADER, IP_TCP_HEADERS
from testbed.spec.topology import Direction

_MTU = 1500
"""Mininet's."""

_FRAME_OVER_PAYLOAD = (_MTU + ETHERNET_HEADER) / (_MTU - IP_TCP_HEADERS)
_SETTLE_S = 2
_WINDOW_S = 2
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class MininetLink:
    """What a TCLink with the delay and rate of a direction turned out to be."""

    delay_s: float
    rate_bps: float
    rtt: Spread
    """Without the pings' own time on the wire."""
    measured_bps: float
    """On the wire, from iperf3's payload in a steady window."""
    retransmits: int
    dropped: int
    """By the qdiscs at both ends."""
    said: tuple[str, ...]
    """What Mininet logged while it built the link."""

    def as_json(self) -> dict[str, Any]:
        """JSON-able, times in seconds and rates in bit/s."""
        return asdict(self) | {"rtt": self.rtt._asdict()}


def measure(asked: Direction) -> MininetLink:
    """Build and measure one TCLink. Call inside a sandbox. Raises MachineLacks or RunFailed."""
    Mininet.inited = True  # its set-up would rewrite the machine's TCP settings
    said: list[str] = []
    with _listening(said):
        net = Mininet(topo=None, build=False, controller=None)
        net.built = True
        try:
            # Mininet's own hosts: without a PID namespace of their own, where its way of making links would fail
            ends = Ends(net.addHost("m1", cls=BoundedHost), "10.0.0.1", net.addHost("m2", cls=BoundedHost), "10.0.0.2")
            link = net.addLink(
                ends.source, ends.target, cls=TCLink, bw=asked.rate_bps / 1e6, delay=f"{asked.delay_s * 1e6:g}us"
            )
            for host in (ends.source, ends.target):
                host.configDefault()
            rtt_s = 2 * asked.delay_s
            (found,) = round_trips([ends], rtt_s, asked.rate_bps)
            overhead = 2 * ping_overhead_s(asked.rate_bps)
            payload_bps, retransmits = iperf3(ends)
            dropped = sum(
                _drops(host, interface.name)
                for host, interface in ((ends.source, link.intf1), (ends.target, link.intf2))
            )
        finally:
            for host in net.hosts:
                host.shell.kill()  # the holder of the namespaces: its interfaces go with it
                host.cleanup()
    rate_bps = payload_bps * _FRAME_OVER_PAYLOAD
    return MininetLink(asked.delay_s, asked.rate_bps, found.less(overhead), rate_bps, retransmits, dropped, tuple(said))


@contextmanager
def _listening(said: list[str]) -> Iterator[None]:
    """Collect what Mininet logs as an error, which is all that it does about a failed tc command."""
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    lg.addHandler(handler)
    try:
        yield
    finally:
        lg.removeHandler(handler)


def iperf3(ends: Ends) -> tuple[float, int]:
    """(payload bit/s in a steady window, retransmits) of one TCP connection with default settings.

    Raises MachineLacks without iperf3, RunFailed when it fails or does not end.
    """
    server = ends.target.popen(["iperf3", "--server", "--one-off", "--bind", ends.target_address])
    try:
        client = f"iperf3 --client {ends.target_address} --json --time {_WINDOW_S} --omit {_SETTLE_S}".split()
        for _ in range(20):  # until the server listens
            running = ends.source.popen(client)
            try:
                output, _ = running.communicate(timeout=_DEADLINE_S)
            except subprocess.TimeoutExpired as error:
                running.kill()
                raise RunFailed(f"iperf3 did not end within {_DEADLINE_S:g} s") from error
            report = json.loads(output)
            if "connection refused" not in report.get("error", "").lower():
                break
        if "error" in report:
            raise RunFailed(f"iperf3: {report['error']}")
    except FileNotFoundError as error:
        raise MachineLacks("iperf3 is missing; add it with: apt-get install iperf3") from error
    finally:
        server.kill()
        server.wait()
    return float(report["end"]["sum_received"]["bits_per_second"]), int(report["end"]["sum_sent"]["retransmits"])


def _drops(host: Host, interface: str) -> int:
    """Packets that the qdiscs of an interface have dropped."""
    with Netlink(host.pid, host.name) as netlink:
        found = netlink.ask("get_qdiscs", index=netlink.index(interface))
    return sum(message.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")["drops"] for message in found)
