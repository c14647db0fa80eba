"""The layers of the byte-level GPT."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from testbed.train.byte_model import VOCABULARY
from testbed.train.tensor import TensorShare

_INIT_STD = 0.02


class Embedding(nn.Module):
    """Byte and position embeddings: (batch, sequence) int64 -> (batch, sequence, d_model)."""

    def __init__(self, width: int, sequence: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width, dtype=dtype)
        self.position = nn.Embedding(sequence, width, dtype=dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed a batch of byte values."""
        positions = torch.arange(tokens.shape[1])
        result: torch.Tensor = self.token(tokens) + self.position(positions)
        return result


class Block(nn.Module):
    """A pre-norm transformer block; (batch, sequence, d_model) in and out."""

    def __init__(self, width: int, hidden: int, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_width = width // heads
        self.share: TensorShare | None = None
        self.attention_norm = nn.LayerNorm(width, dtype=dtype)
        self.qkv = nn.Linear(width, 3 * width, bias=False, dtype=dtype)
        self.attention_out = nn.Linear(width, width, bias=False, dtype=dtype)
        self.mlp_norm = nn.LayerNorm(width, dtype=dtype)
        self.mlp_in = nn.Linear(width, hidden, bias=False, dtype=dtype)
        self.mlp_out = nn.Linear(hidden, width, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal self-attention, then a two-layer perceptron, both with a residual."""
        batch, sequence, _ = x.shape
        qkv = self.qkv(self._spread(self.attention_norm(x))).view(batch, sequence, 3, -1, self.head_width)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self._joined(self.attention_out(attended.transpose(1, 2).reshape(batch, sequence, -1)))
        return x + self._joined(self.mlp_out(functional.gelu(self.mlp_in(self._spread(self.mlp_norm(x))))))

    def _spread(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.share is None else self.share.spread(x)

    def _joined(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.share is None else self.share.joined(x)


def split_block(block: Block, share: TensorShare) -> Block:
    """The same block with one tensor rank's share of its heads and of the MLP's hidden units."""
    block.share = share
    share.split_outputs(block.qkv, groups=3)  # queries, keys and values one after the other, heads within each
    share.split_inputs(block.attention_out)
    share.split_outputs(block.mlp_in)
    share.split_inputs(block.mlp_out)
    return block


class Head(nn.Module):
    """Final norm and projection to the vocabulary: (batch, sequence, d_model) -> (batch, sequence, 256)."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.projection = nn.Linear(width, VOCABULARY, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte."""
        result: torch.Tensor = self.projection(self.norm(x))
        return result


def initialise(layer: nn.Module) -> nn.Module:
    """Draw a layer's weights from the seed that torch's generator has been given for it; returns the layer."""
    # a generator of its own: what constructors have drawn already does not matter
    generator = torch.Generator().manual_seed(torch.initial_seed())
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() > 1:
                # drawn in double precision, so that a float32 and a float64 model start alike
                values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(values * _INIT_STD)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return layer


def next_byte_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of logits (batch, sequence, 256) against byte values (batch, sequence)."""
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
