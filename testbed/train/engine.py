"""The engine: runs one rank's row for real over torch.distributed, and writes down when everything happened.

Receives are posted a step ahead, sends are never waited for inside a step, every message has its own tag
(docs/how-true.md, "The rendezvous of gloo", says why).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from testbed.lab.host import Priorities
from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import Action, Kind
from testbed.pipeline.memory import RankBytes
from testbed.plan.exchange import exchange_of
from testbed.train.api import trainable
from testbed.train.buffers import Buffers
from testbed.train.collectives import Place
from testbed.train.data import Corpus
from testbed.train.gloo_all_reduce import GlooGroups
from testbed.train.held import Memory
from testbed.train.job import Fingerprint, IterationRecord, Job, last_compared
from testbed.train.log import Log, Step
from testbed.train.optimizer import make_optimizer
from testbed.train.pacing import LogicalClock, now_s, sleep_until
from testbed.train.parameters import (
    Held,
    gradient_squares,
    gradients_told,
    named_gradients,
    weights_in_use_told,
    weights_told,
)
from testbed.train.peers import Instants, Peers
from testbed.train.replicas import Replicas
from testbed.train.shards import Shards
from testbed.train.stage import Stage
from testbed.train.tensor import Share
from testbed.train.witness import Accounts, RankWitness


class Engine:
    """One rank of one job. Call `prepare`, then `iterate` for every iteration in turn.

    Between two iterations, call `post_receives` for the one after the next.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        corpus: Corpus,
        spin_s: float,
        priorities: Priorities,
        accounts: Accounts,
        groups: GlooGroups,
    ) -> None:
        """`priorities` of what a rank does; `accounts` tell what the machine did meanwhile.

        `groups` have gloo's groups of replicas, where a job asks for them.
        """
        self.job, self.rank, self.corpus, self.spin_s = job, rank, corpus, spin_s
        self.computing, self.accounts = priorities.computing, accounts
        self.workload = job.workload
        mesh = job.mesh
        self.replica, self.pipeline_rank, self.tensor_rank = mesh.coordinates(rank)
        self.pipeline = mesh.pipeline(self.replica, self.tensor_rank)
        self.row = job.schedule.rows[self.pipeline_rank]
        self.n_stages = job.schedule.n_stages
        group = dist.group.WORLD
        assert group is not None  # the worker has joined
        self.group = group
        self.peers: Peers | None = None
        if mesh.tp > 1:
            self.peers = Peers(
                mesh.tensor_ranks(self.replica, self.pipeline_rank), self.tensor_rank, group, priorities.messaging
            )
        share = None if self.peers is None else Share(self.peers)
        spec = self.workload.model
        self.stages = {
            stage: Stage(
                spec,
                stage,
                self.n_stages,
                self.workload.microbatches * mesh.dp,
                self.workload.seed,
                recompute=self.workload.recompute,
                share=share,
            )
            for stage, holder in enumerate(job.schedule.stage_to_rank)
            if holder == self.pipeline_rank
        }
        self.shards: dict[int, Shards] = {}
        self.replicas: Replicas | None = None
        self.cell_bytes = 0
        """Of what replicas exchange: of each of the equal cells that it is cut into."""
        if mesh.dp > 1:
            self._share_with_replicas(mesh.counterparts(self.pipeline_rank, self.tensor_rank), groups)
        parameters = [p for stage in self.stages.values() for p in stage.layers.parameters()]
        kept = [part for shards in self.shards.values() for part in shards.stepped] or parameters
        self.optimizer = make_optimizer(self.workload.optimizer, kept)
        self.dtype = torch.float32 if spec.dtype == "float32" else torch.float64
        self.model = trainable(spec)
        self.shape = spec.boundary_shape(self.workload.microbatch_size)
        self.elements = -(-self.workload.message_bytes() // spec.element_bytes)
        self.steps = self._steps()
        self.incoming = [step.takes for step in self.steps if step.takes is not None and step.source is not None]
        self._make_buffers()
        self.pending: dict[tuple[int, Message], tuple[dist.Work, float]] = {}
        self.last_compared = last_compared(job.iterations, job.compared)
        self.early = self.workload.receives == "early"

    def _make_buffers(self) -> None:
        """Of every message of two iterations, and what counts the memory of all that this rank holds."""
        outgoing = [step.makes for step in self.steps if step.makes is not None and step.target is not None]
        # of a boundary tensor each tensor rank sends its part
        self.part = math.ceil(math.prod(self.shape) / self.job.mesh.tp)
        self.buffers = Buffers(2 * (len(self.incoming) + len(outgoing)), self.elements, self.part, self.dtype)
        self.receive_buffers = [{m: self.buffers.take() for m in self.incoming} for _ in range(2)]
        self.send_buffers = [{m: self.buffers.take() for m in outgoing} for _ in range(2)]
        messages = [buffer for some in (*self.receive_buffers, *self.send_buffers) for buffer in some.values()]
        self.memory = Memory(list(self.stages.values()), self.optimizer, messages)

    def _count_memory(self, activation_bytes: float) -> RankBytes:
        """What this rank holds, with activations at their most."""
        others = sum(one.buffer_bytes for one in (self.replicas, self.peers) if one is not None)
        return self.memory.of_rank(activation_bytes, self.buffers.taken_bytes + others)

    def _share_with_replicas(self, ranks: Sequence[int], groups: GlooGroups) -> None:
        """Have vectors for every stage; `ranks` have the same parameters, this one among them."""
        exchange = exchange_of(self.workload, [self.job.site(rank) for rank in ranks])
        for index, stage in self.stages.items():
            self.shards[index] = Shards(list(stage.layers.parameters()), exchange, self.replica)
        self.cell_bytes = self.workload.cell_bytes(self.n_stages, exchange.n_cells)
        elements = self.cell_bytes // self.workload.model.element_bytes
        for index, shards in self.shards.items():
            if shards.size > elements:
                raise ValueError(
                    f"stage {index} has {exchange.n_cells * shards.size} parameters, and its messages room for "
                    f"{exchange.n_cells * elements}: let the model's stage_parameter_count say it, or raise "
                    "data_parallel.parameters"
                )
        gloo = groups.of(tuple(ranks)) if self.workload.data_parallel.algorithm == "torch" else None
        self.replicas = Replicas(self.shards, exchange, Place(self.replica, ranks, self.group), elements, gloo)

    def _steps(self) -> list[Step]:
        unpaced = (None,) * len(self.row)
        durations = unpaced if self.job.durations_s is None else self.job.durations_s[self.pipeline_rank]
        steps = []
        for index, action in enumerate(self.row):
            takes, makes = consumed(action, self.n_stages), produced(action, self.n_stages)
            source = None if takes is None else self._holder(takes.stage)
            target = None if makes is None else self._holder(makes.consumer)
            ends = (None if rank == self.rank else rank for rank in (source, target))
            steps.append(Step(action, takes, next(ends), makes, next(ends), durations[index]))
        last = {step.action.stage: index for index, step in enumerate(steps) if step.action.kind in (Kind.W, Kind.B)}
        for index in last.values():
            steps[index] = steps[index]._replace(completes=True)
        if self.peers is not None:
            gathering = set(self.stages) if self.replicas is not None else set()
            for index, step in enumerate(steps):
                first = step.action.kind is Kind.F and step.action.stage in gathering
                gathering -= {step.action.stage} if first else set()
                steps[index] = step._replace(together=first or step.source is not None)
        return steps

    def _holder(self, stage: int) -> int:
        """The rank of the same pipeline that holds a stage."""
        return self.pipeline[self.job.schedule.stage_to_rank[stage]]

    def _tag(self, message: Message, iteration: int) -> int:
        """Unique among the messages of an iteration and its neighbours."""
        number = message.stage * self.workload.microbatches + message.microbatch
        return (number * 2 + (message.kind == "G")) * 2 + iteration % 2

    def _post(self, message: Message, iteration: int) -> None:
        buffer = self.receive_buffers[iteration % 2][message]
        # the process group itself: the functions around it take as long as a packet
        work = self.group.recv([buffer], self._holder(message.stage), self._tag(message, iteration))
        self.pending[iteration, message] = (work, now_s())

    def post_receives(self, iteration: int) -> None:
        """Post all receives of an iteration; none of one beyond the last.

        Not before every rank has ended the iteration two before: the notices of a rank that ends early would go ahead
        of others' last messages on a slow link.
        """
        if iteration >= self.job.iterations:
            return
        if self.replicas is not None:
            self.replicas.post(iteration)
        if self.early:
            for message in self.incoming:
                self._post(message, iteration)

    def prepare(self) -> None:
        """Post the receives of the first two iterations."""
        self.post_receives(0)
        self.post_receives(1)

    def iterate(self, iteration: int, start_s: float) -> IterationRecord:
        """Run the row once, beginning at `start_s` on the monotonic clock or in its turn, then step the optimizer.

        Raises RuntimeError when a peer is gone or a message does not come within the process group's timeout.
        """
        self._zero_gradients()
        if self.replicas is not None:
            self.replicas.attend(iteration)
        begin_s = start_s + (self.job.begins_s[self.job.mesh.turn(self.rank)] if self.job.begins_s else 0.0)
        late_start_s = max(0.0, now_s() - begin_s)
        self.accounts.begin()
        sleep_until(begin_s, self.spin_s)
        counting = self.job.count_memory and iteration == 0
        log = Log(iteration, self.rank, self.replica, start_s)
        clock = LogicalClock(begin_s, self.spin_s)
        local: dict[Message, torch.Tensor] = {}
        sends: list[dist.Work] = []
        if self.replicas is not None:
            self.replicas.gather()
        # between the end of a slot and the message it makes, and between a message and the slot it begins, is nothing
        # but what has to be: each microsecond there counts once for every hop of the pipeline
        for step in self.steps:
            reached = now_s()
            if step.source is None:
                value = None if step.takes is None else local.pop(step.takes)
                ready = now_s()
            else:
                value, ready = self._receive(step, iteration, log)
            if self.replicas is not None and step.action.kind is Kind.F:
                self.replicas.wait_for(step.action.stage)
                ready = now_s()
            if self.peers is not None and step.together:
                start, ready, value = self._begin_together(step, clock, (reached, ready), value)
            else:
                start = clock.begin(reached, ready)
            with self.computing:
                result = self._compute(step.action, iteration, value)
                outgoing = self._wrap(step, iteration, result, local)
            log.in_flight(sum(len(stage.in_flight) for stage in self.stages.values()))
            if counting and step.action.kind is Kind.F and step.action.part.is_last:
                log.activation_bytes = max(log.activation_bytes, self.memory.activations())
            computed = now_s()
            if step.duration_s is None:
                clock.follow(computed)
            else:
                log.overruns.append(clock.finish(step.duration_s, computed))
            if outgoing is not None:
                sent = now_s()
                sends.append(self.group.send(*outgoing))
                log.sent.append((step, sent))
            if self.replicas is not None and step.completes:
                self.replicas.reduce(step.action.stage)
            log.actions.append((reached, ready, start, computed, now_s()))
        for send in sends:
            send.wait()
        if self.replicas is not None:
            log.collectives = self.replicas.end()
        witness = self.accounts.end(clock.wake_late_s)
        if local:
            raise RuntimeError(f"never consumed: {list(local)}")
        return self._end(iteration, log, late_start_s, witness)

    def _end(self, iteration: int, log: Log, late_start_s: float, witness: RankWitness) -> IterationRecord:
        """Step the optimizer, and make the record."""
        losses = [loss for stage in self.stages.values() if (loss := stage.end_iteration()) is not None]
        gradients = self._gradients() if self.job.keep_gradients and iteration == self.job.iterations - 1 else {}
        squares = {layer: one for held in self._held() for layer, one in gradient_squares(held).items()}
        told = self._before_step(iteration)
        self.optimizer.step()
        if self.job.compared and iteration in (0, self.last_compared):
            told += [one for held in self._held() for one in weights_told(held, iteration)]
        counted = self._count_memory(log.activation_bytes) if self.job.count_memory and iteration == 0 else None
        return IterationRecord(
            iteration,
            self.rank,
            log.action_rows(self.steps),
            np.concatenate(
                (
                    log.message_rows(self.elements * self.dtype.itemsize),
                    log.collective_rows(self.cell_bytes, self._member_rank),
                )
            ),
            log.sent_s(),
            losses[0] if losses and self.tensor_rank == 0 else None,
            log.most_in_flight / len(self.stages),
            tuple(log.overruns),
            late_start_s,
            witness,
            squares,
            gradients,
            tuple(told),
            counted,
        )

    def _receive(self, step: Step, iteration: int, log: Log) -> tuple[torch.Tensor, float]:
        """The tensor, or this tensor rank's part of it, that another rank has sent, and when it was there."""
        message = step.takes
        assert message is not None
        if not self.early:
            self._post(message, iteration)
        work, posted = self.pending.pop((iteration, message))
        began = now_s()
        work.wait()
        taken = now_s()
        log.received.append((step, posted, began, taken))
        part = self.receive_buffers[iteration % 2][message][: self.part]
        return part if self.peers is not None else part.view(self.shape), taken

    def _begin_together(
        self, step: Step, clock: LogicalClock, times: tuple[float, float], value: torch.Tensor | None
    ) -> tuple[float, float, torch.Tensor | None]:
        """When a slot starts that all tensor ranks begin together, when the last of them had its input, and the input.

        `times` are when this one reached the action and was ready. Gathering an input's parts belongs to the slot.
        """
        assert self.peers is not None
        mine = Instants(clock.time_s, *times)
        if value is None or step.source is None:
            latest = self.peers.latest(mine)
        else:
            latest, whole = self.peers.gathered(mine, value)
            value = whole[: math.prod(self.shape)].view(self.shape)
        clock.time_s = latest.clock_s
        return clock.begin(latest.reached_s, latest.ready_s), latest.ready_s, value

    def _wrap(
        self, step: Step, iteration: int, value: torch.Tensor | None, local: dict[Message, torch.Tensor]
    ) -> tuple[list[torch.Tensor], int, int] | None:
        """What an action has made: laid aside for this rank, or put where it can be sent from (tensors, rank, tag)."""
        if step.makes is None:
            return None
        assert value is not None
        if step.target is None:
            local[step.makes] = value
            return None
        buffer = self.send_buffers[iteration % 2][step.makes]
        part = value.reshape(-1)[self.tensor_rank * self.part :][: self.part]
        buffer[: part.numel()].copy_(part)
        return [buffer], step.target, self._tag(step.makes, iteration)

    def _compute(self, action: Action, iteration: int, value: torch.Tensor | None) -> torch.Tensor | None:
        stage, microbatch, part = self.stages[action.stage], action.microbatch, action.part
        assert microbatch is not None
        match action.kind:
            case Kind.F:
                targets = None
                if action.stage in (0, self.n_stages - 1):
                    size = self.workload.microbatch_size
                    # of the replicas' common batch
                    sample = self.replica * self.workload.microbatches + microbatch
                    inputs, targets = self.model.batch(self.corpus, self.workload.seed, iteration, sample, size)
                    value = inputs if action.stage == 0 else value
                return stage.forward(microbatch, part, value, targets)
            case Kind.B:
                return stage.backward(microbatch, part, value)
            case Kind.I:
                return stage.input_gradient(microbatch, part, value)
            case Kind.W:
                stage.weight_gradient(microbatch, part)
                return None
            case _:
                raise ValueError(f"the engine does not run {action}")

    def _zero_gradients(self) -> None:
        if self.shards:
            for shards in self.shards.values():
                shards.gradients.zero_()  # in place: parameters' gradients are views of it
        else:
            self.optimizer.zero_grad()

    def _member_rank(self, replica: int) -> int:
        return self.job.mesh.rank(replica, self.pipeline_rank, self.tensor_rank)

    def _held(self) -> list[Held]:
        spec, place = self.workload.model, (self.replica, self.tensor_rank)
        return [
            Held(stage, spec.stage_layers(index, self.n_stages).start, self.shards.get(index), *place)
            for index, stage in self.stages.items()
        ]

    def _before_step(self, iteration: int) -> list[Fingerprint]:
        """What is compared of an iteration before the optimizer's step."""
        told: list[Fingerprint] = []
        for held in self._held():
            if iteration == 0 and self.job.compared:
                told += gradients_told(held, iteration)
            if iteration == self.last_compared:
                told += weights_in_use_told(held, iteration)
        return told

    def _gradients(self) -> dict[str, np.ndarray[Any, Any]]:
        named = (one for held in self._held() for one in named_gradients(held).items())
        return {name: gradient.numpy() for name, gradient in named}

    def close(self) -> None:
        """End what the engine has started; it is not used again."""
        if self.replicas is not None:
            self.replicas.close()
        if self.peers is not None:
            self.peers.close()
