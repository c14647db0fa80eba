"""The byte-level GPT that is trained unless a workload names another model. Imports torch only to train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from testbed.spec.document import FieldError
from testbed.train.byte_model import VOCABULARY, ByteModel, MicrobatchBytes
from testbed.train.gpt_memory import StageShape, kept

if TYPE_CHECKING:
    from torch import nn

    from testbed.train.tensor import TensorShare


class Gpt(ByteModel):
    """An embedding, `layers` pre-norm transformer blocks, a projection; vocabulary: the 256 byte values.

    Blocks are spread evenly over the stages; the embedding comes with the first, the projection with the last.
    """

    d_model: int = Field(ge=8, le=8192, description="width of a layer's input")
    heads: int = Field(ge=1, le=128, description="of attention")
    d_ff: int | None = Field(default=None, ge=8, le=65536, description="default 4 x d_model")
    sequence: int = Field(ge=2, le=8192, description="tokens per sample")

    @model_validator(mode="after")
    def _divisible(self) -> Gpt:
        if self.d_model % self.heads:
            raise FieldError("heads", self.heads, f"a divisor of d_model ({self.d_model})")
        return self

    def stage_parameter_count(self, stage: int, n_stages: int) -> int:
        """Per block 4 d^2 (attention) + 2 d d_ff (MLP) + 4 d (norms); embedding and projection at the ends."""
        return self.rank_parameter_count(stage, n_stages, 1)

    def rank_parameter_count(self, stage: int, n_stages: int, degree: int) -> int:
        """Tensor ranks share attention and MLP; each of them has all of norms, embedding and projection."""
        width, blocks = self.d_model, self.between(stage, n_stages)
        count = len(blocks) * ((4 * width**2 + 2 * width * self._hidden) // degree + 4 * width)
        if stage == 0:
            count += (VOCABULARY + self.sequence) * width
        if stage == n_stages - 1:
            count += (VOCABULARY + 2) * width
        return count

    def check_tensor_degree(self, degree: int) -> None:
        """Attention is split by heads, the MLP by the units of its hidden layer."""
        for name, count in (("heads", self.heads), ("d_ff", self._hidden)):
            if count % degree:
                raise FieldError("parallelism.tensor", degree, f"a divisor of model.{name} ({count})")

    def forward_reductions(self, stage: int, n_stages: int) -> int:
        """One behind the attention and one behind the MLP of every block (Shoeybi et al. 2019, section 3)."""
        return 2 * len(self.between(stage, n_stages))

    def activation_bytes(
        self, stage: int, n_stages: int, microbatch_size: int, *, recompute: bool, degree: int
    ) -> MicrobatchBytes:
        """As counted in gpt_memory.py."""
        first, last = stage == 0, stage == n_stages - 1
        blocks = len(self.between(stage, n_stages))
        tokens = microbatch_size * self.sequence
        shape = StageShape(
            blocks,
            self.d_model,
            self._hidden,
            self.heads,
            tokens,
            self.sequence,
            self.element_bytes,
            first,
            last,
            degree,
        )
        return kept(shape, recompute=recompute)

    @property
    def _hidden(self) -> int:
        return self.d_ff or 4 * self.d_model

    def layer(self, index: int) -> nn.Module:
        """See model_protocol.Model."""
        from testbed.train.gpt_layers import Block, Embedding, Head, initialise

        dtype = self.torch_dtype
        if index == 0:
            return initialise(Embedding(self.d_model, self.sequence, dtype))
        if index > self.layers:
            return initialise(Head(self.d_model, dtype))
        return initialise(Block(self.d_model, self._hidden, self.heads, dtype))

    def split(self, layer: nn.Module, share: TensorShare) -> nn.Module:
        """See model_protocol.SplitModel: blocks are split; every tensor rank has all of embedding and projection."""
        from testbed.train.gpt_layers import Block, split_block

        return split_block(layer, share) if isinstance(layer, Block) else layer
