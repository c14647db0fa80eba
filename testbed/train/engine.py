"""The engine: runs one rank's row for real over torch.distributed, and writes down when everything happened.

Receives are posted a step ahead, sends are never waited for inside a step, every message has its own tag
(docs/how-true.md, "The rendezvous of gloo", says why).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import Action, Kind
from testbed.trace.tables import ACTION, KINDS, MESSAGE, MESSAGE_CODES, UNNOTICED_WAIT_S, rows
from testbed.train.api import trainable
from testbed.train.buffers import Buffers
from testbed.train.data import Corpus
from testbed.train.job import IterationRecord, Job
from testbed.train.pacing import LogicalClock, now_s, sleep_until
from testbed.train.reference import gradient_norms, make_optimizer, named_gradients
from testbed.train.stage import Stage
from testbed.train.witness import Accounts, RankWitness


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
        self.row = job.schedule.rows[rank]
        self.n_stages = job.schedule.n_stages
        spec = self.workload.model
        self.stages = {
            stage: Stage(
                spec,
                stage,
                self.n_stages,
                self.workload.microbatches,
                self.workload.seed,
                recompute=self.workload.recompute,
            )
            for stage, holder in enumerate(job.schedule.stage_to_rank)
            if holder == rank
        }
        parameters = [p for stage in self.stages.values() for p in stage.layers.parameters()]
        self.optimizer = make_optimizer(self.workload.optimizer, parameters)
        self.dtype = torch.float32 if spec.dtype == "float32" else torch.float64
        self.model = trainable(spec)
        self.shape = spec.boundary_shape(self.workload.microbatch_size)
        self.elements = -(-self.workload.message_bytes() // spec.element_bytes)
        self.incoming = [m for a in self.row if (m := self._remote_input(a)) is not None]
        outgoing = [m for a in self.row if (m := produced(a, self.n_stages)) and self._holder(m.consumer) != rank]
        own = min(self.elements, self.shape[0] * self.shape[1] * self.shape[2])
        self.buffers = Buffers(2 * (len(self.incoming) + len(outgoing)), self.elements, own, self.dtype)
        self.receive_buffers = [{m: self.buffers.take() for m in self.incoming} for _ in range(2)]
        self.send_buffers = [{m: self.buffers.take() for m in outgoing} for _ in range(2)]
        self.pending: dict[tuple[int, Message], tuple[dist.Work, float]] = {}
        self.early = self.workload.receives == "early"

    def _holder(self, stage: int) -> int:
        return self.job.schedule.stage_to_rank[stage]

    def _remote_input(self, action: Action) -> Message | None:
        message = consumed(action, self.n_stages)
        return message if message is not None and self._holder(message.stage) != self.rank else None

    def _tag(self, message: Message, iteration: int) -> int:
        """Unique among the messages of an iteration and its neighbours."""
        number = message.stage * self.workload.microbatches + message.microbatch
        return (number * 2 + (message.kind == "G")) * 2 + iteration % 2

    def _post(self, message: Message, iteration: int) -> None:
        buffer = self.receive_buffers[iteration % 2][message]
        work = dist.irecv(buffer, src=self._holder(message.stage), tag=self._tag(message, iteration))
        assert work is not None
        self.pending[iteration, message] = (work, now_s())

    def _post_iteration(self, iteration: int) -> None:
        if self.early and iteration < self.job.iterations:
            for message in self.incoming:
                self._post(message, iteration)

    def prepare(self) -> None:
        """Post the receives of the first two iterations."""
        self._post_iteration(0)
        self._post_iteration(1)

    def iterate(self, iteration: int, start_s: float) -> IterationRecord:
        """Run the row once, beginning at `start_s` on the monotonic clock, then step the optimizer.

        Raises RuntimeError when a peer is gone or a message does not come within the process group's timeout.
        """
        self.optimizer.zero_grad()
        late_start_s = max(0.0, now_s() - start_s)
        self.accounts.begin()
        sleep_until(start_s, self.spin_s)
        log = _Log(iteration, self.rank, start_s, len(self.row), len(self.incoming))
        clock = LogicalClock(start_s, self.spin_s)
        local: dict[Message, torch.Tensor] = {}
        sends: list[dist.Work] = []
        for index, action in enumerate(self.row):
            reached = now_s()
            value = self._take(action, iteration, local, log)
            ready = now_s()
            start = clock.begin(reached, ready)
            with self.computing:
                result = self._compute(action, iteration, value)
            log.in_flight(sum(len(stage.in_flight) for stage in self.stages.values()))
            computed = now_s()
            if self.job.durations_s is None:
                clock.follow(computed)
            else:
                log.overruns.append(clock.finish(self.job.durations_s[self.rank][index], computed))
            message = produced(action, self.n_stages)
            if message is not None:
                assert result is not None
                if self._holder(message.consumer) == self.rank:
                    local[message] = result
                else:
                    sends.append(self._send(message, iteration, result, log))
            log.action(index, action, (reached, ready, start, computed, now_s()))
        for send in sends:
            send.wait()
        witness = self.accounts.end(clock.wake_late_s)
        if local:
            raise RuntimeError(f"never consumed: {list(local)}")
        losses = [loss for stage in self.stages.values() if (loss := stage.end_iteration()) is not None]
        gradients = self._gradients() if self.job.keep_gradients and iteration == self.job.iterations - 1 else {}
        norms = self._gradient_norms()
        self.optimizer.step()
        self._post_iteration(iteration + 2)
        chunks = len(self.stages)
        return log.record(losses[0] if losses else None, late_start_s, chunks, (witness, norms, gradients))

    def _take(
        self, action: Action, iteration: int, local: dict[Message, torch.Tensor], log: _Log
    ) -> torch.Tensor | None:
        """The tensor an action needs: handed over on this rank, or received."""
        message = consumed(action, self.n_stages)
        if message is None:
            return None
        if message in local:
            return local.pop(message)
        if not self.early:
            self._post(message, iteration)
        work, posted = self.pending.pop((iteration, message))
        began = now_s()
        work.wait()
        buffer = self.receive_buffers[iteration % 2][message]
        log.received(message, self._holder(message.stage), buffer, posted, began, now_s())
        size = self.shape[0] * self.shape[1] * self.shape[2]
        return buffer[:size].view(self.shape)

    def _send(self, message: Message, iteration: int, value: torch.Tensor, log: _Log) -> dist.Work:
        buffer = self.send_buffers[iteration % 2][message]
        buffer[: value.numel()].copy_(value.reshape(-1))
        log.sent[message] = now_s() - log.start_s
        work = dist.isend(buffer, dst=self._holder(message.consumer), tag=self._tag(message, iteration))
        assert work is not None
        return work

    def _compute(self, action: Action, iteration: int, value: torch.Tensor | None) -> torch.Tensor | None:
        stage, microbatch, part = self.stages[action.stage], action.microbatch, action.part
        assert microbatch is not None
        match action.kind:
            case Kind.F:
                targets = None
                if action.stage in (0, self.n_stages - 1):
                    size = self.workload.microbatch_size
                    inputs, targets = self.model.batch(self.corpus, self.workload.seed, iteration, microbatch, size)
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

    def _gradient_norms(self) -> dict[int, float]:
        result: dict[int, float] = {}
        for index, stage in self.stages.items():
            result |= gradient_norms(stage, self.workload.model.stage_layers(index, self.n_stages).start)
        return result

    def _gradients(self) -> dict[str, np.ndarray[Any, Any]]:
        result: dict[str, np.ndarray[Any, Any]] = {}
        for index, stage in self.stages.items():
            first = self.workload.model.stage_layers(index, self.n_stages).start
            result |= {name: gradient.numpy() for name, gradient in named_gradients(stage, first).items()}
        return result


class _Log:
    """Collects one rank's rows of one iteration."""

    def __init__(self, iteration: int, rank: int, start_s: float, n_actions: int, n_received: int) -> None:
        self.iteration, self.rank, self.start_s = iteration, rank, start_s
        self.actions = rows(ACTION, n_actions)
        self.messages = rows(MESSAGE, n_received)
        self.n_messages = 0
        self.sent: dict[Message, float] = {}
        self.overruns: list[float] = []
        self.most_in_flight = 0

    def in_flight(self, count: int) -> None:
        self.most_in_flight = max(self.most_in_flight, count)

    def action(self, index: int, action: Action, times: tuple[float, float, float, float, float]) -> None:
        """`times` on the monotonic clock, in the order of ACTION."""
        row = self.actions[index]
        row["iteration"], row["rank"], row["stage"] = self.iteration, self.rank, action.stage
        row["kind"], row["microbatch"] = KINDS.index(action.kind), action.microbatch
        row["part_begin"], row["part_end"], row["part_of"] = action.part
        for name, when in zip(("reached_s", "ready_s", "start_s", "computed_s", "end_s"), times, strict=True):
            row[name] = when - self.start_s

    def received(
        self,
        message: Message,
        source: int,
        buffer: torch.Tensor,
        posted: float,
        began: float,
        taken: float,
    ) -> None:
        row = self.messages[self.n_messages]
        row["iteration"], row["kind"], row["stage"] = self.iteration, MESSAGE_CODES[message.kind], message.stage
        row["microbatch"], row["source_rank"], row["target_rank"] = message.microbatch, source, self.rank
        row["payload_bytes"] = buffer.numel() * buffer.element_size()
        row["posted_s"], row["taken_s"] = posted - self.start_s, taken - self.start_s
        row["awaited"] = taken - began > UNNOTICED_WAIT_S
        if row["awaited"]:  # who was not waiting does not know when it came
            row["arrived_s"] = row["taken_s"]
        self.n_messages += 1

    def record(
        self,
        loss: float | None,
        late_start_s: float,
        chunks: int,
        computed: tuple[RankWitness, dict[int, float], dict[str, np.ndarray[Any, Any]]],
    ) -> IterationRecord:
        return IterationRecord(
            self.iteration,
            self.rank,
            self.actions,
            self.messages[: self.n_messages],
            self.sent,
            loss,
            self.most_in_flight / chunks,
            tuple(self.overruns),
            late_start_s,
            *computed,
        )
