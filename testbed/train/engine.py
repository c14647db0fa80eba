"""The engine: runs one rank's row for real over torch.distributed, and writes down when everything happened.

Receives are posted a step ahead, sends are never waited for inside a step, every message has its own tag
(docs/how-true.md, "The rendezvous of gloo", says why).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import Action, Kind
from testbed.trace.tables import ACTION, KINDS, MESSAGE, MESSAGE_CODES, UNNOTICED_WAIT_S, Table, rows
from testbed.train import replicas
from testbed.train.api import trainable
from testbed.train.buffers import Buffers
from testbed.train.data import Corpus
from testbed.train.job import IterationRecord, Job, MessageName
from testbed.train.pacing import LogicalClock, now_s, sleep_until
from testbed.train.reference import gradient_squares, make_optimizer, named_gradients
from testbed.train.replicas import Replicas, Shards
from testbed.train.stage import Stage
from testbed.train.witness import Accounts, RankWitness


class _Step(NamedTuple):
    """An action of the row, with what it takes and makes looked up beforehand."""

    action: Action
    takes: Message | None
    source: int | None
    """The rank that sends what it takes; None where it comes from this rank."""
    makes: Message | None
    target: int | None
    """The rank that takes what it makes; None where it stays on this rank."""
    duration_s: float | None
    completes: bool = False
    """Whether all gradients of its stage are computed by its end."""


class Engine:
    """One rank of one job. Call `prepare`, then `iterate` for every iteration in turn."""

    def __init__(
        self,
        job: Job,
        rank: int,
        corpus: Corpus,
        spin_s: float,
        computing: AbstractContextManager[None],
        accounts: Accounts,
    ) -> None:
        """`computing` is entered for as long as the rank computes; `accounts` tell what the machine did meanwhile."""
        self.job, self.rank, self.corpus, self.spin_s = job, rank, corpus, spin_s
        self.computing, self.accounts = computing, accounts
        self.workload = job.workload
        mesh = job.mesh
        self.replica, self.pipeline_rank, _ = mesh.coordinates(rank)
        self.pipeline = mesh.pipeline(self.replica)
        self.row = job.schedule.rows[self.pipeline_rank]
        self.n_stages = job.schedule.n_stages
        spec = self.workload.model
        self.stages = {
            stage: Stage(
                spec,
                stage,
                self.n_stages,
                self.workload.microbatches * mesh.dp,
                self.workload.seed,
                recompute=self.workload.recompute,
            )
            for stage, holder in enumerate(job.schedule.stage_to_rank)
            if holder == self.pipeline_rank
        }
        group = dist.group.WORLD
        assert group is not None  # the worker has joined
        self.group = group
        self.shards: dict[int, Shards] = {}
        self.replicas: Replicas | None = None
        if mesh.dp > 1:
            self._share_with_replicas([mesh.rank(replica, self.pipeline_rank) for replica in range(mesh.dp)])
        parameters = [p for stage in self.stages.values() for p in stage.layers.parameters()]
        kept = [shards.own for shards in self.shards.values()] or parameters
        self.optimizer = make_optimizer(self.workload.optimizer, kept)
        self.dtype = torch.float32 if spec.dtype == "float32" else torch.float64
        self.model = trainable(spec)
        self.shape = spec.boundary_shape(self.workload.microbatch_size)
        self.elements = -(-self.workload.message_bytes() // spec.element_bytes)
        self.steps = self._steps()
        self.incoming = [step.takes for step in self.steps if step.takes is not None and step.source is not None]
        outgoing = [step.makes for step in self.steps if step.makes is not None and step.target is not None]
        own = min(self.elements, self.shape[0] * self.shape[1] * self.shape[2])
        self.buffers = Buffers(2 * (len(self.incoming) + len(outgoing)), self.elements, own, self.dtype)
        self.receive_buffers = [{m: self.buffers.take() for m in self.incoming} for _ in range(2)]
        self.send_buffers = [{m: self.buffers.take() for m in outgoing} for _ in range(2)]
        self.pending: dict[tuple[int, Message], tuple[dist.Work, float]] = {}
        self.early = self.workload.receives == "early"

    def _share_with_replicas(self, ranks: Sequence[int]) -> None:
        """Keep a shard of every stage; `ranks` hold the same stages, this one among them."""
        for index, stage in self.stages.items():
            self.shards[index] = Shards(list(stage.layers.parameters()), len(ranks), self.replica)
        elements = self.job.collective_bytes // self.workload.model.element_bytes
        for index, shards in self.shards.items():
            if shards.size > elements:
                raise ValueError(
                    f"stage {index} has {len(ranks) * shards.size} parameters, and its messages room for "
                    f"{len(ranks) * elements}: let the model's stage_parameter_count say it, or raise "
                    "data_parallel.parameters"
                )
        self.replicas = Replicas(self.shards, self.replica, ranks, elements, self.group)

    def _steps(self) -> list[_Step]:
        unpaced = (None,) * len(self.row)
        durations = unpaced if self.job.durations_s is None else self.job.durations_s[self.pipeline_rank]
        steps = []
        for index, action in enumerate(self.row):
            takes, makes = consumed(action, self.n_stages), produced(action, self.n_stages)
            source = None if takes is None else self._holder(takes.stage)
            target = None if makes is None else self._holder(makes.consumer)
            ends = (None if rank == self.rank else rank for rank in (source, target))
            steps.append(_Step(action, takes, next(ends), makes, next(ends), durations[index]))
        last = {step.action.stage: index for index, step in enumerate(steps) if step.action.kind in (Kind.W, Kind.B)}
        for index in last.values():
            steps[index] = steps[index]._replace(completes=True)
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

    def _post_iteration(self, iteration: int) -> None:
        if iteration >= self.job.iterations:
            return
        if self.replicas is not None:
            self.replicas.post(iteration)
        if self.early:
            for message in self.incoming:
                self._post(message, iteration)

    def prepare(self) -> None:
        """Post the receives of the first two iterations."""
        self._post_iteration(0)
        self._post_iteration(1)

    def iterate(self, iteration: int, start_s: float) -> IterationRecord:
        """Run the row once, beginning at `start_s` on the monotonic clock or in its turn, then step the optimizer.

        Raises RuntimeError when a peer is gone or a message does not come within the process group's timeout.
        """
        self._zero_gradients()
        if self.replicas is not None:
            self.replicas.attend(iteration)
        begin_s = start_s + (self.rank - self.job.mesh.first_rank) * self.job.turn_s
        late_start_s = max(0.0, now_s() - begin_s)
        self.accounts.begin()
        sleep_until(begin_s, self.spin_s)
        log = _Log(iteration, self.rank, self.replica, start_s)
        clock = LogicalClock(begin_s, self.spin_s)
        local: dict[Message, torch.Tensor] = {}
        sends: list[dist.Work] = []
        if self.replicas is not None:
            self.replicas.gather(iteration)
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
            start = clock.begin(reached, ready)
            with self.computing:
                result = self._compute(step.action, iteration, value)
                outgoing = self._wrap(step, iteration, result, local)
            log.in_flight(sum(len(stage.in_flight) for stage in self.stages.values()))
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
                self.replicas.reduce(step.action.stage, iteration)
            log.actions.append((reached, ready, start, computed, now_s()))
        for send in sends:
            send.wait()
        if self.replicas is not None:
            log.collectives = self.replicas.end()
        witness = self.accounts.end(clock.wake_late_s)
        if local:
            raise RuntimeError(f"never consumed: {list(local)}")
        return self._end(iteration, log, late_start_s, witness)

    def _end(self, iteration: int, log: _Log, late_start_s: float, witness: RankWitness) -> IterationRecord:
        """Step the optimizer, post receives of the iteration after the next, and make the record."""
        losses = [loss for stage in self.stages.values() if (loss := stage.end_iteration()) is not None]
        gradients = self._gradients() if self.job.keep_gradients and iteration == self.job.iterations - 1 else {}
        squares = self._gradient_squares()
        self.optimizer.step()
        self._post_iteration(iteration + 2)
        return IterationRecord(
            iteration,
            self.rank,
            log.action_rows(self.steps),
            np.concatenate(
                (
                    log.message_rows(self.elements * self.dtype.itemsize),
                    log.collective_rows(self.job.collective_bytes, self._member_rank),
                )
            ),
            log.sent_s(),
            losses[0] if losses else None,
            log.most_in_flight / len(self.stages),
            tuple(log.overruns),
            late_start_s,
            witness,
            squares,
            gradients,
        )

    def _receive(self, step: _Step, iteration: int, log: _Log) -> tuple[torch.Tensor, float]:
        """The tensor that another rank has sent, and when it was there."""
        message = step.takes
        assert message is not None
        if not self.early:
            self._post(message, iteration)
        work, posted = self.pending.pop((iteration, message))
        began = now_s()
        work.wait()
        taken = now_s()
        log.received.append((step, posted, began, taken))
        size = self.shape[0] * self.shape[1] * self.shape[2]
        return self.receive_buffers[iteration % 2][message][:size].view(self.shape), taken

    def _wrap(
        self, step: _Step, iteration: int, value: torch.Tensor | None, local: dict[Message, torch.Tensor]
    ) -> tuple[list[torch.Tensor], int, int] | None:
        """What an action has made: laid aside for this rank, or put where it can be sent from (tensors, rank, tag)."""
        if step.makes is None:
            return None
        assert value is not None
        if step.target is None:
            local[step.makes] = value
            return None
        buffer = self.send_buffers[iteration % 2][step.makes]
        buffer[: value.numel()].copy_(value.reshape(-1))
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
        return self.job.mesh.rank(replica, self.pipeline_rank)

    def _first_layer(self, stage: int) -> int:
        return self.workload.model.stage_layers(stage, self.n_stages).start

    def _gradient_squares(self) -> dict[int, float]:
        result: dict[int, float] = {}
        for index, stage in self.stages.items():
            result |= gradient_squares(stage, self._first_layer(index), self.shards.get(index))
        return result

    def _gradients(self) -> dict[str, np.ndarray[Any, Any]]:
        result: dict[str, np.ndarray[Any, Any]] = {}
        for index, stage in self.stages.items():
            named = named_gradients(stage, self._first_layer(index), self.shards.get(index))
            result |= {name: gradient.numpy() for name, gradient in named.items()}
        return result

    def close(self) -> None:
        """End what the engine has started; it is not used again."""
        if self.replicas is not None:
            self.replicas.close()


class _Log:
    """Collects what one rank did in one iteration, and makes rows of it afterwards. Times on the monotonic clock."""

    def __init__(self, iteration: int, rank: int, replica: int, start_s: float) -> None:
        self.iteration, self.rank, self.replica, self.start_s = iteration, rank, replica, start_s
        self.collectives = replicas.Log([], [])
        self.actions: list[tuple[float, float, float, float, float]] = []
        """Per step: reached, ready, start, computed, end."""
        self.received: list[tuple[_Step, float, float, float]] = []
        """The step that took the message; when it was posted, first waited for, and taken."""
        self.sent: list[tuple[_Step, float]] = []
        self.overruns: list[float] = []
        self.most_in_flight = 0

    def in_flight(self, count: int) -> None:
        self.most_in_flight = max(self.most_in_flight, count)

    def action_rows(self, steps: Sequence[_Step]) -> Table:
        table = rows(ACTION, len(steps))
        table["iteration"], table["rank"], table["replica"] = self.iteration, self.rank, self.replica
        actions = [step.action for step in steps]
        table["stage"] = [action.stage for action in actions]
        table["kind"] = [KINDS.index(action.kind) for action in actions]
        table["microbatch"] = [action.microbatch for action in actions]
        for place, name in enumerate(("part_begin", "part_end", "part_of")):
            table[name] = [action.part[place] for action in actions]
        times = np.array(self.actions) - self.start_s
        for place, name in enumerate(("reached_s", "ready_s", "start_s", "computed_s", "end_s")):
            table[name] = times[:, place]
        return table

    def message_rows(self, payload_bytes: int) -> Table:
        table = rows(MESSAGE, len(self.received))
        if not len(table):
            return table
        messages = [step.takes for step, *_ in self.received if step.takes is not None]
        table["iteration"], table["target_rank"], table["payload_bytes"] = self.iteration, self.rank, payload_bytes
        table["kind"] = [MESSAGE_CODES[message.kind] for message in messages]
        table["stage"] = [message.stage for message in messages]
        table["microbatch"] = [message.microbatch for message in messages]
        table["source_rank"] = [step.source for step, *_ in self.received]
        posted, began, taken = np.array([times for _, *times in self.received]).T
        table["posted_s"], table["taken_s"] = posted - self.start_s, taken - self.start_s
        table["awaited"] = taken - began > UNNOTICED_WAIT_S
        # who was not waiting does not know when it came
        table["arrived_s"] = np.where(table["awaited"], table["taken_s"], np.nan)
        return table

    def collective_rows(self, payload_bytes: int, rank_of: Callable[[int], int]) -> Table:
        """Messages between replicas that have come in; `rank_of` tells the rank that holds this one's stages."""
        table = rows(MESSAGE, len(self.collectives.received))
        for row, one in zip(table, self.collectives.received, strict=True):
            row["iteration"], row["target_rank"], row["payload_bytes"] = self.iteration, self.rank, payload_bytes
            row["kind"], row["stage"], row["microbatch"] = one.kind, one.stage, one.step.number
            row["source_rank"] = rank_of(one.step.source)
            row["posted_s"], row["taken_s"] = one.posted_s - self.start_s, one.taken_s - self.start_s
            row["awaited"] = one.taken_s - one.began_s > UNNOTICED_WAIT_S
            row["arrived_s"] = row["taken_s"] if row["awaited"] else np.nan
        return table

    def sent_s(self) -> dict[MessageName, float]:
        """When every message left, since the start."""
        sent = {
            MessageName(MESSAGE_CODES[step.makes.kind], step.makes.stage, step.makes.microbatch, self.rank): when
            for step, when in self.sent
            if step.makes is not None
        }
        for kind, stage, step, when in self.collectives.sent:
            sent[MessageName(kind, stage, step.number, self.rank)] = when
        return {name: when - self.start_s for name, when in sent.items()}
