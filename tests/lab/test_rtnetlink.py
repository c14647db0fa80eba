"""Netlink requests without an event loop: long answers, refusals, what was asked and never read; and connections that
are kept."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from testbed.errors import RunFailed
from testbed.lab.namespaces import scratch_network
from testbed.lab.netlink import KeptConnections, Netlink
from testbed.lab.rtnetlink import RtNetlink

pytestmark = pytest.mark.root
PAIRS = 60


def descriptors() -> int:
    """How many of them this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_answer_may_come_in_many_parts() -> None:
    with scratch_network():
        netlink = RtNetlink()
        for number in range(PAIRS):
            peer = {"ifname": f"b{number}"}
            netlink.answer(netlink.link, "add", ifname=f"a{number}", kind="veth", peer=peer)
        names = {link.get_attr("IFLA_IFNAME") for link in netlink.answer(netlink.get_links)}
        netlink.close()
    assert names >= {f"{end}{number}" for end in "ab" for number in range(PAIRS)}


def test_a_refusal_is_the_kernels_and_the_next_request_is_answered() -> None:
    with scratch_network():
        netlink = RtNetlink()
        with pytest.raises(NetlinkError) as refused:
            netlink.answer(netlink.link, "set", index=4711, state="up")
        assert refused.value.code == errno.ENODEV
        assert netlink.answer(netlink.link_lookup, ifname="lo") == [1]
        netlink.close()


def test_an_answer_that_nobody_has_waited_for_is_left_out() -> None:
    with scratch_network():
        netlink = RtNetlink()
        given_up = netlink.link("get", index=1)

        def interrupted(_size: int, _flags: int = 0) -> bytes:
            raise KeyboardInterrupt

        netlink.msg_queue._receive = interrupted
        with pytest.raises(KeyboardInterrupt):
            given_up.send(None)
        netlink.msg_queue._receive = netlink.socket.recv
        assert [link["index"] for link in netlink.answer(netlink.link, "get", index=1)] == [1]
        assert netlink.answer(netlink.link_lookup, ifname="lo") == [1]
        netlink.close()


def test_a_deadline_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.lab.rtnetlink._DEADLINE_S", 1)
    with scratch_network():
        netlink = RtNetlink()
        netlink.send = lambda _data: 0  # nothing is asked, and nothing comes
        with pytest.raises(OSError, match="temporarily unavailable"):
            netlink.answer(netlink.link, "get", index=1)
        netlink.close()


def test_an_index_is_that_of_the_sockets_own_network_now() -> None:
    with scratch_network():
        netlink = Netlink(None, "there")
        netlink.ask("link", "add", ifname="fifteen-letters", kind="veth", peer={"ifname": "b"})
        first = netlink.index("fifteen-letters")
        assert netlink.ask("link", "get", index=netlink.index("fifteen-letters"))[0]["index"] == first
        netlink.ask("link", "del", index=first)
        with pytest.raises(RunFailed, match=r"there: no interface fifteen-letters: .*No such device"):
            netlink.index("fifteen-letters")
        netlink.ask("link", "add", ifname="fifteen-letters", kind="veth", peer={"ifname": "b"}, index=first + 40)
        with scratch_network():  # where there is no such interface
            assert netlink.index("fifteen-letters") == first + 40
        with pytest.raises(RunFailed, match="no interface fifteen-letters-: a name has 15 bytes at most"):
            netlink.index("fifteen-letters-")
        netlink.close()


def test_connections_that_are_kept_are_closed_together() -> None:
    with scratch_network():
        before = descriptors()
        kept = KeptConnections()
        for _ in range(3):
            with kept.about(os.getpid(), "here") as netlink:
                assert netlink.index("lo") == 1
        assert descriptors() == before + 1
        kept.close()
        assert descriptors() == before
        with kept.about(os.getpid(), "here") as anew:
            assert anew is not netlink
            assert anew.index("lo") == 1
        kept.close()
