"""A queue's room in bytes, in front of a qdisc that knows packets only: tc's `police rate R burst Q` at the egress.

The bucket's missing tokens are the bytes that wait for a wire of rate R: a packet for which there is no room in Q is
dropped, as the tail of a first-come queue drops it. Everything asked for is read back; a difference is fatal.
"""

from __future__ import annotations

import math
import socket
from typing import Any, NamedTuple

from pyroute2.netlink import nla, nlmsg
from pyroute2.netlink.rtnl import RTM_DELTFILTER, RTM_NEWQDISC, RTM_NEWTFILTER
from pyroute2.netlink.rtnl.tcmsg import act_police, tcmsg

from testbed.errors import RunFailed
from testbed.lab.netlink import Netlink
from testbed.lab.shaping import qdisc

REMEDY = "modprobe -a sch_ingress cls_matchall act_police, or use --shaper relay"

_PARENT = 0xFFFFFFF1
"""TC_H_CLSACT: where this qdisc is put, beside the one at the root."""
_HANDLE = 0xFFFF0000
_EGRESS = 0xFFFFFFF3
_FIRST = 1 << 16
_ALL_PROTOCOLS = socket.htons(3)
_DROP, _PASS = 2, 0
_RATE_TABLE = bytes(1024)
"""Kernels want one, and since 3.8 reckon by the rate itself; _CELLS and _ETHERNET only make it a valid one."""
_CELLS, _ETHERNET = 8, 1


class Bucket(NamedTuple):
    """A policer in the kernel's own units: bytes per second, and ticks in which the rate fills the room."""

    rate_bytes_per_s: int
    burst_ticks: int


_LATER = (
    ("TCA_POLICE_TM", "none"),
    ("TCA_POLICE_PAD", "none"),
    ("TCA_POLICE_RATE64", "uint64"),
)
"""Attributes that pyroute2 does not know: among them the rate that needs more than 32 bits."""


class _PoliceOptions(act_police.options):  # type: ignore[misc]
    """pyroute2's attributes, and the later ones."""

    nla_map = (*act_police.options.nla_map, *_LATER)


act_police.options = _PoliceOptions  # by which pyroute2 decodes what the kernel says of a policer


class FilterMessage(nlmsg):  # type: ignore[misc]
    """A request for a matchall filter with one police action.

    Not derived from pyroute2's tcmsg: once that has been used, what a derived class says of its options is ignored.
    """

    fields = tcmsg.fields
    nla_map = (("TCA_UNSPEC", "none"), ("TCA_KIND", "asciiz"), ("TCA_OPTIONS", "options"))

    class options(nla):  # type: ignore[misc]  # noqa: N801 - pyroute2's way to name nested attributes
        """enum in linux/pkt_cls.h"""

        nla_map = (("TCA_MATCHALL_UNSPEC", "none"), ("TCA_MATCHALL_CLASSID", "uint32"), ("TCA_MATCHALL_ACT", "acts"))

        class acts(nla):  # type: ignore[misc]  # noqa: N801
            """Actions by their order."""

            nla_map = (("TCA_ACT_PRIO_0", "none"), ("TCA_ACT_PRIO_1", "act"))

            class act(nla):  # type: ignore[misc]  # noqa: N801
                """enum in linux/pkt_cls.h"""

                nla_map = (("TCA_ACT_UNSPEC", "none"), ("TCA_ACT_KIND", "asciiz"), ("TCA_ACT_OPTIONS", "police"))

                class police(nla):  # type: ignore[misc]  # noqa: N801
                    """enum in linux/pkt_cls.h"""

                    nla_map = (
                        ("TCA_POLICE_UNSPEC", "none"),
                        ("TCA_POLICE_TBF", "tbf"),
                        ("TCA_POLICE_RATE", "cdata"),
                        ("TCA_POLICE_PEAKRATE", "cdata"),
                        ("TCA_POLICE_AVRATE", "uint32"),
                        ("TCA_POLICE_RESULT", "uint32"),
                        *_LATER,
                    )

                    class tbf(nla):  # type: ignore[misc]  # noqa: N801
                        """struct tc_police"""

                        fields = act_police.options.police_tbf.fields


def bucket(rate_bps: float, queue_bytes: float, tick_ns: float) -> Bucket:
    """What to ask the kernel for; one tick of the packet-scheduler clock is `tick_ns`. 275 s of the rate at most."""
    return Bucket(round(rate_bps / 8), min(math.ceil(8e9 * queue_bytes / rate_bps / tick_ns), qdisc.UINT32))


def request(interface_index: int, want: Bucket) -> FilterMessage:
    """The netlink message that polices all that leaves an interface."""
    message = FilterMessage()
    message["index"], message["parent"], message["info"] = interface_index, _EGRESS, _FIRST | _ALL_PROTOCOLS
    plain, wider = qdisc.rate_fields(want.rate_bytes_per_s)
    tbf = {
        "action": _DROP,
        "burst": want.burst_ticks,
        "mtu": qdisc.UINT32,
        "rate": plain,
        "rate_cell_log": _CELLS,
        "rate___reserved": _ETHERNET,
    }
    wide = [] if wider is None else [["TCA_POLICE_RATE64", wider]]
    police = [["TCA_POLICE_TBF", tbf], ["TCA_POLICE_RATE", _RATE_TABLE], ["TCA_POLICE_RESULT", _PASS], *wide]
    act = {"attrs": [["TCA_ACT_KIND", "police"], ["TCA_ACT_OPTIONS", {"attrs": police}]]}
    options = {"attrs": [["TCA_MATCHALL_ACT", {"attrs": [["TCA_ACT_PRIO_1", act]]}]]}
    message["attrs"] = [["TCA_KIND", "matchall"], ["TCA_OPTIONS", options]]
    return message


def put(netlink: Netlink, interface: str, want: Bucket, where: str) -> None:
    """Police what leaves an interface, in place of what did so before. Raises RunFailed."""
    index = netlink.index(interface)
    if _hook(netlink, index) is None:
        hook = tcmsg()
        hook["index"], hook["handle"], hook["parent"] = index, _HANDLE, _PARENT
        hook["attrs"] = [["TCA_KIND", "clsact"]]
        netlink.send(hook, RTM_NEWQDISC, qdisc.ADD, shown="qdisc clsact")
    elif _in_force(netlink, index) is not None:
        # the kernel cannot change such a filter
        old = tcmsg()
        old["index"], old["parent"], old["info"] = index, _EGRESS, _FIRST | _ALL_PROTOCOLS
        netlink.send(old, RTM_DELTFILTER, qdisc.CHANGE, shown="filter matchall police, removal")
    netlink.send(request(index, want), RTM_NEWTFILTER, qdisc.ADD, shown=f"filter matchall police {want._asdict()}")
    if (found := _in_force(netlink, index)) != want:
        raise RunFailed(f"{where}: the queue's room is not as asked: {want}, the kernel has {found}")


def dropped(netlink: Netlink, interface: str) -> int:
    """Packets for which there was no room; 0 where nothing is policed. A super-packet counts as one."""
    hook = _hook(netlink, netlink.index(interface))
    return 0 if hook is None else qdisc.drops(hook)


def available(tick_ns: float) -> str | None:
    """None when this kernel can police (tried on a scratch interface), else why not."""
    return qdisc.refusal(lambda netlink: put(netlink, "lo", bucket(1e6, 10e3, tick_ns), "scratch interface"))


def _hook(netlink: Netlink, index: int) -> Any:
    found = [m for m in netlink.ask("get_qdiscs", index=index) if m["parent"] == _PARENT]
    return found[0] if found else None


def _in_force(netlink: Netlink, index: int) -> Bucket | None:
    for message in netlink.ask("get_filters", index=index, parent=_EGRESS):
        options = message.get_attr("TCA_OPTIONS")
        acts = None if options is None else options.get_attr("TCA_MATCHALL_ACT")
        if acts is not None:
            told = acts.get_attr("TCA_ACT_PRIO_1").get_attr("TCA_ACT_OPTIONS")
            found = told.get_attr("TCA_POLICE_TBF")
            return Bucket(told.get_attr("TCA_POLICE_RATE64") or found["rate"], found["burst"])
    return None
