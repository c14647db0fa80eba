"""FLOP and bytes of one pipeline rank of a model at full scale, each with where it comes from, and what fits HBM."""

from __future__ import annotations

from typing import NamedTuple

from testbed.errors import BadInput
from testbed.spec.full_scale_job import FullScale, ModelShape
from testbed.spec.workload import Workload
from testbed.units import show_size

NUMBER_BYTES = 2
"""Of a parameter, gradient or activation in BF16."""

OPTIMIZER_BYTES = 12
"""Adam in mixed precision keeps a float32 copy, momentum and variance of every parameter (Rajbhandari et al. 2020,
ZeRO, section 3.1)."""

ACTIVATION_BYTES = 34
"""Of a layer, per token and hidden unit, with sequence parallelism and selective recomputation (Korthikanti et al.
2022, Table 2); derived there for an MLP of 4 x hidden without a gate."""

MESSAGE_BUFFERS = 4
"""Boundary messages that a rank has room for: one in and one out, of activations and of gradients. Our assumption."""


class Flop(NamedTuple):
    """Of one microbatch."""

    forward: float
    input: float
    weight: float

    def plus(self, other: Flop, times: float = 1.0) -> Flop:
        """The sum with so many times another."""
        return Flop(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))


class RankShare(NamedTuple):
    """What a rank has of the model."""

    layers: int
    embedding: bool
    projection: bool


class Bytes(NamedTuple):
    """What each accelerator of a rank holds. Activations: of one microbatch in flight."""

    parameters: float
    gradients: float
    optimizer: float
    buffers: float
    activation: float

    @property
    def static(self) -> float:
        """All but activations."""
        return self.parameters + self.gradients + self.optimizer + self.buffers


def share(full: FullScale, rank: int, ranks: int) -> RankShare:
    """Layers are spread evenly over ranks, the first ones of the model on the first rank.

    With `ends_as_layers` embedding and projection count as a layer each (CrossPipe, section 7).
    """
    layers, ends = full.shape.layers, int(full.ends_as_layers)
    units = layers + 2 * ends
    begin, end = rank * units // ranks, (rank + 1) * units // ranks
    first, last = rank == 0, rank == ranks - 1
    return RankShare(end - begin - ends * (first + last), first, last)


def layer_flop(shape: ModelShape, samples: int, tokens: int) -> Flop:
    """One layer. A product of (m x k) and (k x n) takes 2 m k n; both of its gradients as much each.

    Attention is causal (half of the scores) and recomputed in the backward: two products forward, five backward, none
    of them in the weight gradient (Dao 2023, FlashAttention-2, section 4.1). The same counts give CrossPipe's forward
    of 109 ms (Appendix E).
    """
    width, rows = shape.hidden, samples * tokens
    scores = samples * tokens**2 * width
    projections = 4 * rows * width**2 * (1 + shape.key_heads / shape.heads)
    perceptron = (6 if shape.gated else 4) * rows * width * shape.inner
    products = projections + perceptron
    return Flop(2 * scores + products, 5 * scores + products, products)


def projection_flop(shape: ModelShape, samples: int, tokens: int) -> Flop:
    """To the vocabulary."""
    product = 2.0 * samples * tokens * shape.hidden * shape.vocabulary
    return Flop(product, product, product)


def stage_flop(full: FullScale, rank: int, ranks: int) -> Flop:
    """A rank's whole share of one microbatch, over all of its accelerators."""
    mine, shape = share(full, rank, ranks), full.shape
    total = Flop(0.0, 0.0, 0.0).plus(layer_flop(shape, full.microbatch_size, full.sequence), mine.layers)
    if mine.projection:
        total = total.plus(projection_flop(shape, full.microbatch_size, full.sequence))
    return total


def seconds(full: FullScale, flop: float) -> float:
    """T = FLOP / (peak x efficiency x accelerators) (CrossPipe, Appendix E: T_layer = C_layer / (P_GPU n_TP))."""
    return flop / (full.accelerator.flops * full.efficiency * full.tensor)


def layer_parameters(shape: ModelShape) -> int:
    """Attention 2 d^2 (1 + kv/heads), MLP 2 or 3 d f, norms; biases where the MLP has no gate."""
    width = shape.hidden
    attention = 2 * width**2 + 2 * width**2 * shape.key_heads // shape.heads
    if shape.gated:
        return attention + 3 * width * shape.inner + 2 * width
    biases = 4 * width + shape.inner + width
    return attention + 2 * width * shape.inner + biases + 4 * width


def stage_parameters(full: FullScale, rank: int, ranks: int) -> int:
    """Of a rank, over all of its accelerators. A tied matrix is on the first and on the last rank of several."""
    mine, shape = share(full, rank, ranks), full.shape
    count = mine.layers * layer_parameters(shape)
    if mine.embedding:
        count += (shape.vocabulary + shape.positions) * shape.hidden
    if mine.projection:
        count += (1 if shape.gated else 2) * shape.hidden
        if not (shape.tied and mine.embedding):
            count += shape.vocabulary * shape.hidden
    return count


def message_bytes(full: FullScale, pipelines: int) -> float:
    """Of a boundary message of one lab rank: 2 b s d, for all full-scale pipelines that it stands for.

    CrossPipe, section 7.1: b s d n_DP 2, the boundary traffic of all pipelines on one link.
    """
    rows = full.microbatch_size * full.sequence
    return float(NUMBER_BYTES * rows * full.shape.hidden * (full.data // pipelines))


def gradient_bytes(full: FullScale, rank: int, ranks: int) -> float:
    """Of a rank's gradients, as many as of its parameters: what pipelines exchange (CrossPipe, Appendix E: BF16)."""
    return float(NUMBER_BYTES * stage_parameters(full, rank, ranks))


def activation_bytes(full: FullScale, rank: int, ranks: int) -> float:
    """Of one microbatch in flight on each accelerator of a rank: 34 s b h a layer, and 4 s b (h + v) for the projection
    with its loss, over the accelerators (Korthikanti et al. 2022, Table 2 and section 4.3).
    """
    mine, shape, rows = share(full, rank, ranks), full.shape, full.microbatch_size * full.sequence
    ends = 4 * rows * (shape.hidden + shape.vocabulary) if mine.projection else 0
    return (ACTIVATION_BYTES * rows * shape.hidden * mine.layers + ends) / full.tensor


def rank_bytes(full: FullScale, rank: int, ranks: int) -> Bytes:
    """What each accelerator of a rank holds: 2 + 2 + 12 bytes a parameter, optimizer states over all pipelines (ZeRO-1;
    Rajbhandari et al. 2020, section 3.1), all of it over the accelerators.
    """
    parameters = stage_parameters(full, rank, ranks) / full.tensor
    buffers = MESSAGE_BUFFERS * message_bytes(full, full.data) / full.tensor if ranks > 1 else 0.0
    return Bytes(
        NUMBER_BYTES * parameters,
        NUMBER_BYTES * parameters,
        OPTIMIZER_BYTES * parameters / full.data,
        buffers,
        activation_bytes(full, rank, ranks),
    )


def memory_caps(workload: Workload) -> list[float] | None:
    """Per rank, how many microbatches in flight its HBM holds beside all else; None without full scale.

    Raises BadInput where that leaves no room for one.
    """
    if workload.full_scale is None:
        return None
    full, ranks = workload.full_scale, workload.parallelism.pipeline
    found = []
    for rank in range(ranks):
        held = rank_bytes(full, rank, ranks)
        room = full.accelerator.memory - held.static
        if room < held.activation:
            expected = f"at least {show_size(held.static + held.activation)}: on each accelerator of rank {rank} "
            expected += f"parameters, gradients, optimizer states and message buffers take {show_size(held.static)}, "
            expected += f"a microbatch {show_size(held.activation)}"
            raise BadInput.of(
                workload.name, "full_scale.accelerator.memory", show_size(full.accelerator.memory), expected
            )
        found.append(room / held.activation)
    return found


def hbm_words(workload: Workload, asked: float | None) -> str:
    """For the reason why a schedule does not fit: what HBM holds, where it holds less than was asked for; else ""."""
    full, caps = workload.full_scale, memory_caps(workload)
    if full is None or caps is None:
        return ""
    ranks = workload.parallelism.pipeline
    limits = [asked] * ranks if asked is not None else workload.memory_limits()
    rank = min(range(ranks), key=caps.__getitem__)
    if all(cap >= limit for cap, limit in zip(caps, limits, strict=True)):
        return ""
    held = rank_bytes(full, rank, ranks)
    hbm, each = show_size(full.accelerator.memory), show_size(held.activation)
    return f" (HBM: of {hbm} on rank {rank} {show_size(held.static)} are taken, so {caps[rank]:.3g} x {each} fit)"
