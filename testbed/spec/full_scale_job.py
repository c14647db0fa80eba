"""What a workload stands for at full scale: a large model on accelerators, of which the lab runs a reduced one."""

from __future__ import annotations

import math
from bisect import bisect
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from testbed.errors import listed
from testbed.spec.document import FieldError, StrictModel
from testbed.spec.quantity import flop_per_second, seconds, size_bytes


class ModelShape(StrictModel):
    """A decoder-only transformer, as far as FLOP and bytes depend on it."""

    hidden: int = Field(ge=64, le=1_000_000, description="d, the width of a layer's input")
    layers: int = Field(ge=1, le=10_000, description="transformer blocks")
    heads: int = Field(ge=1, le=10_000, description="of attention")
    kv_heads: int | None = Field(default=None, ge=1, description="of keys and values; default: as many as heads")
    ffn: int | None = Field(default=None, ge=1, le=10_000_000, description="width inside the MLP; default 4 x hidden")
    gated: bool = Field(default=False, description="three matrices in the MLP and no biases (Llama), not two (GPT)")
    vocabulary: int = Field(ge=1, le=10_000_000, description="rows of the embedding")
    positions: int = Field(default=0, ge=0, le=10_000_000, description="learned position embeddings; 0: rotary")
    tied: bool = Field(default=False, description="whether the projection to the vocabulary is the embedding's matrix")

    @model_validator(mode="after")
    def _divisible(self) -> ModelShape:
        if self.hidden % self.heads:
            raise FieldError("heads", self.heads, f"a divisor of hidden ({self.hidden})")
        if self.heads % self.key_heads:
            raise FieldError("kv_heads", self.kv_heads, f"a divisor of heads ({self.heads})")
        return self

    @property
    def key_heads(self) -> int:
        """Heads of keys, and of values."""
        return self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        """Width inside the MLP."""
        return self.ffn or 4 * self.hidden


SHAPES = {
    "llama2-13b": ModelShape(hidden=5120, layers=40, heads=40, ffn=13824, gated=True, vocabulary=32000),
    "llama2-70b": ModelShape(hidden=8192, layers=80, heads=64, kv_heads=8, ffn=28672, gated=True, vocabulary=32000),
    "gpt3-175b": ModelShape(hidden=12288, layers=96, heads=96, vocabulary=50257, positions=2048, tied=True),
    "llama3-405b": ModelShape(
        hidden=16384, layers=126, heads=128, kv_heads=8, ffn=53248, gated=True, vocabulary=128256
    ),
}
"""Published shapes, from SHAPE_SOURCES."""

SHAPE_SOURCES = {
    "llama2-13b": "Touvron et al. 2023, released configuration",
    "llama2-70b": "Touvron et al. 2023, released configuration",
    "gpt3-175b": "Brown et al. 2020, Table 2.1",
    "llama3-405b": "Grattafiori et al. 2024, Table 3",
}


def _known_shape(value: object) -> object:
    if isinstance(value, str) and value not in SHAPES:
        raise ValueError(f"one of {listed(SHAPES)}, or a mapping with hidden, layers, heads, vocabulary")
    return value


class Known(StrictModel):
    """A point of a curve of efficiency."""

    tokens: int = Field(ge=1, le=10**12, description="of a microbatch")
    share: float = Field(gt=0, le=1, description="of the peak, as measured for these tokens and this shape")


_SHARE = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
"""What the validator below asks of one number, for JSON Schema."""


class Accelerator(StrictModel):
    """One accelerator."""

    flops: Annotated[float, flop_per_second(1e9, 1e18)] = Field(description="peak, of the precision that trains")
    efficiency: Annotated[float, WithJsonSchema(_SHARE)] | list[Known] = Field(
        description="share of the peak that matrix products reach; or a curve, {tokens, share}"
    )
    memory: Annotated[float, size_bytes(1e6, 1e15)] = Field(description="HBM")

    @model_validator(mode="after")
    def _ascending(self) -> Accelerator:
        if isinstance(self.efficiency, float):
            if not 0 < self.efficiency <= 1:
                raise FieldError("efficiency", self.efficiency, "at most 1" if self.efficiency > 1 else "above 0")
        else:
            tokens = [known.tokens for known in self.efficiency]
            if not tokens or tokens != sorted(set(tokens)):
                raise FieldError("efficiency", tokens, "a share, or a list of {tokens, share} by ascending tokens")
        return self

    def efficiency_at(self, tokens: int) -> float:
        """Of microbatches of so many tokens: on straight lines over log(tokens), level beyond a curve's ends."""
        if isinstance(self.efficiency, float):
            return self.efficiency
        place = bisect([known.tokens for known in self.efficiency], tokens)
        if place in (0, len(self.efficiency)):
            return self.efficiency[max(0, place - 1)].share
        low, high = self.efficiency[place - 1 : place + 1]
        part = math.log(tokens / low.tokens) / math.log(high.tokens / low.tokens)
        return low.share + (high.share - low.share) * part


class FullScale(StrictModel):
    """A training job at full scale. `parallelism.pipeline` ranks in every pipeline, each of `tensor` accelerators."""

    model: Annotated[
        Annotated[str, WithJsonSchema({"enum": list(SHAPES)})] | ModelShape, BeforeValidator(_known_shape)
    ] = Field(description="a published shape, or one")
    accelerator: Accelerator = Field(description="what every rank of the full job computes on")
    tensor: int = Field(default=1, ge=1, le=1024, description="accelerators that share a stage: one rank of the lab")
    data: int = Field(default=1, ge=1, le=65536, description="pipelines; those beyond parallelism.data share links")
    sequence: int = Field(ge=1, le=100_000_000, description="tokens per sample")
    microbatch_size: int = Field(default=1, ge=1, le=65536, description="samples in a microbatch")
    global_batch: int = Field(ge=1, le=1_000_000_000, description="samples of an iteration, over all pipelines")
    ends_as_layers: bool = Field(
        default=False, description="embedding and projection count as a layer each where layers are spread over stages"
    )

    @property
    def shape(self) -> ModelShape:
        """Of the model."""
        return SHAPES[self.model] if isinstance(self.model, str) else self.model

    @model_validator(mode="after")
    def _whole_microbatches(self) -> FullScale:
        step = self.data * self.microbatch_size
        if self.global_batch % step:
            expected = f"a multiple of {step} (data x microbatch_size)"
            raise FieldError("global_batch", self.global_batch, expected)
        if math.gcd(self.tensor, self.shape.heads) != self.tensor:
            raise FieldError("tensor", self.tensor, f"a divisor of the model's {self.shape.heads} heads")
        return self

    @property
    def efficiency(self) -> float:
        """Of the accelerator, with this job's microbatches."""
        return self.accelerator.efficiency_at(self.microbatch_size * self.sequence)

    @property
    def microbatches(self) -> int:
        """Of every pipeline in an iteration."""
        return self.global_batch // (self.data * self.microbatch_size)


class LabScale(StrictModel):
    """How large a workload at full scale is in the lab."""

    slot: Annotated[float, seconds(1e-4, 60)] = Field(
        default=0.02, description="forward of the slowest stage", json_schema_extra={"default": "20 ms"}
    )
    message: Annotated[float, size_bytes(1000, 1e9)] = Field(
        default=70e3, description="bytes of a boundary message", json_schema_extra={"default": "70 kB"}
    )
