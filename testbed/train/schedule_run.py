"""The engine: runs one rank's row for real over torch.distributed, and writes down when everything happened.

Receives are posted a step ahead, sends are never waited for inside a step, every message has its own tag
(docs/how-true.md, "The rendezvous of gloo", says why).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from testbed.lab.host_settings import Priorities
from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import KINDS, Kind
from testbed.pipeline.memory import RankBytes
from testbed.plan.drawn_slots import slots_of
from testbed.plan.microbatches import resized
from testbed.plan.moved_weights import require_movable
from testbed.train.assignment import IterationRecord, TimedSchedule
from testbed.train.boundary_messages import BoundaryMessages
from testbed.train.buffers import KeptBuffers
from testbed.train.log import ActionLog, LoggedAction
from testbed.train.pacing import LogicalClock, now_s, sleep_until
from testbed.train.rank_witness import Accounts
from testbed.train.streams import Pending, await_all
from testbed.train.tensor_memory import Memory
from testbed.train.tensor_peers import Instants
from testbed.train.training_state import TrainingState


class RankProcess(NamedTuple):
    """What a rank has of the process that it runs in, whatever it trains."""

    spin_s: float
    """Of the ends of its sleeps."""
    priorities: Priorities
    accounts: Accounts
    """Tell what the machine did meanwhile."""
    buffers: KeptBuffers
    """That messages are received into."""


class ScheduleRun:
    """One schedule on the state of a training, as one rank runs it.

    Call `prepare` on the first one of a training, then `iterate` for every iteration in turn. Between two iterations,
    call `post_receives` for the one after the next; before that, `followed_by` gives the run of another schedule.
    """

    def __init__(
        self,
        state: TrainingState,
        timed: TimedSchedule,
        process: RankProcess,
        messages: BoundaryMessages | None = None,
    ) -> None:
        """`messages` of the run before it, if there was one."""
        self.state, self.timed, self.process = state, timed, process
        self.rank, self.workload = state.rank, resized(state.workload, timed.schedule.n_microbatches)
        state.cut_into(self.workload.microbatches)
        self.row = timed.schedule.rows[state.pipeline_rank]
        self.steps = self._steps()
        self.incoming = [step.takes for step in self.steps if step.takes is not None and step.source is not None]
        outgoing = [step.makes for step in self.steps if step.makes is not None and step.target is not None]
        if messages is None:
            messages = BoundaryMessages(state, self.workload, self.incoming, outgoing, process.buffers)
        self.messages = messages
        self.memory = Memory(list(state.stages.values()), state.optimizer, messages.received)
        self.early = self.workload.receives == "early"
        self._drawn: dict[int, list[float]] = {}

    def followed_by(self, timed: TimedSchedule) -> ScheduleRun:
        """The run of another schedule, which takes this one's place before the next iteration.

        Weights, optimizer, data and the receives that are posted for the next iteration stay. With other microbatches,
        or stages on other ranks, these are posted anew; weights move then. Raises BadInput where they cannot,
        RuntimeError where messages have buffers by the order of actions.
        """
        before, after = self.timed.schedule, timed.schedule
        require_movable(self.state.workload, before.stage_to_rank, after.stage_to_rank, after.name, "stages")
        if self.state.task.receive_buffers and after.rows[self.state.pipeline_rank] != self.row:
            raise RuntimeError(f"{after.name}: messages have their buffers by the order of actions before it")
        moves = before.stage_to_rank != after.stage_to_rank
        if not moves and before.n_microbatches == after.n_microbatches:
            return ScheduleRun(self.state, timed, self.process, self.messages)
        posted, holders = bool(self.messages.posted), [self.state.holder(n) for n in range(before.n_stages)]
        if moves:
            self.state.move(after.stage_to_rank, lambda: self.messages.use_up(holders))
        else:
            await_all(self.messages.use_up(holders))
        following = ScheduleRun(self.state, timed, self.process)
        if posted:
            for message in following.incoming:
                following.messages.post(message, self.state.iteration)
        return following

    def _slots(self, iteration: int) -> Sequence[float | None]:
        """Of every action of the row, its slot in an iteration; None: no pacing."""
        if self.timed.drawn:
            return self._drawn.pop(iteration, None) or self._draw(iteration)
        unpaced = (None,) * len(self.row)
        return unpaced if self.timed.durations_s is None else self.timed.durations_s[self.state.pipeline_rank]

    def _draw(self, iteration: int) -> list[float]:
        number, stages = self.state.task.joins + iteration, self.timed.schedule.stage_to_rank
        seconds = slots_of(self.workload, stages, number, self.timed.slower)[self.state.replica]
        return [
            float(seconds[action.stage, KINDS.index(action.kind), action.microbatch]) * action.part.fraction
            for action in self.row
        ]

    def _count_memory(self, activation_bytes: float) -> RankBytes:
        """What this rank holds, with activations at their most."""
        state = self.state
        others = sum(runner.buffer_bytes for runner in (state.replicas, state.peers) if runner is not None)
        return self.memory.of_rank(activation_bytes, self.messages.buffer_bytes + others)

    def _steps(self) -> list[LoggedAction]:
        state = self.state
        steps = []
        for action in self.row:
            takes, makes = consumed(action, state.n_stages), produced(action, state.n_stages)
            source = None if takes is None else state.holder(takes.stage)
            target = None if makes is None else state.holder(makes.consumer)
            ends = (None if rank == self.rank else rank for rank in (source, target))
            steps.append(LoggedAction(action, takes, next(ends), makes, next(ends)))
        last = {step.action.stage: index for index, step in enumerate(steps) if step.action.kind in (Kind.W, Kind.B)}
        for index in last.values():
            steps[index] = steps[index]._replace(completes=True)
        if state.peers is not None:
            gathering = set(state.stages) if state.replicas is not None else set()
            for index, step in enumerate(steps):
                first = step.action.kind is Kind.F and step.action.stage in gathering
                gathering -= {step.action.stage} if first else set()
                steps[index] = step._replace(together=first or step.source is not None)
        return steps

    def post_receives(self, iteration: int) -> None:
        """Post all receives of an iteration; none of one beyond the last.

        Not before every rank has ended the iteration two before: the notices of a rank that ends early would go ahead
        of others' last messages on a slow link.
        """
        if iteration >= self.state.task.iterations:
            return
        if self.timed.drawn:  # now, since it takes time
            self._drawn[iteration] = self._draw(iteration)
        if self.state.replicas is not None:
            self.state.replicas.post(iteration)
        if self.early:
            for message in self.incoming:
                self.messages.post(message, iteration)

    def prepare(self) -> None:
        """Post the receives of the first two iterations to come."""
        for iteration in (self.state.iteration, self.state.iteration + 1):
            self.post_receives(iteration)

    def iterate(self, iteration: int, start_s: float) -> IterationRecord:
        """Run the row once, beginning at `start_s` on the monotonic clock or in its turn, then step the optimizer.

        Raises RuntimeError when a peer is gone or a message does not come within the process group's timeout, and for
        another iteration than the training's next one.
        """
        state, replicas, peers = self.state, self.state.replicas, self.state.peers
        if iteration != state.iteration:
            raise RuntimeError(f"told to run iteration {iteration}, and the next one to train is {state.iteration}")
        slots, (begin_s, late_start_s) = self._slots(iteration), self._await_start(iteration, start_s)
        counting = state.task.count_memory and iteration == 0
        log = ActionLog(iteration, self.rank, state.replica, start_s)
        clock = LogicalClock(begin_s, self.process.spin_s)
        local: dict[Message, torch.Tensor] = {}
        sends: list[Pending] = []
        computing = self.process.priorities.computing
        if replicas is not None:
            replicas.gather()
        # between the end of a slot and the message it makes, and between a message and the slot it begins, is nothing
        # but what has to be: each microsecond there counts once for every hop of the pipeline
        for step, slot_s in zip(self.steps, slots, strict=True):
            reached = now_s()
            if step.source is None:
                value = None if step.takes is None else local.pop(step.takes)
                ready = now_s()
            else:
                value, ready = self._receive(step, iteration, log)
            if replicas is not None and step.action.kind is Kind.F:
                replicas.wait_for(step.action.stage)
                ready = now_s()
            if peers is not None and step.together:
                start, ready, value = self._begin_together(step, clock, (reached, ready), value)
            else:
                start = clock.begin(reached, ready)
            with computing:
                result = state.compute(step.action, value)
                outgoing = self._wrap(step, iteration, result, local)
            log.in_flight(state.microbatches_in_flight())
            if counting and step.action.kind is Kind.F and step.action.part.is_last:
                log.activation_bytes = max(log.activation_bytes, self.memory.activations())
            computed = now_s()
            if slot_s is None:
                clock.follow(computed)
            else:
                log.overruns.append(clock.finish(slot_s, reached, ready, computed))
            if outgoing is not None:
                sent = now_s()
                sends.append(state.streams.send(*outgoing))
                log.sent.append((step, sent))
            if replicas is not None and step.completes:
                replicas.reduce(step.action.stage)
            log.actions.append((reached, ready, start, computed, now_s()))
        for send in sends:
            send.wait()
        if replicas is not None:
            log.collectives = replicas.end()
        if local:
            raise RuntimeError(f"never consumed: {list(local)}")
        return self._end(iteration, log, late_start_s, clock)

    def _await_start(self, iteration: int, start_s: float) -> tuple[float, float]:
        """Make ready and sleep until this rank begins; returns when that is, and how late it was ready, in seconds."""
        state, begins_s = self.state, self.timed.begins_s
        state.zero_gradients()
        if state.replicas is not None:
            state.replicas.attend(iteration)
        begin_s = start_s + (begins_s[state.task.mesh.position(self.rank)] if begins_s else 0.0)
        late_start_s = max(0.0, now_s() - begin_s)
        self.process.accounts.begin()
        sleep_until(begin_s, self.process.spin_s)
        return begin_s, late_start_s

    def _end(self, iteration: int, log: ActionLog, late_start_s: float, clock: LogicalClock) -> IterationRecord:
        """Step the optimizer, and make the record."""
        log.ended(clock.time_s)
        witness = self.process.accounts.end(clock.wake_late_s)
        state, counting = self.state, self.state.task.count_memory and iteration == 0
        with self.process.priorities.computing:  # others may still wait for what this rank's threads send
            step = state.step()
        return IterationRecord(
            iteration,
            self.rank,
            log.action_rows(self.steps),
            np.concatenate(
                (
                    log.message_rows(self.messages.payload_bytes),
                    log.collective_rows(state.cell_bytes, state.member_rank),
                )
            ),
            log.sent_s(),
            step.loss,
            log.most_in_flight / len(state.stages),
            tuple(log.overruns),
            late_start_s,
            witness,
            step.gradient_squares,
            step.gradients,
            step.fingerprints,
            self._count_memory(log.activation_bytes) if counting else None,
            log.ended_s,
        )

    def _receive(self, step: LoggedAction, iteration: int, log: ActionLog) -> tuple[torch.Tensor, float]:
        """The tensor, or this tensor rank's part of it, that another rank has sent, and when it was there."""
        message, messages = step.takes, self.messages
        assert message is not None
        if not self.early:
            messages.post(message, iteration)
        work, posted = messages.posted.pop((iteration, message))
        began = now_s()
        work.wait()
        taken = now_s()
        log.received.append((step, posted, began, taken))
        part = messages.to_receive[message][: messages.part]
        return part if self.state.peers is not None else part.view(messages.shape), taken

    def _begin_together(
        self, step: LoggedAction, clock: LogicalClock, times: tuple[float, float], value: torch.Tensor | None
    ) -> tuple[float, float, torch.Tensor | None]:
        """When a slot starts that all tensor ranks begin together, when the last of them had its input, and the input.

        `times` are when this one reached the action and was ready. Gathering an input's parts belongs to the slot.
        """
        peers = self.state.peers
        assert peers is not None
        mine = Instants(clock.time_s, *times)
        if value is None or step.source is None:
            latest = peers.latest(mine)
        else:
            latest, whole = peers.gathered(mine, value)
            value = whole[: self.messages.elements].view(self.messages.shape)
        clock.time_s = latest.clock_s
        return clock.begin(latest.reached_s, latest.ready_s), latest.ready_s, value

    def _wrap(
        self, step: LoggedAction, iteration: int, value: torch.Tensor | None, local: dict[Message, torch.Tensor]
    ) -> tuple[torch.Tensor, int, int] | None:
        """What an action has made: laid aside for this rank, or put where it can be sent from (tensor, rank, tag)."""
        if step.makes is None:
            return None
        assert value is not None
        if step.target is None:
            local[step.makes] = value
            return None
        messages = self.messages
        buffer = messages.to_send[step.makes]
        part = value.reshape(-1)[self.state.tensor_rank * messages.part :][: messages.part]
        buffer[: part.numel()].copy_(part)
        return buffer, step.target, messages.tag(step.makes, iteration)
