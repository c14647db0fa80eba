"""Netlink requests into one container, each fatal when the kernel refuses it."""

from __future__ import annotations

import errno
import fcntl
import struct
from array import array
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from testbed.errors import RunFailed
from testbed.interrupts import held_interrupts
from testbed.lab import addresses
from testbed.lab.namespaces import inside
from testbed.lab.rtnetlink import RtNetlink
from testbed.plan.framing import LARGEST_GSO, MTU

_NEIGHBOUR_PERMANENT = 0x80  # NUD_PERMANENT
_SIOCGIFINDEX, _SIOCETHTOOL = 0x8933, 0x8946
_INTERFACE_REQUEST, _ETHTOOL_REQUEST = "16si20x", "16sP16x"
"""struct ifreq: netdevice(7)."""
_ETHTOOL_GLINK = 0xA
_LONGEST_NAME = 15


class Netlink:
    """An open netlink socket in the network namespace of process `pid`; `where` names it in errors.

    No request is interrupted half-way: of what is finalised then, an interrupt could be lost.
    """

    def __init__(self, pid: int | None, where: str) -> None:
        self._where = where
        with held_interrupts(), nullcontext() if pid is None else inside(pid):
            self._open = RtNetlink()

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is asked any more."""
        with held_interrupts():
            self._open.close()

    def ask(self, method: str, *args: object, **settings: object) -> list[Any]:
        """One pyroute2 request, e.g. ask("link", "set", index=3, state="up"). Raises RunFailed showing it whole."""
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
        name = interface.encode()
        if len(name) > _LONGEST_NAME:
            raise RunFailed(f"{self._where}: no interface {interface}: a name has {_LONGEST_NAME} bytes at most")
        try:
            # of the network namespace of the socket: a link message would be a hundred times the work
            answer = fcntl.ioctl(self._open.socket, _SIOCGIFINDEX, struct.pack(_INTERFACE_REQUEST, name, 0))
        except OSError as error:
            raise RunFailed(f"{self._where}: no interface {interface}: {error}") from error
        _, index = struct.unpack(_INTERFACE_REQUEST, answer)
        return int(index)

    def carries(self, interface: str) -> bool:
        """Whether an interface of a wire has a carrier; the kernel takes notice of it meanwhile (6.8 or later; earlier
        ones soon), and until then drops what the interface is given. Raises RunFailed when there is none of that name.
        """
        asked = array("I", [_ETHTOOL_GLINK, 0])
        request = struct.pack(_ETHTOOL_REQUEST, interface.encode(), asked.buffer_info()[0])
        try:
            fcntl.ioctl(self._open.socket, _SIOCETHTOOL, request)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # no wire, which needs none
                return True
            raise RunFailed(f"{self._where}: {interface} does not say whether it carries: {error}") from error
        return bool(asked[1])


class KeptConnections:
    """Connections to the kernel about the networks of processes: to make one takes as long as two requests."""

    def __init__(self) -> None:
        self._kept: dict[int, Netlink] = {}

    def about(self, pid: int, where: str) -> AbstractContextManager[Netlink]:
        """The one about the network of a process, which stays open; `where` names it in errors."""
        if pid not in self._kept:
            self._kept[pid] = Netlink(pid, where)
        return nullcontext(self._kept[pid])

    def close(self) -> None:
        """Close all of them; further ones are made anew."""
        for each in self._kept.values():
            each.close()
        self._kept.clear()


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
