"""A model of one's own: bytes embedded, perceptrons with a residual, a projection. Imports torch only to train."""

from pydantic import Field

from testbed.spec.model import ModelSpec


class Mlp(ModelSpec):
    """Layer 0 embeds, the last one projects; what lies between looks at one byte at a time."""

    width: int = Field(default=32, ge=1, le=4096)
    sequence: int = Field(default=16, ge=2, le=4096)

    def boundary_shape(self, microbatch_size):
        return (microbatch_size, self.sequence, self.width)

    def parameter_count(self):
        return sum(map(self._layer_parameters, range(self.layers)))

    def stage_parameter_count(self, stage, n_stages):
        return sum(map(self._layer_parameters, self.stage_layers(stage, n_stages)))

    def _layer_parameters(self, index):
        if index == 0:
            return 256 * self.width
        return (self.width + 1) * (256 if index == self.layers - 1 else self.width)

    def layer(self, index):
        from torch import nn

        class Residual(nn.Sequential):
            def forward(self, x):
                return x + super().forward(x)

        if index == 0:
            return nn.Embedding(256, self.width)
        if index == self.layers - 1:
            return nn.Linear(self.width, 256)
        return Residual(nn.Linear(self.width, self.width), nn.GELU())

    def batch(self, corpus, seed, iteration, microbatch, size):
        return corpus.batch(seed, iteration, microbatch, size, self.sequence)

    def loss(self, output, targets):
        from torch.nn.functional import cross_entropy

        return cross_entropy(output.flatten(0, 1), targets.flatten())
