"""What the byte-level GPT keeps of a microbatch between its forward and its last gradient, counted layer by layer."""

from __future__ import annotations

from typing import NamedTuple

from testbed.train.byte_model import INDEX_BYTES, LOSS_BYTES, VOCABULARY, MicrobatchBytes


class StageShape(NamedTuple):
    """A stage of the GPT."""

    blocks: int
    width: int
    hidden: int
    heads: int
    tokens: int
    """Of all samples of a microbatch."""
    sequence: int
    element_bytes: int
    first: bool
    last: bool
    degree: int = 1
    """Of tensor ranks."""


def kept(of: StageShape, *, recompute: bool) -> MicrobatchBytes:
    """Numbers kept for every token.

    A block's forward: two norms' outputs, attention's queries, keys, values and output, both sums of the residual
    (8 d); before and behind the GELU (2 f); mean and deviation of two norms (4), and attention's sums of exponentials
    (one a head). With `recompute` its output only. Its weight gradients: inputs (3 d + f) and gradients (5 d + f) of
    four products. What came in a message is its buffer's, and counted there.
    Each of them has its share of queries, keys, values and attention's output, of what is around the GELU, and of the
    gradients of queries, keys and values.
    """
    number, d, t = of.tokens * of.element_bytes, of.width, of.degree
    indexes, loss = of.tokens * INDEX_BYTES, of.tokens * INDEX_BYTES + LOSS_BYTES
    if recompute:
        forward = float(number * d * (of.blocks + of.first)) + of.first * indexes + of.last * loss
    else:
        forward = number * of.blocks * (4 * d + 4 + (4 * d + 2 * of.hidden + of.heads) / t)
        forward += of.first * number * d + of.first * (indexes + of.sequence * INDEX_BYTES)
        forward += of.last * (number * (d + VOCABULARY + 2) + loss)
    products = number * of.blocks * (4 * d + (4 * d + 2 * of.hidden) / t) + (not of.first) * number * d
    products += of.last * (number * (d + VOCABULARY) + loss)
    return MicrobatchBytes(float(forward), float(products))
