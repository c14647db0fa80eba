"""A small byte-level GPT, as a list of layers that can be cut into pipeline stages anywhere."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from testbed.spec.workload import ModelSpec
from testbed.train.split import GradientStore, SplitLinear

VOCABULARY = 256
_INIT_STD = 0.02


class Embedding(nn.Module):
    """Byte and position embeddings: (batch, sequence) int64 -> (batch, sequence, d_model)."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, spec.d_model, dtype=dtype)
        self.position = nn.Embedding(spec.sequence, spec.d_model, dtype=dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed a batch of byte values."""
        positions = torch.arange(tokens.shape[1])
        result: torch.Tensor = self.token(tokens) + self.position(positions)
        return result


class Block(nn.Module):
    """A pre-norm transformer block; (batch, sequence, d_model) in and out."""

    def __init__(self, spec: ModelSpec, store: GradientStore, dtype: torch.dtype) -> None:
        super().__init__()
        width = spec.d_model
        hidden = spec.d_ff or 4 * width
        self.heads = spec.heads
        self.attention_norm = nn.LayerNorm(width, dtype=dtype)
        self.qkv = SplitLinear(width, 3 * width, store, dtype=dtype)
        self.attention_out = SplitLinear(width, width, store, dtype=dtype)
        self.mlp_norm = nn.LayerNorm(width, dtype=dtype)
        self.mlp_in = SplitLinear(width, hidden, store, dtype=dtype)
        self.mlp_out = SplitLinear(hidden, width, store, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal self-attention, then a two-layer perceptron, both with a residual."""
        batch, sequence, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, sequence, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, sequence, width))
        result: torch.Tensor = x + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x))))
        return result


class Head(nn.Module):
    """Final norm and projection to the vocabulary: (batch, sequence, d_model) -> (batch, sequence, 256)."""

    def __init__(self, spec: ModelSpec, store: GradientStore, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.d_model, dtype=dtype)
        self.projection = SplitLinear(spec.d_model, VOCABULARY, store, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte."""
        result: torch.Tensor = self.projection(self.norm(x))
        return result


def layer_range(n_layers: int, stage: int, n_stages: int) -> range:
    """The transformer blocks of a stage: an even, contiguous share."""
    return range(stage * n_layers // n_stages, (stage + 1) * n_layers // n_stages)


def build_stage(spec: ModelSpec, stage: int, n_stages: int, seed: int, store: GradientStore) -> nn.ModuleList:
    """The layers of one stage; the first also embeds, the last also projects to the vocabulary.

    Every layer draws its weights from its own seed, so they do not depend on how the model is cut.
    """
    dtype = torch.float32 if spec.dtype == "float32" else torch.float64
    layers = nn.ModuleList()
    if stage == 0:
        layers.append(_initialised(Embedding(spec, dtype), seed, 0))
    for index in layer_range(spec.layers, stage, n_stages):
        layers.append(_initialised(Block(spec, store, dtype), seed, 1 + index))
    if stage == n_stages - 1:
        layers.append(_initialised(Head(spec, store, dtype), seed, 1 + spec.layers))
    return layers


def _initialised(layer: nn.Module, seed: int, index: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() > 1:
                # drawn in double precision, so that a float32 and a float64 model start alike
                values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(values * _INIT_STD)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return layer
