"""What an interface has dropped, read from /proc, beside the kernel's message about it; and when it would drop."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import pytest

from testbed.errors import RunFailed
from testbed.lab.counters import InterfaceDrops, interface_drops
from testbed.lab.namespaces import scratch_network
from testbed.lab.netlink import Netlink

pytestmark = pytest.mark.root
FRAMES = 7


def test_drops_of_both_directions_are_those_that_netlink_tells() -> None:
    with scratch_network(), Netlink(None, "scratch namespace") as netlink:
        netlink.ask("link", "add", ifname="a", kind="veth", peer={"ifname": "b"})
        netlink.ask("link", "set", index=netlink.index("a"), state="up")
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind(("a", 0))
            netlink.ask("link", "set", index=netlink.index("b"), state="up")
            netlink.ask("link", "set", index=netlink.index("a"), mtu=1500)
            netlink.ask("link", "set", index=netlink.index("b"), mtu=100)
            for _ in range(FRAMES):  # which are too long for the other end
                with suppress(OSError):  # as a veth pair's drop is told
                    sender.send(bytes(12) + b"\x08\x00" + bytes(500))
        pid = os.getpid()
        for name in ("a", "b", "lo"):
            statistics = netlink.ask("link", "get", index=netlink.index(name))[0].get_attr("IFLA_STATS64")
            told = InterfaceDrops(int(statistics["rx_dropped"]), int(statistics["tx_dropped"]))
            assert interface_drops(pid, name) == told
        assert interface_drops(pid, "a").sent == FRAMES


def test_one_that_is_not_there_is_named() -> None:
    with pytest.raises(RunFailed, match="no interface wan0 in the container of process"):
        interface_drops(os.getpid(), "wan0")
    with pytest.raises(RunFailed, match=r"no interface wan0: its process \d+ is gone \(No such file or directory\)"):
        interface_drops(2**22 + 1, "wan0")


def test_a_wire_carries_when_both_ends_are_up() -> None:
    with scratch_network(), Netlink(None, "scratch namespace") as netlink:
        netlink.ask("link", "add", ifname="a", kind="veth", peer={"ifname": "b"})
        netlink.ask("link", "set", index=netlink.index("a"), state="up")
        assert not netlink.carries("a")
        netlink.ask("link", "set", index=netlink.index("b"), state="up")
        assert netlink.carries("a")
        assert netlink.carries("b")
        with pytest.raises(RunFailed, match="scratch namespace: wan0 does not say whether it carries"):
            netlink.carries("wan0")
