"""Token buckets: the rate of an interface where the kernel has no netem, `rate R burst B limit L`, and no delay.

A bucket lets its burst pass at once, here a super-packet and a little more: the first of a message comes that much
earlier than over a wire. Everything asked for is read back and compared; a difference is fatal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from pyroute2.netlink import nla, nlmsg
from pyroute2.netlink.rtnl import RTM_NEWQDISC
from pyroute2.netlink.rtnl.tcmsg import sched_tbf, tcmsg

from testbed.errors import RunFailed
from testbed.lab.netlink import Netlink
from testbed.lab.shaping import LinkCounters, ShapedDirection, qdisc
from testbed.plan.framing import super_packet_bytes
from testbed.spec.topology import Direction

_ETHERNET = 1  # TC_LINKLAYER_ETHERNET: the kernel needs no table of times then
_CREDIT_S = 0.25e-3
"""So late a timer may be without costing rate: with one super-packet's burst, 25 us of lateness cost 3 %."""


class TbfParameters(NamedTuple):
    """A token bucket in the kernel's own units: bytes per second, bytes, bytes."""

    rate_bytes_per_s: int
    burst_bytes: int
    limit_bytes: int


class _BucketOptions(sched_tbf.options):  # type: ignore[misc]
    """pyroute2's attributes of token buckets, and the wider rate that it does not know."""

    nla_map = (*sched_tbf.options.nla_map, ("TCA_TBF_RATE64", "uint64"))


sched_tbf.options = _BucketOptions  # by which pyroute2 decodes what the kernel says of a qdisc


class BucketMessage(nlmsg):  # type: ignore[misc]
    """A qdisc request with a token bucket whose burst is in bytes.

    Not derived from pyroute2's tcmsg: once that has been used, what a derived class says of its options is ignored.
    """

    fields = tcmsg.fields
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"), ("TCA_OPTIONS", "options"))

    class options(nla):  # type: ignore[misc]  # noqa: N801 - pyroute2's way to name nested attributes
        """enum in linux/pkt_sched.h"""

        nla_map = (
            ("TCA_TBF_UNSPEC", "none"),
            ("TCA_TBF_PARMS", "parms"),
            ("TCA_TBF_RTAB", "none"),
            ("TCA_TBF_PTAB", "none"),
            ("TCA_TBF_RATE64", "uint64"),
            ("TCA_TBF_PRATE64", "uint64"),
            ("TCA_TBF_BURST", "uint32"),
        )

        class parms(nla):  # type: ignore[misc]  # noqa: N801
            """struct tc_tbf_qopt"""

            fields = sched_tbf.options.tbf_parms.fields


def parameters(direction: ShapedDirection, gso: int) -> TbfParameters:
    """What to ask the kernel for, where super-packets are of `gso` bytes at most."""
    asked = direction.asked
    burst = super_packet_bytes(gso) + round(asked.rate_bps / 8 * _CREDIT_S)
    return TbfParameters(round(asked.rate_bps / 8), burst, int(min(max(direction.queue_bytes, burst), qdisc.UINT32)))


def request(interface_index: int, want: TbfParameters) -> BucketMessage:
    """The netlink message that puts `want` at the root of an interface."""
    message = BucketMessage()
    message["index"], message["handle"], message["parent"] = interface_index, qdisc.HANDLE, qdisc.ROOT
    plain, wider = qdisc.rate_fields(want.rate_bytes_per_s)
    parms = {"rate": plain, "rate___reserved": _ETHERNET, "limit": want.limit_bytes}
    wide = [] if wider is None else [["TCA_TBF_RATE64", wider]]
    options = {"attrs": [["TCA_TBF_PARMS", parms], *wide, ["TCA_TBF_BURST", want.burst_bytes]]}
    message["attrs"] = [["TCA_KIND", "tbf"], ["TCA_OPTIONS", options]]
    return message


def available() -> str | None:
    """None when this kernel has tbf (tried on a scratch interface), else why not."""
    want = TbfParameters(125_000, 10_000, 100_000)
    return qdisc.refusal(lambda netlink: _send(netlink, netlink.index("lo"), want, qdisc.ADD))


class Buckets:
    """Interfaces that exist already, each with one token bucket on what leaves it."""

    name = "tbf"

    def __init__(self) -> None:
        self._shaped: dict[int, tuple[ShapedDirection, int]] = {}

    def shape(self, direction: ShapedDirection, gso: int) -> None:
        """Shape the direction's source interface. Raises RunFailed when the kernel has something else than asked."""
        self._put(direction, gso, qdisc.ADD)
        self._shaped[direction.index] = direction, gso

    def change(self, direction: int, **values: float) -> None:
        """Change rate_bps of a live direction; a delay cannot be had."""
        if unknown := set(values) - {"rate_bps"}:
            raise ValueError(f"tbf cannot change {sorted(unknown)}")
        old, gso = self._shaped[direction]
        new = replace(old, asked=Direction(**(old.asked._asdict() | values)))
        self._put(new, gso, qdisc.CHANGE)
        self._shaped[direction] = new, gso

    def counters(self) -> list[LinkCounters]:
        """One reading per direction, in the order in which they were shaped; tbf loses nothing but what is too much."""
        rows = []
        for direction, _ in self._shaped.values():
            end = direction.source
            with Netlink(end.pid, end.border) as netlink:
                root = qdisc.at_root(netlink, end.interface, self.name)
                rows.append(qdisc.counted(direction, root, dropped=qdisc.drops(root), lost=0))
        return rows

    def describe(self) -> list[dict[str, Any]]:
        """Per direction, what is in force."""
        return [
            {"direction": direction.asked.label, "shaper": self.name, **parameters(direction, gso)._asdict()}
            for direction, gso in self._shaped.values()
        ]

    def _put(self, direction: ShapedDirection, gso: int, flags: int) -> None:
        want, end = parameters(direction, gso), direction.source
        with Netlink(end.pid, f"{end.border} ({direction.asked.label})") as netlink:
            _send(netlink, netlink.index(end.interface), want, flags)
            root = qdisc.at_root(netlink, end.interface, self.name)
            options = root.get_attr("TCA_OPTIONS")
        found = options.get_attr("TCA_TBF_PARMS")
        rate = options.get_attr("TCA_TBF_RATE64") or found["rate"]
        # the burst comes back as a time, rounded
        if (rate, found["limit"]) != (want.rate_bytes_per_s, want.limit_bytes):
            raise RunFailed(
                f"{direction.asked.label}: tbf is not as asked: {want}, the kernel has rate {rate}, "
                f"limit {found['limit']}"
            )


def _send(netlink: Netlink, index: int, want: TbfParameters, flags: int) -> None:
    netlink.send(request(index, want), RTM_NEWQDISC, flags, shown=f"qdisc tbf {want._asdict()}")
