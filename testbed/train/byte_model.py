"""What models of bytes have in common: an embedding, `layers` layers, a projection, the loss of the next byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from testbed.spec.model import ModelSpec

if TYPE_CHECKING:
    import torch

    from testbed.train.data import Corpus


VOCABULARY = 256
"""Byte values."""
INDEX_BYTES = 8
"""Of a token, as torch counts."""
LOSS_BYTES = 16
"""Of the loss and what its mean is taken over."""


class MicrobatchBytes(NamedTuple):
    """Bytes of one microbatch on one stage."""

    after_forward: float
    """What the backward needs."""
    after_input_gradient: float
    """What the weight gradient needs."""


class ByteModel(ModelSpec):
    """A base of models; what lies between embedding and projection is spread evenly over the stages.

    The embedding comes with the first stage, the projection with the last.
    """

    if TYPE_CHECKING:  # fields of those that are derived
        d_model: int
        sequence: int

    def boundary_shape(self, microbatch_size: int) -> tuple[int, ...]:
        """Samples x tokens x d_model."""
        return (microbatch_size, self.sequence, self.d_model)

    def parameter_count(self) -> int:
        """All of them, embedding and projection included."""
        return self.stage_parameter_count(0, 1)

    def between(self, stage: int, n_stages: int) -> range:
        """The layers of a stage without embedding and projection, counted from 0."""
        return ModelSpec.stage_layers(self, stage, n_stages)

    def stage_layers(self, stage: int, n_stages: int) -> range:
        """Layer 0 is the embedding, layer `layers` + 1 the projection."""
        between = self.between(stage, n_stages)
        return range(between.start + (stage > 0), between.stop + 1 + (stage == n_stages - 1))

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of weights and what is sent."""
        import torch

        return torch.float32 if self.dtype == "float32" else torch.float64

    def batch(
        self, corpus: Corpus, seed: int, iteration: int, microbatch: int, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See model_protocol.Model: bytes, and the byte behind each; both int64 of shape (size, sequence)."""
        return corpus.batch(seed, iteration, microbatch, size, self.sequence)

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See model_protocol.Model: cross entropy of the next byte."""
        from testbed.train.gpt_layers import next_byte_loss

        return next_byte_loss(output, targets)
