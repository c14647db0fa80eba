"""What a rank trains: the weights of its stages, their optimizer, and how far training has come.

It outlives schedules: a run of one (train/schedule_run.py) says in which order actions are done on it, and another
one may go on with it between two iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from testbed.pipeline.collectives import Exchange
from testbed.pipeline.ir import Action, Kind
from testbed.plan.exchange import exchange_of
from testbed.plan.moved_weights import Seat, Stages
from testbed.train import batches
from testbed.train.assignment import AFTER_STEP, GRADIENT, IN_USE, Fingerprint, TrainingTask, last_compared
from testbed.train.batches import Cut
from testbed.train.collective_runner import Membership
from testbed.train.data import Corpus
from testbed.train.gloo_all_reduce import GlooGroups
from testbed.train.model_protocol import trainable
from testbed.train.moving import Move, Trained
from testbed.train.optimizer import Optimizer, make_optimizer
from testbed.train.parameter_sums import (
    Held,
    fingerprints,
    gradient_squares,
    named_gradients,
)
from testbed.train.replicas import Replicas
from testbed.train.shards import Shards
from testbed.train.stage import Stage
from testbed.train.streams import Pending, Streams, await_all
from testbed.train.tensor import TensorShare
from testbed.train.tensor_peers import Peers


class OptimizerStep(NamedTuple):
    """What is told of the optimizer's step at the end of an iteration; see IterationRecord."""

    loss: float | None
    gradient_squares: dict[int, float]
    gradients: dict[str, np.ndarray[Any, Any]]
    fingerprints: tuple[Fingerprint, ...]


class TrainingState:
    """One rank's part of one training, whatever the order of its actions.

    What exchanges weights, gradients and activations with the other ranks of the same stages (`replicas`, `peers`)
    belongs to it, receives posted ahead included: it depends on where stages are, and on nothing else of a schedule.
    Stages can move to other ranks.
    """

    def __init__(
        self,
        task: TrainingTask,
        rank: int,
        corpus: Corpus,
        messaging: AbstractContextManager[None],
        groups: GlooGroups,
    ) -> None:
        """`messaging` is entered while tensor ranks exchange something; `groups` have gloo's groups of replicas, where
        a task asks for them.

        Raises ValueError where a stage has more parameters than its messages have room for.
        """
        self.task, self.rank, self.corpus, self.workload = task, rank, corpus, task.workload
        self.iteration = 0
        """The next one: it says which data its batch has."""
        mesh, spec = task.mesh, self.workload.model
        self.replica, self.pipeline_rank, self.tensor_rank = mesh.coordinates(rank)
        self.pipeline = mesh.pipeline(self.replica, self.tensor_rank)
        group = dist.group.WORLD
        assert group is not None  # the worker has joined
        self.streams = Streams(group, self.workload.streams)
        self.peers: Peers | None = None
        if mesh.tp > 1:
            self.peers = Peers(mesh.tensor_ranks(self.replica, self.pipeline_rank), self.tensor_rank, group, messaging)
        self.stage_to_rank = task.begins_with.schedule.stage_to_rank
        self.n_stages = len(self.stage_to_rank)
        self.microbatches = self.workload.microbatches
        self.stages = self._stages()
        self.shards: dict[int, Shards] = {}
        self.replicas: Replicas | None = None
        self.cell_bytes = 0
        """Of what replicas exchange: of each of the equal cells that it is cut into."""
        self._groups = groups
        self._share_with_replicas()
        self.optimizer = self._optimizer()
        self.model = trainable(spec)
        self.last_compared = last_compared(task.iterations, task.compared)

    def move(self, stage_to_rank: Stages, meanwhile: Callable[[], list[Pending]]) -> None:
        """Have the stages on these ranks from the next iteration on, with their weights and what the optimizer keeps
        of them; all ranks are to do this. What `meanwhile` begins, when receives are posted, is waited for.

        What replicas have posted for the next iteration is used up, and posted anew. Raises RuntimeError when a rank
        is gone.
        """
        mesh, replicas = self.task.mesh, self.replicas
        before = Trained(self.stage_to_rank, self.stages, self.shards, self.optimizer)
        self.stage_to_rank, self.n_stages = stage_to_rank, len(stage_to_rank)
        self.stages = self._stages()
        self._share_with_replicas()
        self.optimizer = self._optimizer()
        after = Trained(self.stage_to_rank, self.stages, self.shards, self.optimizer)
        exchanges = [self._exchange(rank) for rank in range(mesh.pp)] if mesh.dp > 1 else []
        seat = Seat(self.replica, self.pipeline_rank)
        moving = Move(
            self.workload,
            before,
            after,
            exchanges,
            seat,
            lambda seat: mesh.rank(*seat, self.tensor_rank),
            self.streams,
        )
        moving.post()
        under_way = meanwhile()
        if replicas is not None:
            under_way += replicas.use_up()
        moving.finish()
        await_all(under_way)
        if replicas is not None and self.replicas is not None:
            replicas.close()
            for iteration in replicas.posted:
                self.replicas.post(iteration)

    def _optimizer(self) -> Optimizer:
        parameters = [p for stage in self.stages.values() for p in stage.layers.parameters()]
        kept = [part for shards in self.shards.values() for part in shards.stepped] or parameters
        return make_optimizer(self.workload.optimizer, kept)

    def _stages(self) -> dict[int, Stage]:
        workload = self.workload
        share = None if self.peers is None else TensorShare(self.peers)
        return {
            stage: Stage(
                workload.model,
                stage,
                self.n_stages,
                workload.microbatches * self.task.mesh.dp,
                workload.seed,
                recompute=workload.recompute,
                share=share,
            )
            for stage, holder in enumerate(self.stage_to_rank)
            if holder == self.pipeline_rank
        }

    def _share_with_replicas(self) -> None:
        """Have vectors for every stage, where there are replicas."""
        if self.task.mesh.dp == 1:
            return
        exchange = self._exchange(self.pipeline_rank)
        self.shards = {}
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
        ranks = self.task.mesh.counterparts(self.pipeline_rank, self.tensor_rank)
        gloo = self._groups.of(ranks) if self.workload.data_parallel.collective.by_gloo else None
        self.replicas = Replicas(self.shards, exchange, Membership(self.replica, ranks, self.streams), elements, gloo)

    def _exchange(self, pipeline_rank: int) -> Exchange:
        """What the replicas of that one's stages do."""
        ranks = self.task.mesh.counterparts(pipeline_rank, self.tensor_rank)
        return exchange_of(self.workload, [self.task.site(rank) for rank in ranks])

    def cut_into(self, microbatches: int) -> None:
        """Have the batches from the next one on in so many microbatches, of as many samples in all."""
        self.microbatches = microbatches
        for stage in self.stages.values():
            stage.n_microbatches = microbatches * self.task.mesh.dp

    def holder(self, stage: int) -> int:
        """The rank of the same pipeline that holds a stage."""
        return self.pipeline[self.stage_to_rank[stage]]

    def member_rank(self, replica: int) -> int:
        """The rank that holds this one's stages in another replica."""
        return self.task.mesh.rank(replica, self.pipeline_rank, self.tensor_rank)

    def microbatches_in_flight(self) -> int:
        """Of all stages: begun, and not yet freed by their last gradient."""
        return sum(len(stage.in_flight) for stage in self.stages.values())

    def compute(self, action: Action, value: torch.Tensor | None) -> torch.Tensor | None:
        """Do an action of the next iteration with what it takes; returns what it makes."""
        stage, microbatch, part = self.stages[action.stage], action.microbatch, action.part
        assert microbatch is not None
        match action.kind:
            case Kind.F:
                targets = None
                if action.stage in (0, self.n_stages - 1):
                    cut = Cut(self.replica, microbatch, self.microbatches)
                    inputs, targets = batches.microbatch(self.workload, self.model, self.corpus, self.iteration, cut)
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

    def zero_gradients(self) -> None:
        """Before an iteration."""
        if self.shards:
            for shards in self.shards.values():
                shards.gradients.zero_()  # in place: parameters' gradients are views of it
        else:
            self.optimizer.zero_grad()

    def step(self) -> OptimizerStep:
        """End the iteration: step the optimizer, go on to the next batch. Raises RuntimeError if anything is left."""
        task, iteration = self.task, self.iteration
        losses = [loss for stage in self.stages.values() if (loss := stage.end_iteration()) is not None]
        gradients = {}
        if task.keep_gradients and iteration == task.iterations - 1:
            named = (item for held in self._held() for item in named_gradients(held).items())
            gradients = {name: gradient.numpy() for name, gradient in named}
        squares = {layer: square for held in self._held() for layer, square in gradient_squares(held).items()}
        first = task.compared and iteration == 0
        last = iteration == self.last_compared or iteration in task.also_compared
        compared = self._fingerprints(*([GRADIENT] if first else []), *([IN_USE] if last else []))
        self.optimizer.step()
        if task.compared and (first or last):
            compared += self._fingerprints(AFTER_STEP)
        self.iteration += 1
        loss = losses[0] if losses and self.tensor_rank == 0 else None
        return OptimizerStep(loss, squares, gradients, tuple(compared))

    def _held(self) -> list[Held]:
        spec, place = self.workload.model, (self.replica, self.tensor_rank)
        return [
            Held(stage, spec.stage_layers(index, self.n_stages).start, self.shards.get(index), *place)
            for index, stage in self.stages.items()
        ]

    def _fingerprints(self, *of: str) -> list[Fingerprint]:
        return [one for held in self._held() for what in of for one in fingerprints(held, self.iteration, what)]

    def save(self, directory: Path) -> None:
        """Write weights, optimizer and how far training has come into a file of this rank in a directory."""
        saved = {
            "iteration": self.iteration,
            "layers": {index: stage.layers.state_dict() for index, stage in self.stages.items()},
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(saved, self._file(directory))

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote there, of the same task and rank, in another process maybe.

        Raises OSError, or RuntimeError where something else was saved.
        """
        saved = torch.load(self._file(directory), weights_only=True)
        for index, stage in self.stages.items():
            stage.layers.load_state_dict(saved["layers"][index])  # in place: shards are views of them
        self.optimizer.load_state_dict(saved["optimizer"])
        self.iteration = saved["iteration"]

    def _file(self, directory: Path) -> Path:
        return directory / f"rank{self.rank}.pt"

    def close(self) -> None:
        """End what it has started; it is not used again."""
        if self.replicas is not None:
            self.replicas.close()
        if self.peers is not None:
            self.peers.close()
