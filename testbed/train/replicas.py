"""What the replicas of a stage exchange: parameters gathered (ZeRO-1), gradients reduced, as a rank sees all of it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

from testbed.pipeline.collectives import Exchange
from testbed.trace.tables import ALL_GATHER, MESSAGE_KINDS
from testbed.train.collective_runner import CollectiveLog, MemberCollective, Membership, Messages
from testbed.train.gloo_all_reduce import AllReduce
from testbed.train.shards import Shards
from testbed.train.streams import Pending


class Replicas:
    """All collectives of one rank: for each of its stages a gather, if there is one, and a reduction."""

    def __init__(
        self,
        stages: Mapping[int, Shards],
        exchange: Exchange,
        place: Membership,
        cell_elements: int,
        gloo: dist.ProcessGroup | None,
    ) -> None:
        """`gloo`: the group of the members alone, where gloo's own all-reduce is asked for."""
        self.gathers: dict[int, MemberCollective] = {}
        self.reductions: dict[int, MemberCollective] = {}
        kind, threads, tag = MESSAGE_KINDS.index(exchange.reduces_to), 0, 0
        for stage, shards in stages.items():
            gather = (ALL_GATHER, stage, exchange.gather, shards.values)
            reduction = (kind, stage, exchange.reduction, shards.gradients)
            if exchange.gather:
                self.gathers[stage] = Messages(*gather, shards, place, cell_elements, tag)
            tag += len(exchange.gather)
            if gloo is None:
                self.reductions[stage] = Messages(*reduction, shards, place, cell_elements, tag)
            else:
                elements = exchange.n_cells * cell_elements
                self.reductions[stage] = AllReduce(*reduction, place.member, elements, gloo)
            tag += len(exchange.reduction)
            threads += sum(step.target == place.member for step in (*exchange.gather, *exchange.reduction))
        self.threads = ThreadPoolExecutor(max(1, threads))
        self.log = CollectiveLog([], [])
        self.posted: list[int] = []
        """For which iterations, of those that have not begun, receives are posted."""

    @property
    def _all(self) -> list[MemberCollective]:
        return [*self.gathers.values(), *self.reductions.values()]

    @property
    def buffer_bytes(self) -> int:
        """Of all that is sent from and received into."""
        return sum(collective.buffer_bytes for collective in self._all)

    def post(self, iteration: int) -> None:
        """Post the receives of an iteration."""
        self.posted.append(iteration)
        for collective in self._all:
            collective.post(iteration)

    def use_up(self) -> list[Pending]:
        """End the receives that are posted, of all members at once; returns what is to be waited for."""
        return [pending for collective in self._all for pending in collective.use_up(self.posted)]

    def attend(self, iteration: int) -> None:
        """Have threads wait for an iteration's messages, before it begins."""
        self.posted.remove(iteration)
        self.log = CollectiveLog([], [])
        for collective in self._all:
            collective.attend(iteration, self.log, self.threads.submit)

    def gather(self) -> None:
        """The iteration begins: send what this member keeps of every stage, then pass on what came before its turn."""
        for collective in self.gathers.values():
            collective.begin()
        for collective in sorted(self.gathers.values(), key=lambda gather: gather.first_came_s()):
            collective.admit()

    def wait_for(self, stage: int) -> None:
        """Return when all parameters of a stage are there; at once if they have been waited for."""
        if stage in self.gathers:
            self.gathers[stage].end()

    def reduce(self, stage: int) -> None:
        """The gradients of a stage are computed: send what of them others wait for."""
        self.reductions[stage].begin()
        self.reductions[stage].admit()

    def end(self) -> CollectiveLog:
        """Wait until all that is under way has come in and has left; returns what happened in this iteration."""
        for collective in self._all:
            collective.end()
        for collective in self._all:
            collective.leave()
        return self.log

    def close(self) -> None:
        """End the threads, which have nothing left to do."""
        self.threads.shutdown(wait=False)  # to wait is to join them by their addresses: a copied guest has others
