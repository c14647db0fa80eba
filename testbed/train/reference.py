"""The same training in one process without a pipeline: what every schedule's losses, gradients and weights must equal.

Plain torch: one module of the model's layers, the whole batch of all replicas at once, an optimizer written down from
its paper. Of what ranks train with (stages, split backwards, shards, the loss of a share of the batch, torch's own
optimizers) nothing is used here, so that a fault in there has nothing to hide behind.

It is trained twice, with sums in two orders: how far the two come apart is what rounding does to this model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from testbed.errors import BadInput
from testbed.spec.workload import OptimizerSpec, Workload
from testbed.train.assignment import AFTER_STEP, GRADIENT, IN_USE, Expected
from testbed.train.data import Corpus
from testbed.train.model_protocol import Model, draw_layer, trainable
from testbed.train.projections import projections, squared

Tensors = dict[str, torch.Tensor]
"""By "layer.parameter"."""

_ELEMENTS_AT_ONCE = 1 << 25
"""So many numbers between layers one backward may go through: a batch that has more goes in several."""

_ALIKE = {torch.float32: 1e-5, torch.float64: 1e-12}
"""A batch in pieces has the loss of the batch at once within this, unless samples see each other."""


@dataclass(frozen=True)
class Reference:
    """Losses and norms per iteration, and every parameter's gradient in the last one."""

    losses: tuple[float, ...]
    gradient_norms: tuple[tuple[float, ...], ...]
    """Per iteration, of every layer."""
    gradients: Tensors
    parameters: tuple[Expected, ...] = ()
    loss_rounding: float = 0.0
    """The largest relative difference between the losses of the two trainings ..."""
    norm_rounding: float = 0.0
    """... and between their norms."""


@dataclass
class _Momenta:
    """What an optimizer keeps of a parameter."""

    steps: int = 0
    first: torch.Tensor | float = 0.0
    second: torch.Tensor | float = 0.0


@dataclass
class _Seen:
    """What one training came by."""

    losses: list[float] = field(default_factory=list)
    norms: list[tuple[float, ...]] = field(default_factory=list)
    begun: Tensors = field(default_factory=dict)
    """The weights that were drawn."""
    gradients: Tensors = field(default_factory=dict)
    """In the last iteration."""
    kept: dict[tuple[int, str], Tensors] = field(default_factory=dict)
    """By iteration and what of it: gradients of the first one, weights around its last."""


def train_reference(
    workload: Workload,
    corpus: Corpus,
    iterations: int,
    lasts: Collection[int] = (),
    *,
    resized: bool = False,
    replicas: Sequence[int] = (),
) -> Reference:
    """Train the whole model on one process. `lasts` are iterations whose weights will be compared; `replicas` say per
    iteration of how many the batch is, where that is not always the same.

    Raises BadInput when a method of the model is missing, and for one whose gradients hang on how its batch is cut
    into microbatches where that is `resized` on the way.
    """
    if resized and not _is_mean_over_samples(workload, corpus):
        expected = "one whose loss is a mean over samples: others have other gradients in other microbatches"
        raise BadInput.of(workload.name, "model.kind", workload.model.kind, expected)
    counts = replicas or [workload.parallelism.data] * iterations
    each = [workload.microbatches * count for count in counts]
    seen = _trained(workload, corpus, each, lasts, _in_one_piece(workload, corpus))
    found = Reference(tuple(seen.losses), tuple(seen.norms), seen.gradients)
    if not lasts:
        return found
    rounded = _trained(workload, corpus, each, lasts, [[m] for m in reversed(range(_samples(workload)))])
    of_norms = [_apart(ours, theirs) for ours, theirs in zip(seen.norms, rounded.norms, strict=True)]
    return replace(
        found,
        parameters=tuple(_expected(seen, rounded)),
        loss_rounding=_apart(seen.losses, rounded.losses),
        norm_rounding=max(of_norms, default=0.0),
    )


def _apart(values: Sequence[float], others: Sequence[float]) -> float:
    """The largest relative difference, value by value; 0 where one is 0 or no number."""
    differences = [abs(other - value) / abs(value) for value, other in zip(values, others, strict=True) if value]
    return max(filter(math.isfinite, differences), default=0.0)


def _samples(workload: Workload) -> int:
    """Microbatches of all replicas."""
    return workload.microbatches * workload.parallelism.data


def _layers(workload: Workload) -> nn.Sequential:
    model, spec = trainable(workload.model), workload.model
    return nn.Sequential(*(draw_layer(model, spec, index, workload.seed) for index in spec.stage_layers(0, 1)))


def _is_mean_over_samples(workload: Workload, corpus: Corpus) -> bool:
    """Whether the loss of a microbatch is the mean of those of its samples, so that gradients of a batch are the same
    however it is cut. Two samples at least are looked at.
    """
    module, model = _layers(workload), trainable(workload.model)
    inputs, targets = _batch(workload, corpus, 0, list(range(min(2, _samples(workload)))))
    with torch.no_grad():
        together = float(_loss(module, model, inputs, targets))
        separate = [float(_loss(module, model, inputs[k : k + 1], targets[k : k + 1])) for k in range(len(inputs))]
    dtype = next(module.parameters()).dtype
    return math.isclose(together, sum(separate) / len(separate), rel_tol=_ALIKE[dtype])


def _in_one_piece(workload: Workload, corpus: Corpus) -> list[list[int]]:
    """The microbatches that go through the model at once: all, or as many as memory allows.

    One by one where samples of a batch see each other (batch norms), or the loss is no mean over samples.
    """
    microbatches, spec = list(range(_samples(workload))), workload.model
    each = math.prod(spec.boundary_shape(workload.microbatch_size)) * spec.layers
    at_once = max(1, _ELEMENTS_AT_ONCE // each)
    pieces = [microbatches[begin : begin + at_once] for begin in range(0, len(microbatches), at_once)]
    module, model = _layers(workload), trainable(spec)
    with torch.no_grad():
        together = float(_loss(module, model, *_batch(workload, corpus, 0, pieces[0])))
        separate = [float(_loss(module, model, *_batch(workload, corpus, 0, [m]))) for m in pieces[0]]
    dtype = next(module.parameters()).dtype
    is_mean = math.isclose(together, sum(separate) / len(separate), rel_tol=_ALIKE[dtype])
    return pieces if is_mean else [[m] for m in microbatches]


def _batch(
    workload: Workload, corpus: Corpus, iteration: int, microbatches: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    model, size = trainable(workload.model), workload.microbatch_size
    pairs = [model.batch(corpus, workload.seed, iteration, m, size) for m in microbatches]
    if len(pairs) == 1:
        return pairs[0]
    inputs, targets = zip(*pairs, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def _loss(module: nn.Module, model: Model, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return model.loss(module(inputs), targets)


def _trained(
    workload: Workload, corpus: Corpus, counts: Sequence[int], lasts: Collection[int], pieces: Sequence[Sequence[int]]
) -> _Seen:
    """Train with the batch in these pieces, whose gradients are added up in their order; of each iteration so many
    microbatches, the first ones."""
    module, model = _layers(workload), trainable(workload.model)
    named, step = dict(module.named_parameters()), _STEPS[workload.optimizer.kind]
    momenta = {name: _Momenta() for name in named}
    seen = _Seen(begun=_copied(named))
    for iteration, count in enumerate(counts):
        module.zero_grad()
        total = 0.0
        for piece in filter(None, ([m for m in whole if m < count] for whole in pieces)):
            loss = _loss(module, model, *_batch(workload, corpus, iteration, piece)) * (len(piece) / count)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        gradients = {name: parameter.grad for name, parameter in named.items() if parameter.grad is not None}
        seen.losses.append(total)
        seen.norms.append(_norms(module))
        seen.gradients = _copied(gradients)
        if iteration == 0 and lasts:
            seen.kept[0, GRADIENT] = seen.gradients
        if iteration in lasts:
            seen.kept[iteration, IN_USE] = _copied(named)
        for name, gradient in gradients.items():
            with torch.no_grad():
                step(workload.optimizer, named[name], gradient, momenta[name])
        if lasts and (iteration == 0 or iteration in lasts):
            seen.kept[iteration, AFTER_STEP] = _copied(named)
    return seen


def _copied(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _norms(module: nn.Module) -> tuple[float, ...]:
    """Of every layer's gradients."""
    layers = [
        [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
        for layer in module.children()
    ]
    return tuple(math.sqrt(sum(squared(gradient) for gradient in layer)) for layer in layers)


def _adamw(spec: OptimizerSpec, weight: torch.Tensor, gradient: torch.Tensor, kept: _Momenta) -> None:
    """Loshchilov and Hutter 2019, algorithm 2, with the constants that torch has by default."""
    kept.steps += 1
    kept.first = 0.9 * kept.first + 0.1 * gradient
    kept.second = 0.999 * kept.second + 0.001 * gradient**2
    first, second = kept.first / (1 - 0.9**kept.steps), kept.second / (1 - 0.999**kept.steps)
    assert isinstance(second, torch.Tensor)
    weight -= spec.learning_rate * (first / (second.sqrt() + 1e-8) + 0.01 * weight)


def _sgd(spec: OptimizerSpec, weight: torch.Tensor, gradient: torch.Tensor, kept: _Momenta) -> None:
    """With a momentum of 0.9, as torch defines it (Sutskever et al. 2013, but for the learning rate's place)."""
    kept.first = 0.9 * kept.first + gradient
    weight -= spec.learning_rate * kept.first


_STEPS: Mapping[str, Callable[[OptimizerSpec, torch.Tensor, torch.Tensor, _Momenta], None]] = {
    "adamw": _adamw,
    "sgd": _sgd,
}


def _expected(seen: _Seen, rounded: _Seen) -> Iterator[Expected]:
    """Of all parameters that have a gradient; `rounded` is the same training with sums in another order."""
    for (iteration, what), tensors in seen.kept.items():
        others = rounded.kept[iteration, what]
        for name in seen.gradients:
            values = tensors[name].double()
            rounding, size, last_digit = float((values - others[name].double()).norm()), float(values.norm()), 0.0
            if what != GRADIENT:
                last_digit = (iteration + 1) * torch.finfo(tensors[name].dtype).eps * size
                size = float((values - seen.begun[name].double()).norm()) or size
            found = values.numel(), squared(values), projections(name, values)
            yield Expected(iteration, what, name, *found, size, rounding + last_digit, last_digit)
