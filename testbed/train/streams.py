"""Messages between two ranks, each cut into nearly equal parts that are sent at once over connections of their own.

Gloo connects two ranks once for every device of a process group, and torch has the message's tag say over which of
these connections it goes: tag modulo the number of devices. So a group is given its one interface several times over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from testbed.plan.framing import equal_parts


class Pending(Protocol):
    """A message that is being sent, or to be received."""

    def wait(self) -> object:
        """Return when all of it has left, or come. Raises RuntimeError when its other end is gone."""


def await_all(messages: Sequence[Pending]) -> None:
    """Return when all of these have left, or come. Raises RuntimeError when a rank is gone."""
    for message in messages:
        message.wait()


class _Parts:
    """The same of a message in several parts."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        """As in Pending."""
        for work in self._works:
            work.wait()


class Streams:
    """What the ranks of a process group send each other, over so many connections between any two of them.

    Nothing is copied: a part is sent from, and received into, its place in the message's buffer.
    """

    def __init__(self, group: dist.ProcessGroup, count: int) -> None:
        """`group` has joined with an `interface_list` of as many."""
        self._group, self.count = group, count

    def send(self, message: torch.Tensor, rank: int, tag: int) -> Pending:
        """Send a flat tensor to a rank, with a tag that no other message between the two has meanwhile."""
        if self.count == 1:
            return self._group.send([message], rank, tag)
        return _Parts([self._group.send([part], rank, self._tag(tag, n)) for n, part in enumerate(self._cut(message))])

    def receive(self, message: torch.Tensor, rank: int, tag: int) -> Pending:
        """Post the receive of what a rank sends with this tag, into a flat tensor of the same size."""
        if self.count == 1:
            return self._group.recv([message], rank, tag)
        return _Parts([self._group.recv([part], rank, self._tag(tag, n)) for n, part in enumerate(self._cut(message))])

    def send_shortest(self, message: torch.Tensor, rank: int, tag: int) -> Pending:
        """Send as little of a flat tensor as ends the receive that a rank has posted for it."""
        return self.send(message[: self.count], rank, tag)

    def _cut(self, message: torch.Tensor) -> Sequence[torch.Tensor]:
        return torch.split(message, equal_parts(message.numel(), self.count))

    def _tag(self, tag: int, part: int) -> int:
        return self.count * tag + part


def interface_list(interface: str, streams: int) -> str:
    """The GLOO_SOCKET_IFNAME with which a rank joins a group that has so many connections between two ranks."""
    return ",".join([interface] * streams)
