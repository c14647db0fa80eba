"""TCP's own counters of one container, from /proc/<pid>/net: what a lossless run must leave at zero."""

from __future__ import annotations

from pathlib import Path

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
