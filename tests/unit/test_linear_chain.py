"""A chain of linear layers: what it says of its size and of its memory is what torch has."""

from __future__ import annotations

import itertools

import pytest
import torch

from testbed.pipeline.ir import WHOLE
from testbed.train.byte_model import INDEX_BYTES
from testbed.train.data import load_corpus
from testbed.train.linear import LinearChain
from testbed.train.stage import Stage
from testbed.train.tensor_memory import in_flight, tensor_bytes

SAMPLES, TOKENS = 3, 5
TOLERANCE = SAMPLES * (TOKENS + 1) * INDEX_BYTES + 64
"""Bytes of the indexes that inputs and targets may share, and of scalars; a layer's output has more."""


def chain(layers: int, dtype: str = "float32") -> LinearChain:
    return LinearChain.model_validate(
        {"kind": "linear", "layers": layers, "d_model": 6, "sequence": TOKENS, "dtype": dtype}
    )


@pytest.mark.parametrize(
    ("layers", "n_stages", "recompute", "dtype"),
    [
        (layers, n_stages, recompute, dtype)
        for (layers, n_stages), recompute, dtype in itertools.product(
            [(1, 1), (4, 1), (3, 3), (7, 3)], [False, True], ["float32", "float64"]
        )
    ],
)
def test_memory_of_a_microbatch_is_what_it_says(layers: int, n_stages: int, recompute: bool, dtype: str) -> None:
    spec, corpus = chain(layers, dtype), load_corpus()
    inputs, targets = spec.batch(corpus, 1, 0, 0, SAMPLES)
    stages = [Stage(spec, number, n_stages, 1, 1, recompute=recompute) for number in range(n_stages)]
    value, received = inputs, []
    for number, stage in enumerate(stages):
        said = spec.activation_bytes(number, n_stages, SAMPLES, recompute=recompute, degree=1)
        value = stage.forward(0, WHOLE, value, targets if stage.is_last else None).clone()
        received.append(value)
        ours = [*stage.layers.parameters(), *received[number - 1 : number]]
        assert tensor_bytes(in_flight(stage), ours) == pytest.approx(said.after_forward, abs=TOLERANCE)
    gradient: torch.Tensor | None = None
    for number, stage in reversed(list(enumerate(stages))):
        said = spec.activation_bytes(number, n_stages, SAMPLES, recompute=recompute, degree=1)
        made = stage.input_gradient(0, WHOLE, gradient)
        ours = [*stage.layers.parameters(), *received[number - 1 : number], *(() if gradient is None else (gradient,))]
        assert tensor_bytes(in_flight(stage), ours) == pytest.approx(said.after_input_gradient, abs=TOLERANCE)
        gradient = None if made is None else made.clone()


@pytest.mark.parametrize("n_stages", [1, 2, 5])
def test_parameters_of_its_stages_are_those_that_it_counts(n_stages: int) -> None:
    spec = chain(7)
    counted = []
    for number in range(n_stages):
        layers = Stage(spec, number, n_stages, 1, 1).layers
        counted.append(sum(parameter.numel() for parameter in layers.parameters()))
        assert spec.stage_parameter_count(number, n_stages) == counted[-1]
    assert spec.parameter_count() == sum(counted)
    assert SAMPLES * TOKENS * spec.d_model * spec.element_bytes > TOLERANCE


def test_a_gradient_reaches_the_first_of_many_layers() -> None:
    spec = chain(128)
    stage = Stage(spec, 0, 1, 1, 1)
    inputs, targets = spec.batch(load_corpus(), 1, 0, 0, SAMPLES)
    stage.forward(0, WHOLE, inputs, targets)
    stage.backward(0, WHOLE, None)
    norms = [float(torch.linalg.vector_norm(p.grad)) for p in stage.layers.parameters() if p.grad is not None]
    assert len(norms) == 130
    assert min(norms) > max(norms) / 100
