"""A chain of linear layers: as little arithmetic as a pipeline can train. Imports torch only to train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from testbed.train.byte_model import INDEX_BYTES, LOSS_BYTES, VOCABULARY, ByteModel, MicrobatchBytes

if TYPE_CHECKING:
    from torch import nn


class LinearChain(ByteModel):
    """Bytes embedded, `layers` square matrices one after the other, a projection; every token for itself.

    Matrices are spread evenly over the stages; the embedding comes with the first, the projection with the last.
    """

    d_model: int = Field(ge=1, le=8192, description="width of a layer's input")
    sequence: int = Field(ge=1, le=8192, description="tokens per sample")

    def stage_parameter_count(self, stage: int, n_stages: int) -> int:
        """d^2 a matrix; 256 d each of embedding and projection, at the ends."""
        ends = (stage == 0) + (stage == n_stages - 1)
        return len(self.between(stage, n_stages)) * self.d_model**2 + ends * VOCABULARY * self.d_model

    def activation_bytes(
        self, stage: int, n_stages: int, microbatch_size: int, *, recompute: bool, degree: int
    ) -> MicrobatchBytes:
        """Every layer's output, the loss's probabilities; then inputs and gradients of the outputs of all products."""
        first, last, matrices = stage == 0, stage == n_stages - 1, len(self.between(stage, n_stages))
        tokens = microbatch_size * self.sequence
        number, loss = tokens * self.element_bytes, tokens * INDEX_BYTES + LOSS_BYTES
        forward = number * self.d_model * (matrices + first) + first * tokens * INDEX_BYTES + last * loss
        if not recompute:
            forward += last * number * VOCABULARY
        products = number * 2 * self.d_model * matrices + last * (number * (self.d_model + VOCABULARY) + loss)
        return MicrobatchBytes(float(forward), float(products))

    def layer(self, index: int) -> nn.Module:
        """See model_protocol.Model. A matrix begins near the identity, so that gradients reach the first stage."""
        import torch
        from torch import nn

        from testbed.train.gpt_layers import initialise

        dtype = self.torch_dtype
        if index == 0:
            return initialise(nn.Embedding(VOCABULARY, self.d_model, dtype=dtype))
        if index > self.layers:
            return initialise(nn.Linear(self.d_model, VOCABULARY, bias=False, dtype=dtype))
        matrix = nn.Linear(self.d_model, self.d_model, bias=False, dtype=dtype)
        initialise(matrix)
        with torch.no_grad():
            matrix.weight += torch.eye(self.d_model, dtype=dtype)
        return matrix
