"""Which plans can have workers that fail, and are replaced."""

from __future__ import annotations

from testbed.errors import listed, require
from testbed.plan import routes
from testbed.plan.moved_weights import shared
from testbed.plan.plan import Plan
from testbed.plan.recovery import (
    LATEST_FAILURE_S,
    MOST_FAILURES,
    MOST_NOTICE_S,
    MOST_SLOT_S,
    MOST_STATE_BYTES,
    Checkpoints,
    Elastic,
    Failure,
    MemoryCheckpoints,
)
from testbed.plan.state_exchange import cut_directions, failed_ranks, needed_bytes


def require_recoverable(plan: Plan, source: str, field: str) -> None:
    """Raises BadInput, as of this field, where a plan's recovery is not one that a lab can play."""
    if plan.recovery is None:
        return
    checkpoints, failures = plan.recovery.checkpoints, plan.recovery.failures
    elastic = plan.recovery.elastic
    one = (checkpoints is None) != (elastic is None)
    require(one, source, field, "elastic beside checkpoints" if elastic else "neither", "checkpoints, or elastic")
    require(len(plan.jobs) == 1, source, field, f"{len(plan.jobs)} jobs", "one job: failures are of its workers")
    job = plan.jobs[0]
    require(
        job.workload.pacing is not None, source, field, "pacing: none", "seconds for F, I and W to place failures by"
    )
    beside = "--adapt" if plan.adaptation else next((str(event) for event in plan.events), None)
    require(beside is None, source, field, beside, "no events and no controller beside failures")
    expected = "none beside failures: datagrams of iterations that are done again would be counted with the others"
    require(not plan.background, source, field, "background traffic", expected)
    # a worker's listener cannot have the one port that connections of the one before it keep for a minute
    require(plan.enforcement != "ports", source, field, "--enforce ports", "other enforcement beside failures")
    if checkpoints is not None:
        _require_checkpoints(plan, checkpoints, source, field)
    if elastic is not None:
        _require_elastic(plan, elastic, source, field)
    require(len(failures) <= MOST_FAILURES, source, field, len(failures), f"at most {MOST_FAILURES} failures")
    times_s = [failure.at_s for failure in failures]
    require(times_s == sorted(times_s), source, field, times_s, "failures in order of time")
    for failure in failures:
        _require_failure(plan, failure, source, field)


def _require_checkpoints(plan: Plan, checkpoints: Checkpoints, source: str, field: str) -> None:
    require(checkpoints.every >= 1, source, field, checkpoints.every, "a checkpoint every iteration, or fewer")
    longest = f"0 to {MOST_NOTICE_S:g} s until somebody who is cut off is noticed"
    require(0 <= checkpoints.notice_s <= MOST_NOTICE_S, source, field, checkpoints.notice_s, longest)
    for seconds in (checkpoints.save_s, checkpoints.restart_s):
        require(0 <= seconds <= MOST_SLOT_S, source, field, seconds, f"0 to {MOST_SLOT_S:g} s")
    if checkpoints.memory is not None:
        _require_memory(plan, checkpoints.memory, checkpoints.every, source, field)


def _require_elastic(plan: Plan, elastic: Elastic, source: str, field: str) -> None:
    assert plan.recovery is not None
    (job,), count = plan.jobs, len(plan.cases)
    workload, exchange = job.workload, job.workload.data_parallel
    require(job.mesh.dp > 1, source, field, "one replica", "parallelism.data of 2 or more: the others go on")
    require(elastic.every >= 1, source, field, elastic.every, "every iteration, or fewer: when shards are copied")
    expected = "1: with data_parallel.sharding none each rank has all that it goes on with, at every iteration"
    require(elastic.every == 1 or shared(workload), source, field, f"every={elastic.every}", expected)
    expected = (
        "another data_parallel.algorithm: gloo's own is not in the model, so that fewer replicas look like a fault"
    )
    require(not exchange.collective.by_gloo, source, field, exchange.algorithm, expected)
    _require_known_stages(plan, source, field)
    drawn = workload.pacing is not None and bool(workload.pacing.spreads)
    require(not drawn, source, field, "slots that are drawn", "slots in numbers: draws are a replica's by its number")
    expected = "one case, of one schedule and policy: in another one other batches are trained until the same failure"
    require(count <= 1, source, field, f"{count} cases", expected)
    require(0 <= elastic.restart_s <= MOST_SLOT_S, source, field, elastic.restart_s, f"0 to {MOST_SLOT_S:g} s")
    repair_s = elastic.repair_s
    within = repair_s is None or 0 < repair_s <= LATEST_FAILURE_S
    require(within, source, field, repair_s, f"more than 0 s until a replica is back, {LATEST_FAILURE_S:g} s at most")
    cut = next((failure.place for failure in plan.recovery.failures if failure.cut_s is not None), None)
    require(cut is None, source, field, cut, "ranks, nodes and datacenters that are lost, none that is cut off")


def _require_known_stages(plan: Plan, source: str, field: str) -> None:
    """States go over links, with room for as much as is known before: an equal share of all would be a guess."""
    model = plan.jobs[0].workload.model
    whole = all(len(case.jobs[0].stage_to_rank) == 1 for case in plan.cases)
    expected = "a model with stage_parameter_count, which says how large the state of each rank is, to send it"
    require(whole or model.counts_stages, source, field, f"model {model.kind}", expected)


def _require_memory(plan: Plan, memory: MemoryCheckpoints, every: int, source: str, field: str) -> None:
    job, disk, asked = plan.jobs[0], memory.disk_every, memory.state_bytes
    require(job.mesh.size > 1, source, field, "one rank", "two or more: one keeps another's state")
    fits = disk is None or (disk >= 1 and disk % every == 0)
    require(fits, source, field, disk, f"a multiple of {every} iterations on disk")
    require(0 <= memory.disk_save_s <= MOST_SLOT_S, source, field, memory.disk_save_s, f"0 to {MOST_SLOT_S:g} s")
    if asked is None:
        _require_known_stages(plan, source, field)
    else:
        needed = max(max(needed_bytes(job, case)) for case in plan.cases)
        fits, expected = needed <= asked <= MOST_STATE_BYTES, f"{needed} to {MOST_STATE_BYTES} bytes: a rank's state"
        require(fits, source, field, f"state={asked} B", expected)


def _require_failure(plan: Plan, failure: Failure, source: str, field: str) -> None:
    job, place = plan.jobs[0], failure.place
    require(0 <= failure.at_s <= LATEST_FAILURE_S, source, field, failure.at_s, f"0 to {LATEST_FAILURE_S:g} s")
    if failure.rank is not None:
        require(not place, source, field, place, "a rank or a place, not both")
        require(0 <= failure.rank < job.mesh.size, source, field, failure.rank, f"a rank below {job.mesh.size}")
    else:
        known = listed([*job.nodes, *dict.fromkeys(map(routes.datacenter_of, job.nodes))])
        require(bool(failed_ranks(job, failure)), source, field, place, f"where the job has ranks: {known}")
    if failure.cut_s is not None:
        links = cut_directions(plan.network, failure)
        require(bool(links), source, field, place, "a datacenter with links, that can be cut off")
        require(0 < failure.cut_s <= MOST_SLOT_S, source, field, failure.cut_s, f"up to {MOST_SLOT_S:g} s cut off")
