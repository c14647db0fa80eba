"""What TCP did on the connections of the calling process, by the kernel's accounts of each: no right is needed."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

_TOTAL_RETRANS = 100
"""Place of tcpi_total_retrans in struct tcp_info (linux/tcp.h), which only ever grows at its end."""


def segments_sent_again() -> int:
    """Segments that TCP has sent more than once, on all connections that the process has open."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile, or no connection
            total += _sent_again(int(entry.name))
    return total


def _sent_again(descriptor: int) -> int:
    """Of one descriptor. Raises OSError."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return 0
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return 0
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANS + 4)
    return int(struct.unpack_from("I", info, _TOTAL_RETRANS)[0])
