"""Which axis should cross datacenters: pipelines laid over both of two, or whole pipelines in each of them.

CrossPipe (arXiv 2507.00217), section 5.2, Figure 9 and Appendix E, with the event model in place of its simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from testbed.errors import BadInput
from testbed.full_scale import similitude
from testbed.plan import counts
from testbed.plan.plan import Plan
from testbed.planning.resolve import make_plan
from testbed.planning.schedules import Candidate, candidates, choose, without_best
from testbed.spec.document import validate
from testbed.spec.quantity import SI_UNITS
from testbed.spec.topology import Topology
from testbed.spec.workload import Parallelism, Workload
from testbed.thresholds import TIE

Axis = Literal["pipeline", "data"]
AXES: tuple[Axis, Axis] = ("pipeline", "data")
Winner = Literal["pipeline", "data", "either"]
"""The axis that should cross; either where both take the same time."""

SITES = ("east", "west")


@dataclass(frozen=True)
class LinkPoint:
    """A link between two datacenters at full scale."""

    delay_s: float
    """One way."""
    rate_bps: float
    """Of each direction."""


@dataclass(frozen=True)
class AxisTimes:
    """One axis over the link: seconds of an iteration at full scale, by schedule; left out where it does not fit."""

    seconds: dict[str, float]

    @property
    def best(self) -> str:
        """The fastest schedule."""
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def best_s(self) -> float:
        """Its time."""
        return self.seconds[self.best]


@dataclass(frozen=True)
class Compared:
    """Both axes at one point."""

    point: LinkPoint
    pipeline: AxisTimes
    data: AxisTimes
    data_not_overlapped_s: float
    """`one_site_s`, then 2 T_lat and 2 N bytes over the link (CrossPipe, Appendix E)."""
    one_site_s: float
    """The fastest schedule in one datacenter."""

    @property
    def winner(self) -> Winner:
        """The axis that should cross the link."""
        return winner_of(self.pipeline.best_s, self.data.best_s)

    @property
    def gain(self) -> float:
        """Time with data parallelism over the link, over that with the pipeline over it."""
        return self.data.best_s / self.pipeline.best_s

    def as_json(self) -> dict[str, object]:
        """For machines; seconds at full scale."""
        return {
            "delay_s": self.point.delay_s,
            "rate_bps": self.point.rate_bps,
            "pipeline_s": self.pipeline.seconds,
            "data_s": self.data.seconds,
            "data_not_overlapped_s": self.data_not_overlapped_s,
            "one_site_s": self.one_site_s,
            "winner": self.winner,
            "gain": self.gain,
        }


def winner_of(pipeline_s: float, data_s: float) -> Winner:
    """The axis that takes less, by more than makes two predictions equal."""
    if abs(data_s / pipeline_s - 1) < TIE:
        return "either"
    return "pipeline" if pipeline_s < data_s else "data"


def plan_over(workload: Workload, axis: Axis | None, point: LinkPoint) -> Plan:
    """The plan in which an axis crosses the link, still without cases. Raises BadInput.

    pipeline: one lab pipeline, half of its ranks in each datacenter, for all pipelines of full scale. data: a lab
    pipeline in each datacenter, each for half of them, which exchange parameters and gradients. None: all in one.
    """
    ranks = workload.parallelism.pipeline
    near, far = ([f"{site}/{rank}" for rank in range(ranks)] for site in SITES)
    of_one = -(-ranks // 2) if axis == "pipeline" else ranks
    changed: dict[str, object] = {
        "parallelism": Parallelism(pipeline=ranks, data=2 if axis == "data" else 1),
        "placement": "contiguous" if axis == "pipeline" else near,
    }
    if axis == "data":
        changed["data_parallel"] = workload.data_parallel.model_copy(update={"replicas": [far]})
    document = {
        "name": f"{axis}-over-wan" if axis else "one-site",
        "datacenters": {site: {"nodes": of_one} for site in SITES},
        "links": [{"between": list(SITES), "delay": point.delay_s, "rate": point.rate_bps}],
    }
    topology = validate(Topology, document, "--delay and --rate", SI_UNITS)
    return make_plan(topology, workload.model_copy(update=changed))


def require_axes(workload: Workload) -> None:
    """Raises BadInput for a workload of which either axis cannot cross two datacenters."""
    if workload.full_scale is None:
        raise BadInput.of(workload.name, "full_scale", None, "the job at full scale whose axes are compared")
    if workload.full_scale.data % 2:
        raise BadInput.of(workload.name, "full_scale.data", workload.full_scale.data, "an even number of pipelines")
    if workload.parallelism.pipeline < 2:
        raise BadInput.of(workload.name, "parallelism.pipeline", workload.parallelism.pipeline, "2 or more")


def made_over(
    workload: Workload, axis: Axis | None, point: LinkPoint, names: Sequence[str] = ()
) -> tuple[Plan, list[Candidate]]:
    """The plan with an axis over the link, and all schedules that fit, the fastest first. Raises BadInput."""
    plan = plan_over(workload, axis, point)
    expected = "names of schedules: the best of them is the answer"
    found = candidates(plan, without_best(choose(plan, names), named=bool(names), expected=expected))
    if not found.found:
        raise BadInput(next(iter(found.left_out.values())))
    return plan, sorted(found.found, key=lambda candidate: candidate.makespan_s)


def compare(workload: Workload, point: LinkPoint, names: Sequence[str] = ()) -> Compared:
    """Both axes at one point, by the event model at full scale. Raises BadInput."""
    pipeline, data = (_times(*made_over(workload, axis, point, names)) for axis in AXES)
    one_site_s = _times(*made_over(workload, None, point, names)).best_s
    exchanged_s = 2 * point.delay_s + 8 * _gradient_bytes(workload) / point.rate_bps
    return Compared(point, pipeline, data, one_site_s + exchanged_s, one_site_s)


def exchanged_beyond(workload: Workload) -> float:
    """By which share all ranks together exchange more than the model has: each of them as much as the largest one."""
    return workload.parallelism.pipeline * similitude.exchanged_bytes(workload) / _gradient_bytes(workload) - 1


def _times(plan: Plan, found: Sequence[Candidate]) -> AxisTimes:
    at = similitude.scales(plan.jobs[0].workload, plan.host_costs.gloo_bytes)
    assert at is not None  # asked for by require_axes
    return AxisTimes({candidate.choice.label: candidate.makespan_s / at.seconds for candidate in found})


def _gradient_bytes(workload: Workload) -> float:
    """Of the whole model."""
    full, ranks = workload.full_scale, workload.parallelism.pipeline
    assert full is not None  # asked for by require_axes
    return sum(counts.gradient_bytes(full, rank, ranks) for rank in range(ranks))
