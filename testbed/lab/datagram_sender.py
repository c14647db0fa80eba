"""Sends datagrams at equal distances from inside a container; started as a program of its own, on the standard library.

Arguments: source address, target address, port, payload bytes. It is told by lines: `begin SECONDS`, an instant of the
monotonic clock, and behind it three numbers for each span of time, in seconds from that instant: when the first
datagram is sent, the distance from one to the next, before when they are; `pause`, behind which it sends one datagram
more, to the next port, and says how many it has sent so far.
"""

from __future__ import annotations

import ctypes
import math
import select
import socket
import sys
import time

_SO_SNDBUFFORCE = 32
_BUFFER_BYTES = 2**28
"""What a link keeps waiting counts as the sender's until it is sent: it must never have to wait for that."""

_PR_SET_TIMERSLACK = 29


def main() -> None:
    """Until there are no more lines."""
    source, target, port, payload = sys.argv[1:]
    data = bytes(int(payload))
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    with _socket(source, (target, int(port))) as sender, _socket(source, (target, int(port) + 1)) as last:
        print("ready", flush=True)
        total, due_s = 0, _Due([])
        while True:
            next_s = due_s.next_s()
            if select.select([sys.stdin], [], [], None if next_s is None else max(0.0, next_s - time.monotonic()))[0]:
                words = sys.stdin.readline().split()
                if not words:
                    return
                if words[0] == "begin":
                    due_s = _Due([float(word) for word in words[1:]])
                    continue
                last.send(data)
                total, due_s = total + 1, _Due([])
                print(total, flush=True)
                continue
            sender.send(data)
            total += 1
            due_s.sent()


class _Due:
    """When datagrams are to be sent."""

    def __init__(self, numbers: list[float]) -> None:
        """The instant that all is counted from, then three numbers for each span."""
        self._start_s, self._left, self._number = sum(numbers[:1]), numbers[1:], 0

    def next_s(self) -> float | None:
        """The next instant of the monotonic clock; None where there is no more."""
        while self._left:
            first_s, every_s, before_s = self._left[:3]
            if math.isinf(before_s) or self._number < math.ceil((before_s - first_s) / every_s):
                return self._start_s + first_s + self._number * every_s
            self._left, self._number = self._left[3:], 0
        return None

    def sent(self) -> None:
        """One of them is."""
        self._number += 1


def _socket(source: str, target: tuple[str, int]) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
    except PermissionError:  # in a user namespace: as much as the machine lets everybody have
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    made.bind((source, 0))
    made.connect(target)
    return made


if __name__ == "__main__":
    main()
