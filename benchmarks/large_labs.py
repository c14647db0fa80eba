"""How long a lab of many containers takes to be built, beside plain Mininet with as many hosts, in one run.

    python benchmarks/large_labs.py [--containers 256] [--rounds 3] [--record [NAME]]

Four datacenters in a line, a border router each, all containers shared out among them. Plain Mininet has the same
hosts and routers, joined by its own Link, between routers by its TCLink with the same delay and rate, with addresses,
and routes that its shells set: no namespaces of processes, no TCP profile, nothing read back. Both are built in turn,
in one sandbox, and taken down again; what is compared are the medians. Where the kernel has no netem, Mininet says so
of each TCLink and goes on. Needs root.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

from harness import options
from harness.record import Claim, Topic, finish
from harness.report import show_table
from mininet.link import TCLink
from mininet.net import Mininet

from testbed.cli.options import in_sandbox
from testbed.lab.lab import Lab
from testbed.plan.plan import Plan
from testbed.planning.resolve import measurement_of
from testbed.spec.document import validate
from testbed.spec.topology import Topology

SITES = "abcd"
DELAY, RATE = "1 ms", "1 Gbit/s"
MOST = 1.0
"""Of the time that plain Mininet takes."""


def plan_of(containers: int) -> Plan:
    """Its links only."""
    document = {
        "name": "large",
        "datacenters": {
            site: {"nodes": containers // len(SITES) + (place < containers % len(SITES))}
            for place, site in enumerate(SITES)
        },
        "links": [{"between": list(pair), "delay": DELAY, "rate": RATE} for pair in pairwise(SITES)],
    }
    return measurement_of(validate(Topology, document, "large"))


def lab_s(plan: Plan) -> float:
    """Seconds until a lab is built."""
    began = time.monotonic()
    with Lab(plan):
        return time.monotonic() - began


def mininet_s(plan: Plan) -> float:
    """The same of plain Mininet."""
    Mininet.inited = True  # which would write the machine's sysctls
    began = time.monotonic()
    net: Any = Mininet(topo=None, build=False, controller=None)
    routers = {site: net.addHost(f"r{site}", ip=None) for site in SITES}
    gateways = {}
    for number, node in enumerate(plan.network.nodes):
        host = net.addHost(f"h{number}", ip=None)
        subnet, router = f"10.{SITES.index(node.datacenter)}.{number}", routers[node.datacenter]
        ends = {"params1": {"ip": f"{subnet}.2/24"}, "params2": {"ip": f"{subnet}.1/24"}}
        net.addLink(host, router, intfName1=f"h{number}-e", intfName2=f"r{number}-e", **ends)
        gateways[host] = f"{subnet}.1"
    for place, (here, there) in enumerate(pairwise(SITES)):
        ends = {"params1": {"ip": f"10.200.{place}.1/24"}, "params2": {"ip": f"10.200.{place}.2/24"}}
        net.addLink(routers[here], routers[there], cls=TCLink, delay="1ms", bw=1000, **ends)
    net.build()
    for router in routers.values():
        router.cmd("sysctl -w net.ipv4.ip_forward=1")
    for place, (here, there) in enumerate(pairwise(SITES)):
        for far in range(place + 1, len(SITES)):
            routers[here].cmd(f"ip route add 10.{far}.0.0/16 via 10.200.{place}.2")
        for far in range(place + 1):
            routers[there].cmd(f"ip route add 10.{far}.0.0/16 via 10.200.{place}.1")
    for host, gateway in gateways.items():
        host.cmd(f"ip route add default via {gateway}")
    took_s = time.monotonic() - began
    net.stop()
    return took_s


def main() -> int:
    """1 where the lab takes longer."""
    parser = options.parser(__doc__)
    parser.add_argument("--containers", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    plan, (read, write) = plan_of(asked.containers), os.pipe()

    def body() -> int:
        for _ in range(asked.rounds):
            os.write(write, f"{lab_s(plan)} {mininet_s(plan)}\n".encode())
        return 0

    code = in_sandbox(body)
    os.close(write)
    with os.fdopen(read) as answers:
        rounds = [tuple(map(float, line.split())) for line in answers]
    rows = [(f"{ours:.2f}", f"{plain:.2f}", f"{ours / plain:.2f}") for ours, plain in rounds]
    show_table(f"{asked.containers} containers", ("lab s", "plain Mininet s", "ratio"), rows)
    ours_s, plain_s = (statistics.median(times) for times in zip(*rounds, strict=True))
    claim = Claim(
        f"a lab of {asked.containers} containers is built, beside plain Mininet with as many hosts",
        f"<= {MOST:g} x its time",
        f"{ours_s:.1f} s beside {plain_s:.1f} s, {ours_s / plain_s:.2f} x, medians of {len(rounds)} rounds",
        code == 0 and ours_s <= MOST * plain_s,
        ours_s / plain_s,
        "x",
    )
    return finish(asked, Topic.SPEED, [claim], clock="real")


if __name__ == "__main__":
    sys.exit(main())
