"""What is best for who knows what will happen: the schedules to run one after the other, swaps paid for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def best_sequence(seconds: NDArray[np.floating[Any]], swaps_s: Sequence[NDArray[np.floating[Any]]]) -> list[int]:
    """The least sum, by dynamic programming; `seconds` is of shape (spans, candidates).

    Per span the candidate that runs in it. Before the first one that with number 0 runs; a swap from one to another
    before a span costs what its `swaps_s` have in that row and column.
    """
    spans, candidates = seconds.shape
    total = np.full(candidates, np.inf)
    total[:1] = 0.0
    came = np.empty((spans, candidates), dtype=np.int64)
    for span in range(spans):
        swapped = total[:, None] + swaps_s[span]
        from_best = swapped.argmin(axis=0)
        least = swapped[from_best, np.arange(candidates)]
        came[span] = np.where(least < total, from_best, np.arange(candidates))
        total = np.minimum(total, least) + seconds[span]
    which, chosen = int(total.argmin()), list[int]()
    for span in reversed(range(spans)):
        chosen.append(which)
        which = int(came[span, which])
    return chosen[::-1]
