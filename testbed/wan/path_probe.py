"""The path between two ranks measured, small and bounded: words there and back, then as much as TCP gets through."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from testbed.errors import RunFailed
from testbed.wan.wan_messages import PathMeasured, PathOpened, PathServed

WORDS = 20
SENDING_S = 2.0
"""For so long at most data is sent, ..."""
MOST_BYTES = 128 * 2**20
"""... and no more than this: the second half of it counts, when TCP has found out what it may send."""
PATH_DEADLINE_S = 30.0
"""Of any wait of a measurement, ..."""
PATH_LIMIT_S = 180.0
"""... and of it all: what a slow path still carries when no more is sent comes last."""
_WORD = b"\x01"
_PIECE = bytes(256 * 2**10)


def serve_path(address: str, opened: Callable[[PathOpened], None]) -> PathServed:
    """Answer words, and take what comes, from the one that connects. Raises OSError (TimeoutError) or RunFailed."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        listener.settimeout(PATH_DEADLINE_S)
        opened(PathOpened(address, listener.getsockname()[1]))
        line, _ = listener.accept()
    with line:
        _ready(line)
        for _ in range(WORDS):
            if line.recv(1) != _WORD:
                raise RunFailed("whoever measured the path hung up")
            line.sendall(_WORD)
        arrived: list[tuple[float, int]] = []
        total = 0
        while piece := line.recv(len(_PIECE)):
            total += len(piece)
            arrived.append((time.monotonic(), total))
    return _second_half(arrived)


def _second_half(arrived: list[tuple[float, int]]) -> PathServed:
    if len(arrived) < 2:
        raise RunFailed("whoever measured the path sent next to nothing")
    total = arrived[-1][1]
    begin_s, before = next(entry for entry in arrived if entry[1] >= total / 2)
    if (begin_s, before) == arrived[-1]:
        begin_s, before = arrived[0]
    return PathServed(total, total - before, max(arrived[-1][0] - begin_s, 1e-6))


def measure_path(address: str, port: int) -> PathMeasured:
    """Words there and back, then data. Raises OSError (TimeoutError) or RunFailed."""
    with socket.create_connection((address, port), timeout=PATH_DEADLINE_S) as line:
        _ready(line)
        round_trips = []
        for _ in range(WORDS):
            begin = time.monotonic()
            line.sendall(_WORD)
            if line.recv(1) != _WORD:
                raise RunFailed("whoever served the path hung up")
            round_trips.append(time.monotonic() - begin)
        sent, until = 0, time.monotonic() + SENDING_S
        while sent < MOST_BYTES and time.monotonic() < until:
            sent += line.send(_PIECE)
    return PathMeasured(tuple(round_trips), sent)


def _ready(line: socket.socket) -> None:
    line.settimeout(PATH_DEADLINE_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
