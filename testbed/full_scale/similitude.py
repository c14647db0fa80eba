"""Similitude: a workload at full scale made into one that the lab can run, with the ratios that decide its schedule.

T_lat/T_F, T_bw/T_F, T_I/T_F, T_W/T_F, microbatches and memory are those of full scale, rank by rank and link by link.
Two factors do it: lab seconds per second, and lab wire bytes per byte. What they cannot match is counted in unlike.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from testbed.errors import BadInput
from testbed.plan import counts
from testbed.plan.framing import ETHERNET_HEADER, IP_TCP_HEADERS, MSS, part_bytes, wire_bytes
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.spec.full_scale_job import FullScale, LabScale
from testbed.spec.topology import Direction
from testbed.spec.workload import Pacing, Workload
from testbed.thresholds import FULL_SCALE_LEAST_BPS, LAB_MOST_BPS
from testbed.units import show_rate, show_size

LEAST_RATE_BPS, MOST_RATE_BPS = 1e3, 100e9
"""Of a link in the lab."""


class Scales(NamedTuple):
    """How large the lab is beside full scale."""

    seconds: float
    """In the lab, per second at full scale."""
    wire_bytes: float
    """In the lab, per byte at full scale: of a boundary message with all that the lab adds to it."""


def _both(workload: Workload) -> tuple[FullScale, LabScale]:
    assert workload.full_scale is not None  # the workload is checked
    assert workload.lab is not None
    return workload.full_scale, workload.lab


def scales(workload: Workload, gloo_bytes: float) -> Scales | None:
    """Of a workload that stands for one at full scale; None for any other.

    The slowest stage's forward takes `lab.slot`; a boundary message of `lab.message` bytes stands for a whole one.
    """
    if workload.full_scale is None:
        return None
    full, lab = _both(workload)
    ranks = range(workload.parallelism.pipeline)
    forward_s = max(counts.seconds(full, counts.stage_flop(full, rank, len(ranks)).forward) for rank in ranks)
    parts = part_bytes(int(lab.message), workload.model.element_bytes, workload.streams)
    on_wire = sum(wire_bytes(part) + gloo_bytes for part in parts)
    return Scales(lab.slot / forward_s, on_wire / counts.message_bytes(full, workload.parallelism.data))


def at_lab_scale(workload: Workload, gloo_bytes: float) -> Workload:
    """The workload with slots, message, parameters, microbatches of the lab. Raises BadInput where it has no room."""
    found = scales(workload, gloo_bytes)
    if found is None:
        return workload
    full, lab = _both(workload)
    ranks = range(workload.parallelism.pipeline)
    flop = [counts.stage_flop(full, rank, len(ranks)) for rank in ranks]

    def slots(kind: Literal["forward", "input", "weight"]) -> list[float]:
        return [found.seconds * counts.seconds(full, getattr(operations, kind)) for operations in flop]

    changed: dict[str, Any] = {
        "pacing": Pacing.model_construct(F=slots("forward"), I=slots("input"), W=slots("weight"), B=None),
        "message": float(int(lab.message)),
        "microbatches": full.microbatches,
    }
    if workload.parallelism.data > 1:
        parameters = _parameters(workload, found, gloo_bytes)
        changed["data_parallel"] = workload.data_parallel.model_copy(update={"parameters": parameters})
    made = workload.model_copy(update=changed)
    _check(made)
    return made


def exchanged_bytes(workload: Workload) -> float:
    """What the replicas of a rank exchange at full scale: the largest rank's gradients, as in the lab."""
    full, _ = _both(workload)
    ranks = range(workload.parallelism.pipeline)
    return max(counts.gradient_bytes(full, rank, len(ranks)) for rank in ranks)


def _parameters(workload: Workload, found: Scales, gloo_bytes: float) -> float:
    """Bytes in the lab of which every share comes as close as can be to its time on the wire at full scale."""
    pipelines = workload.parallelism.data
    target = found.wire_bytes * exchanged_bytes(workload) / pipelines - workload.streams * gloo_bytes
    headers = ETHERNET_HEADER + IP_TCP_HEADERS
    element = workload.model.element_bytes
    payload = max(element, int(target * MSS / (MSS + headers)) // element * element)
    return float(payload * pipelines)


def _check(workload: Workload) -> None:
    """Raises BadInput where the model that really trains is too large for the lab's messages, or nothing fits HBM."""
    tensor, least = workload.tensor_bytes(), workload.largest_stage_bytes(workload.parallelism.pipeline)
    assert workload.lab is not None
    assert workload.message is not None
    if workload.message < tensor:
        expected = f"at least the boundary tensor of the model that really trains ({show_size(tensor)})"
        raise BadInput.of(workload.name, "lab.message", show_size(workload.lab.message), expected)
    parameters = workload.data_parallel.parameters
    if parameters is not None and parameters < least:
        expected = (
            f"a larger one: the model that really trains has {show_size(least)} of parameters on a rank, and the "
        )
        expected += f"message leaves room for {show_size(parameters)}"
        raise BadInput.of(workload.name, "lab.message", show_size(workload.lab.message), expected)
    counts.memory_caps(workload)


def common_scales(workloads: Sequence[Workload], gloo_bytes: float) -> Scales | None:
    """The scales that all jobs of a network have. Raises BadInput where they differ."""
    found = [scales(workload, gloo_bytes) for workload in workloads]
    for workload, mine in zip(workloads, found, strict=True):
        first = found[0]
        same = mine == first or (mine and first and all(_close(a, b) for a, b in zip(mine, first, strict=True)))
        if not same:
            expected = f"the scale of {workloads[0].name} on the same network"
            raise BadInput.of(workload.name, "lab", "another scale", expected)
    return found[0] if found else None


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * abs(other)


def direction_at(direction: Direction, at: Scales) -> Direction:
    """A direction of the lab for one at full scale: its times by one factor, its rate so that messages match."""
    return direction._replace(
        delay_s=direction.delay_s * at.seconds,
        jitter_s=direction.jitter_s * at.seconds,
        rate_bps=direction.rate_bps * at.wire_bytes / at.seconds,
        queue_bytes=direction.queue_bytes * at.wire_bytes,
    )


def full_scale_of(direction: Direction, at: Scales) -> Direction:
    """The inverse of `direction_at`."""
    return direction_at(direction, Scales(1 / at.seconds, 1 / at.wire_bytes))


def lab_seconds(plan: Plan) -> float | None:
    """Seconds in the lab per second at full scale, of a plan's jobs; None where none stands for one at full scale."""
    found = common_scales([job.workload for job in plan.jobs], plan.host_costs.gloo_bytes)
    return None if found is None else found.seconds


def scale_warnings(plan: Plan) -> list[str]:
    """Where links look like those of another scale than the jobs': named with what the plan makes of them."""
    at = common_scales([job.workload for job in plan.jobs], plan.host_costs.gloo_bytes)
    rates = [link.rate_bps for link in planned(plan.network).links]
    if not rates or not plan.jobs:
        return []
    names = " and ".join(job.name for job in plan.jobs)
    if at is None and max(rates) > LAB_MOST_BPS:
        return [
            f"{plan.network.name} has links of {show_rate(max(rates))}, as at full scale, and {names} is at lab scale "
            "(no full_scale): its messages take next to no time on them"
        ]
    if at is not None and (most := max(rates) * at.seconds / at.wire_bytes) < FULL_SCALE_LEAST_BPS:
        return [
            f"{names} is at full scale, and no link of {plan.network.name} is faster than {show_rate(most)}: if these "
            f"are a lab's rates and delays, they are scaled down once more (to {show_rate(max(rates))} in the lab)"
        ]
    return []


def check_rate(name: str, field: str, asked: Direction, lab: Direction, at: Scales | None) -> None:
    """Raises BadInput for a rate that no lab can have."""
    if LEAST_RATE_BPS <= lab.rate_bps <= MOST_RATE_BPS:
        return
    expected = f"from {show_rate(LEAST_RATE_BPS)} to {show_rate(MOST_RATE_BPS)} in the lab"
    if at is None:
        expected += ", or a workload with full_scale, for which links are scaled"
    else:
        expected += f", where it comes to {show_rate(lab.rate_bps)}: another lab.slot or lab.message"
    raise BadInput.of(name, field, show_rate(asked.rate_bps), expected)
