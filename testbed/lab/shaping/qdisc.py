"""What the kernel's qdiscs have in common: requests by netlink, the one at an interface's root, and what it counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST

from testbed.errors import RunFailed
from testbed.lab.counters import interface_drops
from testbed.lab.namespaces import scratch_network
from testbed.lab.netlink import Netlink
from testbed.lab.shaping import LinkCounters, ShapedDirection

UINT32 = 2**32 - 1
ROOT = UINT32
"""TC_H_ROOT: the parent of what shapes all that leaves an interface."""
HANDLE = 0x10000
CHANGE = NLM_F_REQUEST | NLM_F_ACK
ADD = CHANGE | NLM_F_CREATE | NLM_F_EXCL


def rate_fields(bytes_per_s: int) -> tuple[int, int | None]:
    """What a qdisc's rate field of 32 bits holds, and what the wider one beside it, which 34 Gbit/s and less need not.

    The kernel takes the larger of the two.
    """
    return min(bytes_per_s, UINT32), bytes_per_s if bytes_per_s > UINT32 else None


def refusal(attempt: Callable[[Netlink], object]) -> str | None:
    """Why this kernel refuses something, tried in a scratch network; None when it does not."""
    try:
        with scratch_network(), Netlink(None, "scratch namespace") as netlink:
            attempt(netlink)
    except (RunFailed, OSError) as error:
        return str(error)
    return None


def at_root(netlink: Netlink, interface: str, kind: str) -> Any:
    """The decoded message of an interface's root qdisc. Raises RunFailed when it is not of that kind."""
    found = [m for m in netlink.ask("get_qdiscs", index=netlink.index(interface)) if m["parent"] == ROOT]
    if len(found) != 1 or found[0].get_attr("TCA_KIND") != kind:
        raise RunFailed(f"{interface}: no {kind} at its root, but {[m.get_attr('TCA_KIND') for m in found]}")
    return found[0]


def drops(message: Any) -> int:
    """What a qdisc has dropped; a super-packet counts as one."""
    return int(message.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")["drops"])


def counted(direction: ShapedDirection, root: Any, *, dropped: int, lost: int | None) -> LinkCounters:
    """A direction's reading: what its root qdisc sent, what was `dropped` before the interface, and `lost` as asked.

    The kernel keeps no peaks, no payload bytes and no lateness. Raises RunFailed where the interface is gone.
    """
    sent = root.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")
    end = direction.source
    return LinkCounters(
        direction=direction.index,
        label=direction.asked.label,
        packets=sent["packets"],
        wire_bytes=sent["bytes"],
        payload_bytes=None,
        dropped=dropped + interface_drops(end.pid, end.interface).sent,
        lost=lost,
        queue_high_water_bytes=None,
        lateness=None,
    )
