"""The slots that a job's actions really take in one iteration: drawn by a key, so that nothing changes a draw.

The key of a draw is the workload's seed, the iteration, replica, pipeline rank, kind and microbatch, or what of it the
distribution has draws `each` for. No schedule is in it, nor what has been drawn before: every schedule meets the same
slots, in the model and in the lab. Tensor ranks of a stage share a draw, and so do the stages of a rank that has
several: each takes its share of the rank's whole slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.pipeline.ir import KINDS
from testbed.spec.slot_spread import Each, SlotSpread
from testbed.spec.workload import PACED_KINDS, PacedKind, Pacing, Workload

Floats = NDArray[np.float64]
Numbers = NDArray[np.uint64]

_NANOSECOND = 1e-9
"""Slots are whole numbers of these: what libraries of two machines differ by in the last digit is no other slot."""

_ANY = (1 << 32) - 1
"""In a key, in place of what the draw does not hang on."""

_KEYED_BY: dict[Each, tuple[str, ...]] = {
    "action": ("iteration", "replica", "rank", "kind", "microbatch"),
    "microbatch": ("iteration", "replica", "microbatch"),
    "iteration": ("iteration", "replica", "rank"),
    "rank": ("replica", "rank"),
}


class SlowerRank(NamedTuple):
    """A rank whose slots are longer, and in which rounds of a training."""

    replica: int
    pipeline_rank: int
    factor: float
    first: int
    """Round, warm-up counted."""
    end: int | None = None
    """The first round in which it is over; None: it stays."""

    def applies(self, iteration: int) -> bool:
        """Whether it is so in a round."""
        return self.first <= iteration and (self.end is None or iteration < self.end)


def slots_of(workload: Workload, stages: Sequence[int], iteration: int, slower: Sequence[SlowerRank] = ()) -> Floats:
    """Seconds that the actions of a paced workload take in an iteration: (replicas, stages, KINDS, microbatches).

    `stages` has the pipeline rank of every stage; a rank's stages share its slot equally. Where several say that a rank
    is `slower`, their factors are multiplied.
    """
    pacing, degrees = workload.pacing, workload.parallelism
    assert pacing is not None
    shape = degrees.data, degrees.pipeline, workload.microbatches
    factors = np.array(
        [[pacing.factor(replica, rank) for rank in range(degrees.pipeline)] for replica in range(degrees.data)]
    )
    for one in slower:
        if one.applies(iteration):
            factors[one.replica, one.pipeline_rank] *= one.factor
    again = 1.0 if workload.recompute else 0.0
    key = workload.seed, iteration
    drawn = {kind: _drawn(pacing, kind, key, factors, shape) for kind in ("F", "I", "W")}
    backward = drawn["I"] + drawn["W"] if pacing.B is None else _drawn(pacing, "B", key, factors, shape)
    of_kind = {
        "F": drawn["F"],
        "B": backward + again * drawn["F"],
        "I": drawn["I"] + again * drawn["F"],
        "W": drawn["W"],
    }
    of_ranks = np.stack([of_kind[kind] for kind in KINDS], axis=2)
    return of_ranks[:, list(stages)] / (len(stages) // degrees.pipeline)


def _drawn(
    pacing: Pacing, kind: PacedKind, key: tuple[int, int], factors: Floats, shape: tuple[int, int, int]
) -> Floats:
    """Seconds of one kind's slots: replicas, pipeline ranks, microbatches; the first two have `factors`, and `key` is
    seed and iteration."""
    medians = np.array([pacing.of(kind, rank) for rank in range(shape[1])])
    spread = pacing.spread(kind)
    of_median = np.ones(shape) if spread is None else _of_median(spread, kind, *key, shape)
    seconds: Floats = np.round(factors[:, :, None] * medians[:, None] * of_median / _NANOSECOND) * _NANOSECOND
    return seconds


def _of_median(spread: SlotSpread, kind: PacedKind, seed: int, iteration: int, shape: tuple[int, int, int]) -> Floats:
    """Drawn slots as shares of their median."""
    replicas, ranks, microbatches = shape
    numbers = {
        "iteration": np.full((1, 1, 1), iteration),
        "replica": np.arange(replicas)[:, None, None],
        "rank": np.arange(ranks)[None, :, None],
        "kind": np.full((1, 1, 1), PACED_KINDS.index(kind)),
        "microbatch": np.arange(microbatches)[None, None, :],
    }
    keyed_by = _KEYED_BY[spread.each]
    key = np.full((1, 1, 1), seed, np.uint64)
    for name, number in numbers.items():
        key = _mixed(key ^ _mixed((number if name in keyed_by else np.full((1, 1, 1), _ANY)).astype(np.uint64)))
    share = ((key >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    if spread.samples is not None:
        samples = np.sort(np.array(spread.samples)) / float(np.median(spread.samples))
        found = samples[(share * len(samples)).astype(np.int64)]
    else:
        sigmas = np.array([spread.sigma(rank) for rank in range(ranks)])
        found = np.exp(sigmas[None, :, None] * _normal(share))
    return np.broadcast_to(found, shape)


def _mixed(numbers: Numbers) -> Numbers:
    """Every number scattered over all of 64 bits (SplitMix64: Steele, Lea and Flood 2014, figure 17)."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _normal(shares: Floats) -> Floats:
    """The quantiles of a normal distribution."""
    from statistics import NormalDist  # slow to import, and most workloads draw nothing

    inverse = NormalDist().inv_cdf
    return np.array([inverse(share) for share in shares.ravel().tolist()]).reshape(shares.shape)
