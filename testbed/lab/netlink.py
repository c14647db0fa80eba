"""Netlink requests into one container, each fatal when the kernel refuses it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from testbed.errors import RunFailed
from testbed.interrupts import held_interrupts
from testbed.lab import addresses
from testbed.lab.namespaces import inside
from testbed.lab.rtnetlink import RtNetlink
from testbed.plan.framing import LARGEST_GSO, MTU

_NEIGHBOUR_PERMANENT = 0x80  # NUD_PERMANENT


class Netlink:
    """An open netlink socket in the network namespace of process `pid`; `where` names it in errors.

    No request is interrupted half-way: of what is finalised then, an interrupt could be lost.
    """

    def __init__(self, pid: int | None, where: str) -> None:
        self._where = where
        self._index_of: dict[str, int] = {}
        """Of interfaces that were asked for, as long as none is deleted."""
        with held_interrupts(), nullcontext() if pid is None else inside(pid):
            self._open = RtNetlink()

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        with held_interrupts():
            self._open.close()

    def ask(self, method: str, *args: object, **settings: object) -> list[Any]:
        """One pyroute2 request, e.g. ask("link", "set", index=3, state="up"). Raises RunFailed showing it whole."""
        if args[:1] == ("del",):
            self._index_of.clear()
        try:
            with held_interrupts():
                return self._open.answer(getattr(self._open, method), *args, **settings)
        except (NetlinkError, OSError) as error:
            shown = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in settings.items())])
            raise RunFailed(f"{self._where}: netlink {method}({shown}) was refused: {error}") from error

    def send(self, message: Any, kind: int, flags: int, *, shown: str) -> None:
        """One ready-made request that is answered by an acknowledgement. Raises RunFailed with `shown`."""
        try:
            with held_interrupts():
                self._open.answer(self._open.nlm_request, message, kind, flags)
        except (NetlinkError, OSError) as error:
            raise RunFailed(f"{self._where}: netlink {shown} was refused: {error}") from error

    def index(self, interface: str) -> int:
        """The index of an interface. Raises RunFailed when there is none of that name."""
        if interface not in self._index_of:
            with held_interrupts():
                found = self._open.answer(self._open.link_lookup, ifname=interface)
            if not found:
                raise RunFailed(f"{self._where}: no interface {interface}")
            self._index_of[interface] = int(found[0])
        return self._index_of[interface]

    def interface(self, name: str) -> Any:
        """The decoded link message of an interface, with its statistics."""
        return self.ask("link", "get", index=self.index(name))[0]


def bring_up(netlink: Netlink, interface: str, own: str, other: str, gso: int) -> None:
    """Address, state, segmentation and the permanent neighbour of one end of a point-to-point subnet."""
    index = netlink.index(interface)
    segments = max(1, gso // MTU)
    # by number alone: of a size TCP first takes room for any headers that there may be (sk_dst_gso_max_size)
    netlink.ask("link", "set", index=index, gso_max_size=LARGEST_GSO, gso_max_segs=segments)
    netlink.ask("addr", "add", index=index, address=own, prefixlen=addresses.PREFIX_LENGTH)
    raise_end(netlink, interface, other)


def raise_end(netlink: Netlink, interface: str, other: str) -> None:
    """State and permanent neighbour of one end, which go when it is taken down."""
    index = netlink.index(interface)
    netlink.ask("link", "set", index=index, state="up")
    hardware = addresses.hardware_address(other)
    netlink.ask("neigh", "replace", ifindex=index, dst=other, lladdr=hardware, state=_NEIGHBOUR_PERMANENT)


def shown_interface(message: Any) -> dict[str, Any]:
    """What the manifest says about a decoded link message."""
    names = ("IFLA_IFNAME", "IFLA_MTU", "IFLA_ADDRESS", "IFLA_TXQLEN", "IFLA_QDISC", "IFLA_OPERSTATE")
    sizes = ("IFLA_GSO_MAX_SIZE", "IFLA_GSO_MAX_SEGS")
    return {name.removeprefix("IFLA_").lower(): message.get_attr(name) for name in (*names, *sizes)}


def shown_route(message: Any) -> dict[str, Any]:
    """What the manifest says about a decoded route message."""
    metrics = message.get_attr("RTA_METRICS")
    return {
        "dst": f"{message.get_attr('RTA_DST') or 'default'}/{message['dst_len']}",
        "gateway": message.get_attr("RTA_GATEWAY"),
        "next_hops": [hop.get_attr("RTA_GATEWAY") for hop in message.get_attr("RTA_MULTIPATH") or ()],
        "table": message.get_attr("RTA_TABLE"),
        "initcwnd": None if metrics is None else metrics.get_attr("RTAX_INITCWND"),
        "initrwnd": None if metrics is None else metrics.get_attr("RTAX_INITRWND"),
        "rto_min_ms": None if metrics is None else metrics.get_attr("RTAX_RTO_MIN"),
    }
