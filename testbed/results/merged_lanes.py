"""Lanes of a large trace as a picture of points, where boxes would be too narrow to be seen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from testbed.trace.tables import Table, Trace

FINEST_POINTS = 1.0
"""A box that is narrower is not to be seen beside its border; 72 points are an inch."""

Colour = tuple[float, float, float]


def merged(
    trace: Trace,
    n_ranks: int,
    edges_s: NDArray[np.float64],
    colours: Mapping[tuple[int, int, int], Colour],
    idle: Colour,
) -> NDArray[np.float64]:
    """Per rank and span between two of `edges_s` the mean colour of what the rank does meanwhile: (ranks, spans, RGB).

    `colours` are by rank, stage and code of the kind of an action. White behind the end of the iteration.
    """
    spans_s = np.diff(edges_s)
    within = np.clip((float(trace.makespans()[0]) - edges_s[:-1]) / spans_s, 0.0, 1.0)
    picture = np.ones((n_ranks, len(spans_s), 3))
    picture += within[None, :, None] * (np.array(idle) - 1.0)
    actions = trace.actions
    for rank in np.unique(actions["rank"]).tolist():
        mine = actions[actions["rank"] == rank]
        for stage, code in np.unique(mine[["stage", "kind"]]).tolist():
            some = mine[(mine["stage"] == stage) & (mine["kind"] == code)]
            share = busy_shares(some, edges_s)
            picture[rank] += share[:, None] * (np.array(colours[rank, stage, code]) - np.array(idle))
    return np.clip(picture, 0.0, 1.0)


def busy_shares(actions: Table, edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of every span between two edges, the share that these actions of one rank take; none overlap."""
    order = np.argsort(actions["start_s"], kind="stable")
    begin, end = actions["start_s"][order], actions["end_s"][order]
    at = np.stack((begin, end), axis=1).reshape(-1)
    until = np.cumsum(end - begin)
    busy = np.stack((until - (end - begin), until), axis=1).reshape(-1)
    shares: NDArray[np.float64] = np.diff(np.interp(edges_s, at, busy)) / np.diff(edges_s)
    return shares
