"""What a worker needs is imported once, in the process that all are forked from, and nothing dear is among it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from testbed.spec.workload import OptimizerSpec
from testbed.train.optimizer import make_optimizer

ROOT = Path(__file__).parents[2]

TRAINS = """
import json, sys
from pathlib import Path
import testbed.train.preload
from testbed.pipeline.ir import Part
from testbed.spec import load_workload
from testbed.spec.workload import OptimizerSpec
from testbed.train.data import load_corpus
from testbed.train.model_protocol import trainable
from testbed.train.optimizer import make_optimizer
from testbed.train.stage import Stage

corpus = load_corpus()
job = load_workload(Path("workloads/tiny-gpt-pp4.yaml"))
before = set(sys.modules)
first, last = (Stage(job.model, stage, 2, 1, seed=1) for stage in (0, 1))
inputs, targets = trainable(job.model).batch(corpus, 1, 0, 0, 2)
for split in (False, True):
    whole = Part(0, 1, 1)
    last.forward(0, whole, first.forward(0, whole, inputs, None), targets)
    gradient = None
    for stage in (last, first):
        if split:
            gradient = stage.input_gradient(0, whole, gradient)
            stage.weight_gradient(0, whole)
        else:
            gradient = stage.backward(0, whole, gradient)
for kind in ("adamw", "sgd"):
    for stage in (first, last):
        make_optimizer(OptimizerSpec(kind=kind), list(stage.layers.parameters())).step()
print(json.dumps([sorted(sys.modules), sorted(set(sys.modules) - before)]))
"""


def test_training_imports_nothing_more_and_neither_compiler_nor_symbolic_arithmetic() -> None:
    done = subprocess.run([sys.executable, "-c", TRAINS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    imported, later = json.loads(done.stdout)
    assert later == []
    assert {"torch", "testbed.train.worker"} <= set(imported)
    assert not {"sympy", "torch._dynamo"} & set(imported)


@pytest.mark.parametrize(
    ("kind", "torchs"),
    [
        ("adamw", lambda weights: torch.optim.AdamW(weights, lr=3e-3)),
        ("sgd", lambda weights: torch.optim.SGD(weights, lr=3e-3, momentum=0.9)),
    ],
)
def test_an_optimizer_steps_as_torchs_own_to_the_last_bit(kind: str, torchs: object) -> None:
    drawn = torch.Generator().manual_seed(1)
    ours = [nn.Parameter(torch.randn(7, 5, generator=drawn)) for _ in range(3)]
    theirs = [nn.Parameter(weight.detach().clone()) for weight in ours]
    optimizer = make_optimizer(OptimizerSpec(kind=kind, learning_rate=3e-3), ours)
    other = torchs(theirs)  # type: ignore[operator]
    for _ in range(4):
        for one, another in zip(ours[:2], theirs[:2], strict=True):  # the third one has no gradient
            one.grad = torch.randn(7, 5, generator=drawn)
            another.grad = one.grad.clone()
        optimizer.step()
        other.step()
    assert all(torch.equal(one, another) for one, another in zip(ours, theirs, strict=True))
    assert len(optimizer.state) == 2
    optimizer.zero_grad()
    assert all(weight.grad is None for weight in ours)
