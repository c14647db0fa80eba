"""Models that are not ours train as one process does too: whatever their layers are made of, however they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from local_workers import scheduled, trained, workers
from torch import nn

from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.train.data import load_corpus
from testbed.train.reference import Reference, train_reference
from testbed.train.split import GradientStore, keep_back
from testbed.train.stage import Stage

ROOT = Path(__file__).parents[2]
RANKS, ITERATIONS = 4, 3
PATIENCE = Deadline(60, "a test")
SETTINGS = (
    "pacing={F: 0.3 ms, I: 0.2 ms, W: 0.4 ms}",
    "message=20 kB",
    "optimizer={kind: sgd, learning_rate: 0.5}",
)

ODD_MODEL = '''
from torch import nn
from testbed.spec.model import ModelSpec


class Turned(nn.Module):
    """A convolution over time: no nn.Linear in it, so its W is empty."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, track_running_stats=False)
        self.convolution = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.convolution(self.norm(x.transpose(1, 2))).transpose(1, 2).tanh()


class Odd(ModelSpec):
    """Convolutions between an embedding and a gated head, torch's own transformer layer among them."""

    def boundary_shape(self, microbatch_size):
        return (microbatch_size, 12, 16)

    def parameter_count(self):
        return 1000

    def layer(self, index):
        if index == 0:
            return nn.Embedding(256, 16)
        if index == 2:
            return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        if index == self.layers - 1:
            return nn.Sequential(nn.Linear(16, 512), nn.GLU())
        return Turned(16)

    def batch(self, corpus, seed, iteration, microbatch, size):
        return corpus.batch(seed, iteration, microbatch, size, 12)

    def loss(self, output, targets):
        return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())
'''


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    with workers(RANKS, tmp_path_factory.mktemp("workers"), PATIENCE) as loop:
        yield loop


@pytest.fixture(scope="module")
def references() -> dict[tuple[str, str], Reference]:
    """By model and recomputation, of the schedule that came first: one process knows none."""
    return {}


@pytest.mark.parametrize("recompute", ["false", "true"])
@pytest.mark.parametrize("name", ["1f1b", "eager lead=3", "by hand", "zb-v", "crosspipe-greedy"])
@pytest.mark.parametrize("kind", ["my_model.py:Mlp", "odd.py:Odd"])
def test_gradients_equal_those_of_one_process(
    launcher: Loop,
    references: dict[tuple[str, str], Reference],
    tmp_path: Path,
    kind: str,
    name: str,
    recompute: str,
) -> None:
    for example in filter(Path.is_file, (ROOT / "examples").iterdir()):
        (tmp_path / example.name).write_bytes(example.read_bytes())
    (tmp_path / "odd.py").write_text(ODD_MODEL)
    model = f"model={{kind: {kind}, layers: 8, dtype: float64}}"
    settings = (*SETTINGS, model, f"recompute={recompute}")
    plan = load_plan(ROOT / "topologies/two-dc-longhaul.yaml", tmp_path / "my_job.yaml", settings=settings)
    for example in tmp_path.iterdir():
        example.unlink()  # what was read travels: workers need no file
    (choice,) = choose(plan, [name])
    got = trained(launcher, scheduled(plan, choice), ITERATIONS, PATIENCE)
    if (kind, recompute) not in references:
        references[kind, recompute] = train_reference(plan.jobs[0].workload, load_corpus(), ITERATIONS)
    expected = references[kind, recompute]
    assert got.losses == pytest.approx(expected.losses, rel=1e-12)
    assert got.losses[-1] < got.losses[0]
    assert got.gradients.keys() == expected.gradients.keys()
    for parameter, gradient in got.gradients.items():
        reference = expected.gradients[parameter].numpy()
        assert np.abs(gradient - reference).max() <= 1e-12 * max(1e-3, np.abs(reference).max()), parameter


def test_what_waits_for_the_weight_gradient_and_what_does_not() -> None:
    layer = nn.Sequential(nn.Conv1d(3, 3, 1), nn.Linear(5, 5), nn.LayerNorm(5))
    plain = [parameter.detach().clone() for parameter in layer.parameters()]
    store = GradientStore()
    inputs = torch.randn(2, 3, 5, requires_grad=True)
    keep_back(layer, store)(inputs).square().sum().backward()
    whole = {name: parameter.grad for name, parameter in layer.named_parameters()}
    layer.zero_grad()
    store.collecting = []
    layer(inputs).square().sum().backward()
    assert [name for name, parameter in layer.named_parameters() if parameter.grad is None] == ["1.weight"]
    for product in store.collecting:
        product.accumulate()
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter.grad, whole[name]), name  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(plain, layer.parameters(), strict=True))


def test_a_layer_is_the_same_wherever_the_model_is_cut() -> None:
    plan = load_plan(ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "examples/my_job.yaml")
    torch.manual_seed(99)  # whatever else was drawn
    whole = Stage(plan.jobs[0].workload.model, 0, 1, 1, seed=1)
    parts = [Stage(plan.jobs[0].workload.model, stage, 3, 1, seed=1) for stage in range(3)]
    layers = [layer for part in parts for layer in part.layers]
    assert len(layers) == len(whole.layers) == 8
    for mine, theirs in zip(layers, whole.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
