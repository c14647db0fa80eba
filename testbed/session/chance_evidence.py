"""Of a case that the model has not whole: which of its messages can be held against it all the same, and how nearly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from testbed.judge.messages import COLLECTIVES, MessageTimes, by_flow
from testbed.plan.exchange import sites_of
from testbed.plan.left_to_chance import chances_of_pairs, touched_at
from testbed.plan.plan import Plan
from testbed.plan.traffic import directions_of_pairs
from testbed.planning.left_out import of_gloo, of_links
from testbed.planning.training_prediction import link_events_of
from testbed.session.trained import TrainedCase, TrainedJob
from testbed.trace.tables import MESSAGE_KINDS

_GLOO_TOUCHES = 0.2
"""Of the messages that are none of gloo's own, so many may come later since its all-reduce takes the links at another
time than predicted: it begins when a replica's last gradients are there, and hardly any others are left then."""


def held_against_model(plan: Plan, case: TrainedCase, left_out: Mapping[int, Sequence[str]]) -> bool:
    """Whether losses, jitter and gloo's own all-reduce are all that is left out of the model, by job; on the virtual
    clock, with slots that are paced and receives that are posted early: else the machine, or when a receive is posted,
    decides when messages come."""
    by_links = of_links(plan, (case.case,))
    exact = plan.clock.name == "virtual" and all(
        trained.load.receives == "early" and trained.job.workload.pacing is not None for trained in case.jobs
    )
    return exact and all({*lines} <= {*by_links, *of_gloo(plan, plan.jobs[job])} for job, lines in left_out.items())


def chance_of_flows(
    plan: Plan, case: TrainedCase, job: TrainedJob, times: MessageTimes, *, held: bool
) -> dict[str, list[float | None]]:
    """Per flow, how far jitter moves its messages, None where they are not held against the model, and what share of
    them losses or gloo's all-reduce touch; empty unless any are `held`."""
    if not held:
        return {"jitter_s": [], "losses_touch": []}
    flows, by_gloo = by_flow(times, job.job.mesh.first_rank), any(of_gloo(plan, other) for other in plan.jobs)
    shares, crossed = list[float](), list[list[str]]()
    for other in case.jobs:
        pairs, touched = _touched(plan, case, other, _flows_of(other))
        shares += touched
        crossed += directions_of_pairs(plan, case.case, pairs)
    at = touched_at(shares, crossed)
    pairs, touched = _touched(plan, case, job, [(flow.source_rank, flow.target_rank, flow.kind) for flow in flows])
    ways = directions_of_pairs(plan, case.case, pairs)
    touched = [max([share, *(at[each] for each in way)]) for share, way in zip(touched, ways, strict=True)]
    chances = chances_of_pairs(plan, case.case, pairs, link_events_of(plan, case.case))
    not_held = [bool(of_gloo(plan, job.job)) and MESSAGE_KINDS.index(flow.kind) in COLLECTIVES for flow in flows]
    return {
        "jitter_s": [None if gloo else chance.jitter_s for chance, gloo in zip(chances, not_held, strict=True)],
        "losses_touch": [max(share, _GLOO_TOUCHES * by_gloo) for share in touched],
    }


_Flow = tuple[int, int, str]
"""Its source and target rank among those of all jobs, and its kind."""


def _flows_of(job: TrainedJob) -> list[_Flow]:
    """What a job was predicted to send."""
    rows, first = job.predicted.messages, job.job.mesh.first_rank
    columns = np.unique(np.stack([rows["source_rank"], rows["target_rank"], rows["kind"]], axis=1), axis=0)
    return [(first + source, first + target, MESSAGE_KINDS[kind]) for source, target, kind in columns.tolist()]


def _touched(
    plan: Plan, case: TrainedCase, job: TrainedJob, flows: Sequence[_Flow]
) -> tuple[list[tuple[int, int]], list[float]]:
    """The ranks of these flows of a job, and what share of their messages losses touch on their own way."""
    pairs = [(source, target) for source, target, _ in flows]
    chances = chances_of_pairs(plan, case.case, pairs, link_events_of(plan, case.case))
    each = zip(chances, _bytes_of(job, flows), strict=True)
    return pairs, [chance.touches(*wire_bytes) for chance, wire_bytes in each]


def _bytes_of(job: TrainedJob, flows: Sequence[_Flow]) -> list[tuple[float, float]]:
    """Per flow, the bytes on the wire of its largest message, and of all that count with their mean: those of a
    collective between two datacenters in an iteration."""
    rows, first, sites = job.predicted.messages, job.job.mesh.first_rank, np.array(sites_of(job.job))
    sizes, ends = rows["wire_bytes"], (sites[rows["source_rank"]], sites[rows["target_rank"]])
    found = []
    for source, target, kind in ((source - first, target - first, kind) for source, target, kind in flows):
        code = MESSAGE_KINDS.index(kind)
        alike = (ends[0] == sites[source]) & (ends[1] == sites[target]) & (rows["kind"] == code)
        own = alike & (rows["source_rank"] == source) & (rows["target_rank"] == target)
        largest = sizes[own].max(initial=0.0) or sizes.max(initial=0.0)  # of one that was not predicted
        together = np.bincount(rows["iteration"][alike], sizes[alike]) if code in COLLECTIVES else sizes[own]
        found.append((float(largest), float(together.max(initial=0.0))))
    return found
