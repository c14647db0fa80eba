"""What the tensor ranks of a stage tell each other: everybody sends to everybody, inside their datacenter.

Every sum, every gathered tensor and every common instant is one exchange: each sends what it has to all others and
takes what they have. With two or four ranks nothing takes fewer trips. The receives of the next exchange of that size
are posted as soon as the last one is over. Where a sum follows a sum at once, the word of that is still on its way:
gloo announces the summand then, and sends it when the word is there (model/tensor_exchange.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
import torch.distributed as dist


class Instants(NamedTuple):
    """Where a rank is when it is about to begin an action, on the clock that all containers share; of all: the latest.

    Slots of tensor ranks begin together because each of them decides by the same instants.
    """

    clock_s: float
    """Its logical clock."""
    reached_s: float
    ready_s: float


class _Posted(NamedTuple):
    """The receives of the next exchange of one size."""

    tag: int
    buffers: Sequence[torch.Tensor]
    works: list[dist.Work]


class Peers:
    """One tensor rank of a stage among the others."""

    def __init__(
        self,
        ranks: Sequence[int],
        tensor_rank: int,
        group: dist.ProcessGroup,
        messaging: AbstractContextManager[None],
    ) -> None:
        """`ranks` are all of them, in their order; nobody else of the group sends them anything.

        `messaging` is entered for as long as messages are sent and taken: it may be in the middle of computing.
        """
        self._messaging = messaging
        self.degree, self.tensor_rank, self.group = len(ranks), tensor_rank, group
        self._others = [rank for place, rank in enumerate(ranks) if place != tensor_rank]
        self._posted: dict[int, _Posted] = {}
        """By bytes. They first occur in the same order on all ranks, which run the same actions."""

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, added in their order: the same to the last bit on each of them."""
        mine = value.contiguous()
        parts = self._exchange(mine)
        result = parts[0] + parts[1]
        for part in parts[2:]:
            result += part
        return result

    def latest(self, mine: Instants) -> Instants:
        """The latest instants of all ranks."""
        times = torch.tensor(mine, dtype=torch.float64)
        return Instants(*torch.stack(self._exchange(times)).amax(0).tolist())

    def gathered(self, mine: Instants, part: torch.Tensor) -> tuple[Instants, torch.Tensor]:
        """The latest instants, and the parts of all ranks one behind the other; `part` is flat, of the same size."""
        times = torch.tensor(mine, dtype=torch.float64).view(torch.uint8)
        sent = torch.cat((times, part.view(torch.uint8)))
        parts = self._exchange(sent)
        instants = torch.stack([got[: len(times)] for got in parts]).view(torch.float64)
        values = torch.cat([got[len(times) :] for got in parts])
        return Instants(*instants.amax(0).tolist()), values.view(part.dtype)

    @property
    def buffer_bytes(self) -> int:
        """Of what is received in, since every size has been exchanged once."""
        return sum(buffer.nbytes for posted in self._posted.values() for buffer in posted.buffers)

    def _exchange(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """What every rank has, by rank.

        Raises RuntimeError when a peer is gone, or nothing comes within the process group's timeout.
        """
        size = mine.numel() * mine.element_size()
        if size not in self._posted:
            buffers = [torch.empty(size, dtype=torch.uint8) for _ in self._others]
            with self._messaging:
                self._posted[size] = self._post(len(self._posted), buffers)
        posted = self._posted[size]
        with self._messaging:
            self._wait(posted, mine)
            parts = [buffer.clone().view(mine.dtype).view(mine.shape) for buffer in posted.buffers]
            self._posted[size] = self._post(posted.tag, posted.buffers)
        parts.insert(self.tensor_rank, mine)
        return parts

    def _post(self, tag: int, buffers: Sequence[torch.Tensor]) -> _Posted:
        pairs = zip(self._others, buffers, strict=True)
        return _Posted(tag, buffers, [self.group.recv([buffer], rank, tag) for rank, buffer in pairs])

    def _wait(self, posted: _Posted, mine: torch.Tensor) -> None:
        sends = [self.group.send([mine], rank, posted.tag) for rank in self._others]
        for work in (*posted.works, *sends):
            work.wait()

    def close(self) -> None:
        """Use up the receives that are posted ahead: all ranks send each other one last message of every size."""
        for posted in self._posted.values():
            self._wait(posted, torch.zeros_like(posted.buffers[0]))
        self._posted.clear()
