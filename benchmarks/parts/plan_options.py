"""Options of topology, workload and command, and which of them exclude each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parts.covering_array import Options, Row
from testbed.schedule.registry import FAMILIES

MOST_RANKS = 12

OPTIONS: Options = {
    "schedule": tuple(name for name, known in FAMILIES.items() if not known.solver),
    "network": ("chain", "ring", "star", "parallel", "clos"),
    "sites": (2, 3, 5),
    "directions": ("equal", "unlike", "far apart"),
    "cards": (None, "equal", "unequal"),
    "policy": (
        None,
        "ecmp",
        "greedy",
        "greedy-bytes",
        "greedy-time",
        "annealing",
        "joint,evaluations=150",
        "interleave,within=0.3",
    ),
    "enforce": (None, "ports"),
    "event": (None, "lose", "arrive", "depart"),
    "jobs": (1, 2, 3),
    "alone": (False, True),
    "pipeline": (1, 2, 3, 4),
    "data": (1, 2, 3),
    "tensor": (1, 2, 4),
    "exchange": ("zero-1 ring", "none ring", "zero-1 hierarchical", "none hierarchical"),
    "placement": ("contiguous", "scattered"),
    "receives": ("early", "late"),
    "recompute": (False, True),
    "microbatches": ("one", "fewer than ranks", "odd", "even"),
    "message": ("tensor", "small", "middle", "large"),
    "slots": ("equal", "unequal", "fused B", "no W"),
    "memory": ("default", "ample", "per rank"),
    "model": ("gpt float32", "gpt float64", "my_model.py"),
    "optimizer": ("adamw", "sgd"),
    "queue": (False, True),
    "happens": (None, "rate", "delay", "outage", "slower rank"),
    "varying": (None, "action", "microbatch", "samples", "factors"),
    "rounds": ("together", "free"),
    "traffic": (None, "steady", "changing"),
    "adapt": (None, "schedules", "microbatches"),
    "fails": (False, True),
    "streams": (1, 3),
    "shaper": ("auto", "relay"),
}
LATER: Options = {
    **OPTIONS,
    "schedule": ("gpipe", "1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "geopipe", "pipemorph", "crosspipe-greedy"),
    "fails": (None, "neighbour", "elastic", "cuts"),
    "adapt": (None, "routes", "stages", "starts"),
}
"""What was built after those above, beside them: states in a neighbour's memory, a job that goes on with the replicas
that are left, datacenters cut off; a controller that may choose routes (and looks at those that it has left), move
stages, or shift the starts of jobs."""

BY_CHANCE: Options = {
    **LATER,
    "happens": (*OPTIONS["happens"], "loss", "jitter"),
    "wire": (None, "loss", "jitter"),
}
"""With links that lose packets or have jitter, from the beginning or for a while. The model leaves that out, so none of
these stands for other pairs."""

NEW = {"fails": {"neighbour", "elastic", "cuts"}, "adapt": {"routes", "stages", "starts"}}
CHANCE = {"happens": {"loss", "jitter"}, "wire": {"loss", "jitter"}}
"""What each has that the one before it has not."""

EVERY: Options = {
    name: (*OPTIONS.get(name, ()), *(value for value in values if value not in OPTIONS.get(name, ())))
    for name, values in BY_CHANCE.items()
}
"""The values of all."""

SIMPLE: Row = {
    **{name: values[0] for name, values in BY_CHANCE.items()},
    "schedule": "1f1b",
    "network": "ring",
    "sites": 3,
    "pipeline": 2,
    "microbatches": "even",
    "message": "middle",
    "memory": "ample",
}
"""A plan with nothing special."""

NEEDS: dict[str, Row] = {
    "event=arrive": {"jobs": 2},
    "event=depart": {"jobs": 2},
    "alone=True": {"jobs": 2},
    "enforce=ports": {"network": "clos"},
    "fails=elastic": {"data": 2},
    "adapt=starts": {"jobs": 2},
}
"""What a value needs beside it, by option and value."""


def impossible(row: Row) -> bool:
    """Whether no files have these options together, or their plan were too large."""
    ranks = row.get("pipeline", 1) * row.get("data", 1) * row.get("tensor", 1)
    alone = ranks == 1 and {"pipeline", "data", "tensor"} <= row.keys()
    clos = row.get("network") == "clos"
    return any(
        (
            ranks + 2 * (row.get("jobs", 1) - 1) > MOST_RANKS,
            row.get("network") == "ring" and row.get("sites") == 2,
            clos and row.get("cards") == "unequal",
            # links of a Clos have one rate and one delay, and no names of their own that an event could have
            clos and (row.get("wire") or row.get("happens") in ("rate", "delay", "outage", "loss", "jitter")),
            clos and row.get("traffic"),
            # one rank has nobody whose memory it could use
            row.get("fails") == "neighbour" and alone,
        )
    )


def refused(row: Row) -> bool:
    """Whether the command says that some of these options may not stand together."""
    event, fails, adapt, jobs = row.get("event"), row.get("fails"), row.get("adapt"), row.get("jobs")
    ports, several = row.get("enforce") == "ports", (jobs or 1) > 1
    drawn = row.get("varying") in ("action", "microbatch", "samples")
    return any(
        (
            event in ("arrive", "depart") and jobs == 1,
            event == "lose" and row.get("network") in ("chain", "star"),
            row.get("alone") and (jobs == 1 or event is not None),
            ports and row.get("network") not in (None, "clos"),
            row.get("model") == "my_model.py" and row.get("tensor", 1) > 1,
            event is not None and str(row.get("policy")).startswith(("joint", "interleave")),
            row.get("traffic") and ports,
            row.get("streams", 1) > 1 and ports,
            row.get("rounds") == "free" and any(row.get(n) for n in ("event", "alone", "happens", "adapt", "fails")),
            adapt and (row.get("alone") or event or fails),
            adapt and adapt != "starts" and several,
            adapt == "starts" and jobs == 1,
            adapt == "routes" and (ports or row.get("network") in ("chain", "star")),  # one route alone
            fails and (ports or several or row.get("alone") or event or row.get("happens") or row.get("traffic")),
            fails == "elastic" and (drawn or row.get("data") == 1),
        )
    )


def possible(values: Sequence[Any]) -> bool:
    """Whether some options of a row may stand together, and are small enough."""
    row = dict(values)
    return not (impossible(row) or refused(row))
