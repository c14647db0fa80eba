"""Sends datagrams at equal distances from inside a container; started as a program of its own, on the standard library.

Arguments: source address, target address, port, payload bytes, seconds from one to the next. It is told by lines:
`begin SECONDS`, an instant of the monotonic clock half a distance before the first one; `pause`, which it answers by
how many it has sent so far.
"""

from __future__ import annotations

import ctypes
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
    source, target, port, payload, every = sys.argv[1:]
    every_s, data = float(every), bytes(int(payload))
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        try:
            sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
        except PermissionError:  # in a user namespace: as much as the machine lets everybody have
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        sender.bind((source, 0))
        sender.connect((target, int(port)))
        print("ready", flush=True)
        total, number, start_s = 0, 0, None
        while True:
            wait_s = None if start_s is None else max(0.0, start_s + (number + 0.5) * every_s - time.monotonic())
            if select.select([sys.stdin], [], [], wait_s)[0]:
                words = sys.stdin.readline().split()
                if not words:
                    return
                start_s, number = (float(words[1]), 0) if words[0] == "begin" else (None, 0)
                if start_s is None:
                    print(total, flush=True)
                continue
            sender.send(data)
            total, number = total + 1, number + 1


if __name__ == "__main__":
    main()
