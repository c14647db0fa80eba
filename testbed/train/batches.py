"""The microbatches of a training, into however many its batch is cut: together always the same samples."""

from __future__ import annotations

from typing import NamedTuple

import torch

from testbed.spec.workload import Workload
from testbed.train.data import Corpus
from testbed.train.model_protocol import Model


class Cut(NamedTuple):
    """A microbatch of a replica's share of the batch."""

    replica: int
    number: int
    of: int
    """Into how many that share is cut."""


def microbatch(
    workload: Workload, model: Model, corpus: Corpus, iteration: int, cut: Cut
) -> tuple[torch.Tensor, torch.Tensor]:
    """Its inputs and targets: samples of the workload's own microbatches, in their order."""
    own, size = workload.microbatches, workload.microbatch_size
    each = own * size // cut.of
    begin, end = cut.number * each, (cut.number + 1) * each
    drawn = range(begin // size, (end - 1) // size + 1)
    pairs = [model.batch(corpus, workload.seed, iteration, cut.replica * own + number, size) for number in drawn]
    if cut.of == own:
        return pairs[0]
    inputs, targets = zip(*pairs, strict=True)
    mine = slice(begin - drawn.start * size, end - drawn.start * size)
    return torch.cat(inputs)[mine], torch.cat(targets)[mine]
