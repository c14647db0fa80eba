"""pyroute2's requests, sent and answered one after another: no event loop is behind them.

pyroute2's own synchronous class runs each request in an event loop: some forty system calls for one that has to send
and to receive. A lab makes thousands, and in virtual time a system call is what takes processor time.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pyroute2 import AsyncIPRoute

_MOST_BYTES = 65536
"""Of one answer: the kernel makes none longer than 32 KiB."""
_DEADLINE_S = 30
_SEQUENCE_AT = 8
"""Where a netlink header has its sequence number (netlink(7))."""


class RtNetlink(AsyncIPRoute):  # type: ignore[misc]
    """An open rtnetlink socket in the calling thread's network namespace.

    The methods are AsyncIPRoute's; `answer` waits for what one of them gives. Raises OSError.
    """

    def __init__(self) -> None:
        super().__init__()
        self._opened: socket.socket = self.setup_socket()
        # by the kernel: a timeout of Python's asks with poll, before each answer, whether there is one
        self._opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _DEADLINE_S, 0))
        self._answers = _Answers(self._opened)

    def answer(self, method: Callable[..., Awaitable[Any]], *args: object, **settings: object) -> list[Any]:
        """What the kernel answers to a request, made by a method of this socket.

        Raises NetlinkError, OSError (also where nothing comes in time).
        """
        try:
            _collected(method, args, settings).send(None)
        except StopIteration as ended:
            found: list[Any] = ended.value
            return found
        raise RuntimeError("pyroute2 waits for more than an answer")

    def close(self, code: int = 0) -> None:
        """Close the socket."""
        self._opened.close()

    async def setup_endpoint(self) -> None:
        """Nothing: answers are read where they are waited for."""

    @property
    def socket(self) -> socket.socket:
        """The one that is open."""
        return self._opened

    @property
    def msg_queue(self) -> _Answers:
        """What answers are taken from."""
        return self._answers


class _Answers:
    """Answers by the sequence number of what was asked. One to a request that was given up is left out."""

    def __init__(self, opened: socket.socket) -> None:
        self._receive = opened.recv
        self._came: dict[int, deque[bytes]] = {}

    def ensure_tag(self, sequence: int) -> None:
        self._came.setdefault(sequence, deque())

    def free_tag(self, sequence: int) -> None:
        self._came.pop(sequence, None)

    async def put(self, sequence: int, answer: bytes) -> None:
        self._came[sequence].append(answer)

    async def get(self, sequence: int) -> bytes:
        while not self._came[sequence]:
            data = self._receive(_MOST_BYTES)
            (of,) = struct.unpack_from("I", data, _SEQUENCE_AT)
            if of in self._came:
                self._came[of].append(data)
        return self._came[sequence].popleft()


async def _collected(
    method: Callable[..., Awaitable[Any]], args: Sequence[object], settings: Mapping[str, object]
) -> list[Any]:
    found = await method(*args, **settings)
    if hasattr(found, "__aiter__"):
        return [message async for message in found]
    return list(found or ())
