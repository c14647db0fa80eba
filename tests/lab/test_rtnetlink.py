"""Netlink requests without an event loop: long answers, refusals, and what was asked and never read."""

from __future__ import annotations

import errno

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from testbed.lab.namespaces import scratch_network
from testbed.lab.rtnetlink import RtNetlink

pytestmark = pytest.mark.root
PAIRS = 60


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
