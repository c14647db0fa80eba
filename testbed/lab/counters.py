"""What the kernel counts of one container, from /proc/<pid>/net: what a lossless run must leave at zero."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from testbed.errors import RunFailed

LOSS_SIGNS = (
    "TcpRetransSegs",
    "TcpExtTCPTimeouts",
    "TcpExtTCPRcvQDrop",
    "TcpExtPruneCalled",
    "TcpExtRcvPruned",
    "TcpExtTCPOFODrop",
    "TcpExtTCPLostRetransmit",
    "TcpExtTCPMemoryPressures",
    "TcpExtTCPBacklogDrop",
    "TcpExtListenDrops",
)
"""Each means that TCP lost, repeated or had to squeeze something. (Throughput must be checked as well.)"""

TRAFFIC = ("TcpInSegs", "TcpOutSegs", "TcpActiveOpens", "TcpPassiveOpens")


def parse(text: str) -> dict[str, int]:
    """The counters in the text of /proc/net/snmp or netstat: "Tcp: names" and "Tcp: values" lines -> {"TcpName": n}."""
    counters: dict[str, int] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        prefix = names.partition(":")[0]
        for name, value in zip(names.split()[1:], values.split()[1:], strict=True):
            counters[prefix + name] = int(value)
    return counters


def tcp_counters(pid: int) -> dict[str, int]:
    """LOSS_SIGNS and TRAFFIC of the container whose first process is `pid`; a counter the kernel lacks is absent."""
    counters: dict[str, int] = {}
    for name in ("snmp", "netstat"):
        counters |= parse(Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii"))
    return {name: counters[name] for name in (*LOSS_SIGNS, *TRAFFIC) if name in counters}


class InterfaceDrops(NamedTuple):
    """Packets that an interface dropped."""

    received: int
    sent: int


_DROPS_AT = InterfaceDrops(3, 11)
"""Where a line of /proc/net/dev has them, behind its name: eight numbers of what was received, then eight of what was
sent."""


def interface_drops(pid: int, interface: str) -> InterfaceDrops:
    """Of an interface of the container whose first process is `pid`: a netlink message with the same has all else about
    it, too, which takes a hundred times as long to read. Raises RunFailed when there is none of that name.
    """
    try:
        _, _, *lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise RunFailed(f"no interface {interface}: its process {pid} is gone ({error.strerror})") from error
    for name, _, numbers in (line.rpartition(":") for line in lines):
        if name.strip() == interface:
            counted = numbers.split()
            return InterfaceDrops(*(int(counted[place]) for place in _DROPS_AT))
    raise RunFailed(f"no interface {interface} in the container of process {pid}")
