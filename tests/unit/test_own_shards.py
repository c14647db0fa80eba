"""Shards of an optimizer as numbers: what some replicas packed, others go on with as one that steps all of it would."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from in_process import run_testbed
from torch import nn

from testbed.plan.exchange import exchange_at
from testbed.plan.plan import Job
from testbed.plan.shard_copies import Sharing, cut_anew, held_bytes, owned_elements, shard_numbers
from testbed.planning import file
from testbed.planning.fewer_replicas import job_of
from testbed.train.optimizer import make_optimizer
from testbed.train.own_shards import pack_shard, unpack_shard
from testbed.train.shards import Shards

STAGES = (0, 1)
ELSEWHERE = "[[warsaw/2, paris/2], [paris/1, warsaw/1]]"


def planned(tmp_path: Path, optimizer: str) -> Job:
    words = ["two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--iterations", "2"]
    exchange = f"data_parallel={{algorithm: hierarchical, chunks: 3, replicas: {ELSEWHERE}}}"
    settings = ("parallelism.data=3", "parallelism.pipeline=2", "model.d_model=12", exchange)
    for one in (*settings, f"optimizer.kind={optimizer}"):
        words += ["--set", one]
    done = run_testbed("plan", *words, "-o", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    return file.read(tmp_path / "plan.json").jobs[0]


def state_of(job: Job, layers: nn.Module, stage: int, replica: int) -> Any:
    """Of a rank of that stage alone; its layers are a copy."""
    layers = deepcopy(layers)
    parameters, shards = list(layers.parameters()), {}
    if job.mesh.dp > 1:
        shards[stage] = Shards(parameters, exchange_at(job, stage), replica)
    stepped = shards[stage].stepped if shards else parameters
    optimizer = make_optimizer(job.workload.optimizer, stepped)
    held = SimpleNamespace(layers=layers)
    return SimpleNamespace(workload=job.workload, iteration=0, stages={stage: held}, shards=shards, optimizer=optimizer)


def stepped_twice(state: Any, stage: int) -> Any:
    """With the same gradients, whoever steps."""
    draw = torch.Generator().manual_seed(3)
    for state.iteration in (1, 2):
        for parameter in state.stages[stage].layers.parameters():
            gradient = torch.randn(parameter.shape, generator=draw)
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.copy_(gradient)
        state.optimizer.step()
    return state


def packed(job: Job, state: Any, rank: int) -> torch.Tensor:
    values = torch.full((shard_numbers(job, STAGES, rank),), torch.nan)
    pack_shard(state, values)
    return values


def weights(state: Any, stage: int) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in state.stages[stage].layers.parameters()])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(
    ("had_it", "left", "go_on"),
    [
        ((0, 1, 2), (0, 2), (0, 2)),
        ((0, 1, 2), (1, 2), (0, 1, 2)),
        ((0, 2), (2,), (2,)),
        ((1,), (1,), (0, 1, 2)),
    ],
)
def test_who_goes_on_has_of_its_shard_what_one_that_steps_all_would_have(
    tmp_path: Path, optimizer: str, had_it: tuple[int, ...], left: tuple[int, ...], go_on: tuple[int, ...]
) -> None:
    job, stage = planned(tmp_path, optimizer), 1
    spec = job.workload.model
    torch.manual_seed(1)
    layers = nn.Sequential(*(spec.layer(index) for index in spec.stage_layers(stage, 2)))  # type: ignore[attr-defined]
    alike = stepped_twice(state_of(job_of(job, (0,)), layers, stage, 0), stage)
    before, after = (Sharing(job_of(job, those), those) for those in (had_it, go_on))
    ranks = {replica: 2 * number + stage for number, replica in enumerate(had_it)}
    shards = {
        replica: packed(before.job, stepped_twice(state_of(before.job, layers, stage, number), stage), ranks[replica])
        for number, replica in enumerate(had_it)
    }
    had = {replica: torch.cat([shards[owner] for owner in before.shards_held(replica)]) for replica in had_it}
    sizes = held_bytes(after.job, STAGES)
    got = {replica: torch.full((sum(sizes[2 * n + stage]) // 4,), torch.nan) for n, replica in enumerate(go_on)}
    for message in cut_anew(STAGES, before, after, left):
        if message.target % 2 == stage:
            source, target = (after.replicas[rank // 2] for rank in (message.source, message.target))
            for first, to, numbers in message.pieces:
                got[target][to : to + numbers] = had[source][first : first + numbers]
    stepped_twice(alike, stage)
    for number, replica in enumerate(go_on):
        state, rank = state_of(after.job, layers, stage, number), 2 * number + stage
        own = got[replica][: shard_numbers(after.job, STAGES, rank)]
        unpack_shard(state, own)
        assert state.iteration == 2
        assert torch.equal(packed(after.job, state, rank), own)
        stepped_twice(state, stage)
        owned = list(owned_elements(after.job, STAGES, stage, rank))
        assert owned
        for elements in owned:
            mine, expected = (weights(one, stage)[elements.start : elements.stop] for one in (state, alike))
            assert torch.equal(mine, expected)


def test_a_shard_of_another_size_than_the_plan_says_is_refused(tmp_path: Path) -> None:
    job = job_of(planned(tmp_path, "sgd"), (1,))
    spec = job.workload.model
    layers = nn.Sequential(*(spec.layer(index) for index in spec.stage_layers(1, 2)))  # type: ignore[attr-defined]
    state = state_of(job, layers, 1, 0)
    for act in (pack_shard, unpack_shard):
        with pytest.raises(ValueError, match=r"the shard of this rank has \d+ numbers, and stage_parameter_count says"):
            act(state, torch.zeros(7))
